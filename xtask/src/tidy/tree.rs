//! Which files does tidy check?

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Folders with the project's sources in Rust, Python and C, manifests and pages.
const FOLDERS: [&str; 10] =
    ["backends", "crates", "xtask", "tests", "benches", "fuzz", "docs", "examples", "packaging", "python"];

/// The workspace's manifest.
pub const MANIFEST: &str = "Cargo.toml";

/// Single files that rules read, in addition to the pages in the root.
const FILES: [&str; 1] = [MANIFEST];

/// Folders with code of others or with build results.
const PASSED_OVER: [&str; 3] = ["target", "generated", "node_modules"];

/// The files that rules read, by path relative to the root of the workspace.
#[derive(Debug, Default)]
pub struct Tree {
    texts: BTreeMap<String, String>,
    /// All files and folders that a link may name, whether or not their text was read.
    paths: BTreeSet<String>,
}

impl Tree {
    /// Reads a workspace.
    pub fn read(root: &Path) -> Result<Tree, String> {
        let mut tree = Tree::default();
        tree.walk(root, "")?;
        Ok(tree)
    }

    /// A tree of these files.
    #[cfg(test)]
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            let folders = path.match_indices('/').map(|(at, _)| path[..at].to_owned());
            tree.paths.extend(folders.chain([path.to_owned()]));
            tree.texts.insert(path.to_owned(), text.to_owned());
        }
        tree
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Whether a file or a folder has that path.
    pub fn is_there(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    /// All Rust sources.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ending(".rs")
    }

    /// All Python sources.
    pub fn python_sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ending(".py")
    }

    /// All pages of text.
    pub fn pages(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ending(".md")
    }

    /// All files whose path has this ending.
    pub fn ending(&self, end: &str) -> impl Iterator<Item = (&str, &str)> {
        let texts = self.texts.iter().filter(move |(path, _)| path.ends_with(end));
        texts.map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Reads a folder. The root of the workspace is the empty path.
    fn walk(&mut self, root: &Path, folder: &str) -> Result<(), String> {
        let Ok(entries) = fs::read_dir(root.join(folder)) else { return Ok(()) };
        for entry in entries {
            let entry = entry.map_err(|cause| format!("{folder}: {cause}"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let kind = entry.file_type().map_err(|cause| format!("{path}: {cause}"))?;
            if PASSED_OVER.contains(&name.as_str()) || name.starts_with('.') {
                continue;
            }
            if kind.is_dir() {
                self.walk(root, &path)?;
            } else if is_read(&path) {
                let text = fs::read_to_string(entry.path()).map_err(|cause| format!("{path}: {cause}"))?;
                self.texts.insert(path.clone(), text);
            }
            self.paths.insert(path);
        }
        Ok(())
    }
}

/// Whether rules read the text of a file.
fn is_read(path: &str) -> bool {
    let Some((folder, _)) = path.split_once('/') else {
        return FILES.contains(&path) || is_page(path);
    };
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_list = Path::new(name).extension().is_some_and(|end| end == "allow" || end == "txt") && folder == "xtask";
    FOLDERS.contains(&folder) && (is_source(name) || is_page(name) || name == "Cargo.toml" || is_list)
}

/// Whether a file is a page of text.
pub fn is_page(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == "md")
}

fn is_source(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|end| ["rs", "py", "c", "cc"].iter().any(|known| end == *known))
}
