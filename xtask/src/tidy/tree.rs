//! Which files does tidy look at?

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Folders whose Rust sources and manifests are the project's.
const FOLDERS: [&str; 5] = ["crates", "xtask", "tests", "benches", "fuzz"];

/// Single files that rules ask for.
const FILES: [&str; 3] = [super::flags::DOCS, super::glossary::DOCS, super::profiles::MANIFEST];

/// Folders that hold what others wrote or what a build leaves behind.
const PASSED_OVER: [&str; 3] = ["target", "generated", "node_modules"];

/// The files that rules look at, by path from the top of the workspace.
#[derive(Debug, Default)]
pub struct Tree(BTreeMap<String, String>);

impl Tree {
    /// Reads a workspace.
    pub fn read(root: &Path) -> Result<Tree, String> {
        let mut tree = Tree::default();
        for folder in FOLDERS {
            tree.walk(root, folder)?;
        }
        for file in FILES {
            if let Ok(text) = fs::read_to_string(root.join(file)) {
                tree.0.insert(file.to_owned(), text);
            }
        }
        Ok(tree)
    }

    /// A tree of these files.
    #[cfg(test)]
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Tree {
        Tree(files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect())
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// All Rust sources.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ending(".rs")
    }

    /// All files whose path ends so.
    pub fn ending(&self, end: &str) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter(move |(path, _)| path.ends_with(end)).map(|(path, text)| (path.as_str(), text.as_str()))
    }

    fn walk(&mut self, root: &Path, folder: &str) -> Result<(), String> {
        let Ok(entries) = fs::read_dir(root.join(folder)) else { return Ok(()) };
        for entry in entries {
            let entry = entry.map_err(|cause| format!("{folder}: {cause}"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{folder}/{name}");
            let kind = entry.file_type().map_err(|cause| format!("{path}: {cause}"))?;
            if kind.is_dir() {
                if !PASSED_OVER.contains(&name.as_str()) && !name.starts_with('.') {
                    self.walk(root, &path)?;
                }
            } else if is_source(&name) || name == "Cargo.toml" || path == super::allow::FILE {
                let text = fs::read_to_string(entry.path()).map_err(|cause| format!("{path}: {cause}"))?;
                self.0.insert(path, text);
            }
        }
        Ok(())
    }
}

fn is_source(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|end| end == "rs")
}
