//! Do the modules of a crate use each other in one direction?
//!
//! A cycle is allowed if all its modules lie within one of them, because a module and its children are one unit. A name that is re-exported with `pub
//! use` counts for the module that defines it.

mod shortest;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use self::source::Source;
use super::Finding;
use super::skeleton;
use super::tree::Tree;

/// The longest chain of re-exports.
const PASSED_ON_MAX: usize = 16;

/// The modules of one crate by path (`a::b`, the root's is empty), each with its file.
struct Crate<'a> {
    modules: BTreeMap<String, (&'a str, Source)>,
}

/// Checks each folder `src`.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut folders: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (path, text) in tree.sources() {
        if let Some((folder, _)) = path.split_once("/src/") {
            folders.entry(folder).or_default().push((path, text));
        }
    }
    folders.into_values().flat_map(|files| Crate::read(&files).cycles()).collect()
}

impl<'a> Crate<'a> {
    fn read(files: &[(&'a str, &str)]) -> Crate<'a> {
        let mut modules = BTreeMap::new();
        let mut tests = BTreeSet::new();
        for (path, text) in files {
            let name = module_of(path);
            let source = Source::read(&skeleton::of(text));
            tests.extend(source.tests.iter().map(|test| within(&name, test)));
            modules.insert(name, (*path, source));
        }
        modules.retain(|name, _| !tests.iter().any(|test| name == test || lies_in(name, test)));
        Crate { modules }
    }

    /// A finding for each cycle, in its first file.
    fn cycles(&self) -> Vec<Finding> {
        let uses = self.uses();
        let outer: BTreeSet<&str> = self.modules.keys().filter_map(|module| parent(module)).collect();
        let cycles = outer.into_iter().flat_map(|outer| {
            let inside = uses.keys().filter(|(from, to)| lies_in(from, outer) && lies_in(to, outer)).copied();
            let leaves = |(from, to): (&str, &str)| child_around(from, outer) != child_around(to, outer);
            shortest::cycles(inside.collect(), leaves)
        });
        cycles
            .map(|cycle| {
                let file = |module: &str| self.modules[module].0;
                let steps = cycle.iter().zip(cycle.iter().cycle().skip(1));
                let steps = steps.map(|(from, to)| format!("{}:{} uses {}", file(from), uses[&(*from, *to)], file(to)));
                let text = format!("modules use each other in a cycle: {}", steps.collect::<Vec<_>>().join(", "));
                Finding::new("cycles", file(cycle[0]), 0, text)
            })
            .collect()
    }

    /// Which module uses which, and the line of the first use.
    fn uses(&self) -> BTreeMap<(&str, &str), usize> {
        let mut uses = BTreeMap::new();
        for (name, (_, source)) in &self.modules {
            for used in &source.paths {
                let path: Vec<&str> = used.path.iter().map(String::as_str).collect();
                let Some((target, is_module)) = self.resolve(name, &path, PASSED_ON_MAX) else { continue };
                if let Some((target, _)) = self.modules.get_key_value(&target)
                    && !(is_module && used.is_import)
                {
                    uses.entry((name.as_str(), target.as_str())).or_insert(used.line);
                }
            }
        }
        uses
    }

    /// The module that defines the item at `path` as seen from the module `at`, and whether the path names that module itself. `None` if another
    /// crate defines it.
    fn resolve(&self, at: &str, path: &[&str], passed_on_max: usize) -> Option<(String, bool)> {
        let (mut at, mut path) = (at.to_owned(), path);
        match path.first()? {
            &"crate" => (at, path) = (String::new(), &path[1..]),
            &"self" => path = &path[1..],
            &"super" => {
                while path.first() == Some(&"super") {
                    (at, path) = (parent(&at)?.to_owned(), &path[1..]);
                }
            }
            first if !self.knows(&at, first) => return None,
            _ => {}
        }
        while let Some(first) = path.first() {
            let child = within(&at, first);
            if self.modules.contains_key(&child) {
                (at, path) = (child, &path[1..]);
            } else if let Some(meant) = self.modules.get(&at).and_then(|(_, source)| source.names.get(*first)) {
                let meant: Vec<&str> = meant.iter().map(String::as_str).chain(path[1..].iter().copied()).collect();
                return self.resolve(&at, &meant, passed_on_max.checked_sub(1)?);
            } else {
                break;
            }
        }
        self.modules.contains_key(&at).then_some((at, path.is_empty()))
    }

    fn knows(&self, at: &str, name: &str) -> bool {
        self.modules.contains_key(&within(at, name))
            || self.modules.get(at).is_some_and(|(_, source)| source.names.contains_key(name))
    }
}

/// The path of the module in a file.
fn module_of(path: &str) -> String {
    let inner = path.split_once("/src/").map_or(path, |(_, inner)| inner).trim_end_matches(".rs");
    if matches!(inner, "lib" | "main") { String::new() } else { inner.replace('/', "::") }
}

fn within(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

fn lies_in(module: &str, outer: &str) -> bool {
    if outer.is_empty() {
        !module.is_empty()
    } else {
        module.strip_prefix(outer).is_some_and(|rest| rest.starts_with("::"))
    }
}

/// The child of `outer` that is or contains the module.
fn child_around<'m>(module: &'m str, outer: &str) -> &'m str {
    let from = if outer.is_empty() { 0 } else { outer.len() + 2 };
    module[from..].split("::").next().unwrap_or_default()
}

/// The parent module. The root has none.
fn parent(module: &str) -> Option<&str> {
    (!module.is_empty()).then(|| module.rsplit_once("::").map_or("", |(outer, _)| outer))
}

#[cfg(test)]
mod tests;
