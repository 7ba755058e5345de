//! Do the crates depend on each other only as the layers allow?

use std::collections::BTreeMap;

use super::Finding;
use super::tree::Tree;

/// Crates that serve clients. They use `api`, and neither the engine nor each other. `page` is above the others, and passes calls to them.
const FRONT_ENDS: [&str; 5] = ["grpc", "http", "metrics", "page", "session"];

/// Crates beside the server. They use nothing above [`SIDE_LAYER_MAX`], and only programs use them.
const SIDE: [&str; 2] = ["bench", "client"];
/// The layer of `wire`, the highest one that a client uses.
const SIDE_LAYER_MAX: u32 = 3;
/// Crates that may use those beside the server.
const PROGRAMS: [&str; 2] = ["bench", "server"];

/// It replaces a part of the standard library, so every crate may use it, also those of its own layer.
const FOR_ALL: &str = "locks";

/// The relevant parts of one manifest.
#[derive(Debug, Default, PartialEq, Eq)]
struct Manifest {
    layer: Option<u32>,
    /// The workspace crates that it depends on, with the line.
    edges: Vec<(String, usize)>,
}

/// Checks the manifests below `crates/`.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let manifests: BTreeMap<&str, (&str, Manifest)> =
        tree.ending("/Cargo.toml").filter_map(|(path, text)| Some((name_of(path)?, (path, parse(text))))).collect();
    let mut findings = Vec::new();
    for (name, (path, manifest)) in &manifests {
        if manifest.layer.is_none() {
            findings.push(Finding::new(
                "layer",
                path,
                0,
                "the manifest must say its layer: [package.metadata] layer = N",
            ));
        }
        for (other, line) in &manifest.edges {
            let layer = manifests.get(other.as_str()).and_then(|(_, other)| other.layer);
            if let Some(text) = fault(name, manifest.layer, other, layer) {
                findings.push(Finding::new("layer", path, *line, text));
            }
        }
    }
    findings
}

/// What is wrong with a dependency.
fn fault(name: &str, layer: Option<u32>, other: &str, other_layer: Option<u32>) -> Option<String> {
    let (Some(layer), Some(other_layer)) = (layer, other_layer) else { return None };
    // A crate that depends on itself names features for its own tests.
    if other == FOR_ALL || other == name {
        return None;
    }
    if FRONT_ENDS.contains(&name) && other == "engine" {
        return Some(format!("`{name}` is a front end and asks `api`, never `engine`"));
    }
    if SIDE.contains(&other) {
        let allowed = PROGRAMS.contains(&name) && other == "client" || (name, other) == ("server", "bench");
        return (!allowed).then(|| format!("`{other}` stands beside the server; `{name}` cannot see it"));
    }
    if SIDE.contains(&name) {
        let text = || format!("`{name}` stands beside the server and sees `wire` and below, not `{other}`");
        return (other_layer > SIDE_LAYER_MAX).then(text);
    }
    let text = || format!("`{name}` (layer {layer}) cannot depend on `{other}` (layer {other_layer}): edges go down");
    (other_layer >= layer).then(text)
}

/// The name of a crate's folder, from the path of its manifest.
fn name_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    (!name.contains('/')).then_some(name)
}

/// Reads the layer and the dependencies. Dependencies of tests count too: a test that needs a higher crate belongs into that crate.
fn parse(text: &str) -> Manifest {
    let mut manifest = Manifest::default();
    let mut section = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            // `[dependencies.nerite-x]`
            let named = section.rsplit_once("dependencies.nerite-").map(|(_, name)| name);
            manifest.edges.extend(named.map(|name| (name.to_owned(), index + 1)));
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        if section == "package.metadata" && key.trim() == "layer" {
            manifest.layer = value.trim().parse().ok();
        } else if section.ends_with("dependencies") {
            let name = key.trim().trim_end_matches(".workspace").strip_prefix("nerite-");
            manifest.edges.extend(name.map(|name| (name.to_owned(), index + 1)));
        }
    }
    manifest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(layer: u32, edges: &[&str]) -> String {
        let edges: String = edges.iter().map(|edge| ["nerite-", edge, ".workspace = true\n"].concat()).collect();
        format!("[package]\nname = \"x\"\n\n[package.metadata]\nlayer = {layer}\n\n[dependencies]\n{edges}")
    }

    /// Checks whether a dependency from one crate to another, of these layers, is allowed.
    #[track_caller]
    fn check_edge(from: (&str, u32), to: (&str, u32), allowed: bool) {
        let (from_path, to_path) = (format!("crates/{}/Cargo.toml", from.0), format!("crates/{}/Cargo.toml", to.0));
        let (from_text, to_text) = (manifest(from.1, &[to.0]), manifest(to.1, &[]));
        let tree = Tree::of([(&from_path[..], &from_text[..]), (&to_path[..], &to_text[..])]);
        let findings = check(&tree);
        assert_eq!(findings.is_empty(), allowed, "{findings:?}");
    }

    #[test]
    fn edges_go_down() {
        check_edge(("api", 7), ("engine", 6), true);
        check_edge(("engine", 6), ("api", 7), false);
        check_edge(("backend", 4), ("repository", 4), false);
        check_edge(("memory", 0), ("locks", 0), true);
        check_edge(("locks", 0), ("memory", 0), false);
    }

    #[test]
    fn front_ends_see_neither_the_engine_nor_each_other() {
        check_edge(("http", 8), ("api", 7), true);
        check_edge(("http", 8), ("engine", 6), false);
        check_edge(("http", 8), ("metrics", 8), false);
        check_edge(("page", 9), ("http", 8), true);
        check_edge(("page", 9), ("engine", 6), false);
        check_edge(("server", 10), ("engine", 6), true);
    }

    #[test]
    fn clients_stand_beside_the_server() {
        check_edge(("client", 9), ("wire", 3), true);
        check_edge(("client", 9), ("backend", 4), false);
        check_edge(("bench", 9), ("client", 9), true);
        check_edge(("server", 9), ("client", 9), true);
        check_edge(("server", 9), ("bench", 9), true);
        check_edge(("page", 9), ("bench", 9), false);
        check_edge(("session", 8), ("client", 4), false);
    }

    #[test]
    fn a_crate_may_name_features_for_its_own_tests() {
        assert_eq!(check(&Tree::of([("crates/client/Cargo.toml", &manifest(9, &["client"])[..])])).len(), 0);
    }

    #[test]
    fn a_manifest_says_its_layer() {
        let tree =
            Tree::of([("crates/a/Cargo.toml", "[package]\nname = \"a\"\n"), ("xtask/Cargo.toml", "[package]\n")]);
        assert_eq!(check(&tree).len(), 1);
    }

    #[test]
    fn all_ways_to_write_an_edge_are_read() {
        let text = "[dependencies]\nnerite-a.workspace = true\nnerite-b = { path = \"../b\" }\nbytes = \"1\"\n\
                    [dev-dependencies]\nnerite-c = { workspace = true }\n[dependencies.nerite-d]\nworkspace = true\n";
        let edges: Vec<(String, usize)> =
            [("a", 2), ("b", 3), ("c", 6), ("d", 7)].map(|(name, line)| (name.to_owned(), line)).to_vec();
        assert_eq!(parse(text), Manifest { layer: None, edges });
    }
}
