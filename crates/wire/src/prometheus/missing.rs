//! How is a model version shown that should be loaded and is not?

use std::fmt::Write;

use super::page::escaped;

/// A model version that should be loaded and is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingVersion {
    /// The model's name.
    pub name: String,
    /// Its repository, with `--model-namespacing`; otherwise empty.
    pub namespace: String,
    /// The version. `None` if the model has no version.
    pub version: Option<i64>,
}

impl MissingVersion {
    /// Labels in alphabetical order, as those of a loaded version.
    pub(super) fn labels(&self) -> String {
        let version = self.version.map_or_else(String::new, |version| version.to_string());
        labels_of(&self.name, &self.namespace, ("version", &version))
    }
}

/// A model's name, its namespace if it has one, and one label that sorts after both.
pub(super) fn labels_of(model: &str, namespace: &str, (label, value): (&str, &str)) -> String {
    let mut out = format!("{{model=\"{}\",", escaped(model));
    if !namespace.is_empty() {
        let _ = write!(out, "namespace=\"{}\",", escaped(namespace));
    }
    let _ = write!(out, "{label}=\"{value}\"}}");
    out
}
