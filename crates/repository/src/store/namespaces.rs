//! How are models with the same name in different repositories distinguished?
//!
//! Inside of the server a model is known by its *identifier*. That is its name, or with `--model-namespacing` its repository and its name, written as
//! Triton does: `/models/a::resnet`. A model that came with a load request lies in no repository, so its identifier is its name.

use std::path::{Path, PathBuf};

use nerite_config::ModelConfig;

use super::{Store, is_there};

/// The separator between the repository and the name.
pub(super) const SEPARATOR: &str = "::";

/// The identifier of a model of that repository, with `--model-namespacing`.
pub(super) fn identifier(repository: &Path, name: &str) -> String {
    format!("{}{SEPARATOR}{name}", repository.display())
}

impl Store {
    /// Whether models of different repositories may have the same name.
    pub fn is_namespaced(&self) -> bool {
        self.options.namespacing
    }

    /// The name of the model with this identifier.
    pub fn name_of<'a>(&self, identifier: &'a str) -> &'a str {
        self.split(identifier).map_or(identifier, |(_, name)| name)
    }

    /// Whether this names a repository and a model of it.
    pub fn is_identifier(&self, text: &str) -> bool {
        self.split(text).is_some()
    }

    /// Whether a repository has a directory for a model of this name.
    pub fn has_directory(&self, name: &str) -> bool {
        super::check_name(name).is_ok()
            && name != "."
            && self.registered().repositories().iter().any(|repository| is_there(&repository.join(name)))
    }

    /// The identifiers of the models that have this name: as many as repositories have it.
    pub fn identifiers(&self, name: &str) -> Vec<String> {
        if !self.options.namespacing {
            return vec![name.to_owned()];
        }
        if super::check_name(name).is_err() || name == "." {
            return Vec::new();
        }
        let registered = self.registered();
        let having = registered.repositories().iter().filter(|repository| is_there(&repository.join(name)));
        having.map(|repository| identifier(repository, name)).collect()
    }

    /// The models that the steps of an ensemble name, each once, with their identifiers. A model of the ensemble's own repository comes first. A name
    /// that several other repositories have stays as it is, and no model has that identifier.
    pub fn needs(&self, ensemble: &str, config: &ModelConfig) -> Vec<(String, String)> {
        let mut needs: Vec<(String, String)> = Vec::new();
        for step in config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step) {
            if !needs.iter().any(|(name, _)| *name == step.model_name) {
                needs.push((step.model_name.clone(), self.need(ensemble, &step.model_name)));
            }
        }
        needs
    }

    fn need(&self, ensemble: &str, name: &str) -> String {
        let mut all = self.identifiers(name);
        let own = self.split(ensemble).map(|(repository, _)| identifier(&repository, name));
        match own.filter(|own| all.contains(own)) {
            Some(own) => own,
            None if all.len() == 1 => all.remove(0),
            None => name.to_owned(),
        }
    }

    /// The repository and the name in an identifier that has both. Of two repositories that fit, the one with the longer path is meant.
    pub(super) fn split<'a>(&self, identifier: &'a str) -> Option<(PathBuf, &'a str)> {
        if !self.options.namespacing {
            return None;
        }
        let registered = self.registered();
        let fitting = registered.repositories().iter().filter_map(|repository| {
            let name = identifier.strip_prefix(&*repository.to_string_lossy())?.strip_prefix(SEPARATOR)?;
            (!name.contains('/') && name != ".").then(|| (repository.clone(), name))
        });
        fitting.min_by_key(|(_, name)| name.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use nerite_request::setting::LoadOptions;

    use super::super::{PollError, StoreOptions};
    use super::*;

    /// Repositories `a` and `b` below a new folder, with these models.
    fn repositories(models: &[&str], namespacing: bool) -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        for model in models {
            let path = folder.path().join(model);
            fs::create_dir_all(path.join("1")).unwrap();
            fs::write(path.join("config.pbtxt"), "backend: \"identity\"").unwrap();
        }
        let repositories = vec![folder.path().join("a"), folder.path().join("b")];
        let store =
            Store::open(StoreOptions { repositories, auto_complete: true, namespacing, ..StoreOptions::default() });
        (folder, store.unwrap())
    }

    #[test]
    fn each_repository_has_a_model_of_the_name() {
        let (folder, store) = repositories(&["a/same", "b/same", "b/other"], true);
        let (a, b) = (identifier(&folder.path().join("a"), "same"), identifier(&folder.path().join("b"), "same"));
        assert_eq!(store.identifiers("same"), [a.clone(), b.clone()]);
        assert_eq!(store.identifiers("nobody"), Vec::<String>::new());
        assert_eq!(store.identifiers("../a/same"), Vec::<String>::new());
        assert!(store.has_directory("same") && store.has_directory("other"));
        for name in ["nobody", "../a/same", "..", ".", "", "same/1"] {
            assert!(!store.has_directory(name), "{name}");
        }
        for (id, place) in [(&a, "a/same"), (&b, "b/same")] {
            let source = store.read(id, &LoadOptions::default()).unwrap();
            assert_eq!((source.model.as_str(), &source.identifier), ("same", id));
            assert_eq!(source.directory.path(), folder.path().join(place));
            assert_eq!(store.name_of(id), "same");
            assert_eq!(source.namespace(), folder.path().join(&place[..1]).to_string_lossy());
        }
        let listed: Vec<_> = store.list().unwrap().models().map(|(id, _)| id.to_owned()).collect();
        assert_eq!(listed, [a, identifier(&folder.path().join("b"), "other"), b]);
    }

    #[test]
    fn no_identifier_leaves_its_repository() {
        let (folder, store) = repositories(&["a/same"], true);
        for name in ["../b", "..", "x/y", ""] {
            let id = identifier(&folder.path().join("a"), name);
            assert!(store.read(&id, &LoadOptions::default()).is_err(), "{id}");
        }
        assert!(!store.has("same"), "a name alone is no identifier");
        assert!(!store.is_identifier("same") && !store.is_identifier("/etc::same"));
        assert!(store.is_identifier(&identifier(&folder.path().join("a"), "same")));
    }

    #[test]
    fn without_namespaces_two_of_a_name_are_refused() {
        let (_folder, store) = repositories(&["a/same", "b/same"], false);
        assert_eq!(store.identifiers("same"), ["same"]);
        let refused = store.read("same", &LoadOptions::default()).unwrap_err();
        assert_eq!(refused, PollError::Duplicate { model: "same".to_owned() });
    }

    #[test]
    fn an_ensemble_needs_the_model_of_its_own_repository_first() {
        let (folder, store) = repositories(&["a/same", "b/same", "b/other", "a/twice", "b/twice"], true);
        let in_a = |name: &str| identifier(&folder.path().join("a"), name);
        let in_b = |name: &str| identifier(&folder.path().join("b"), name);
        assert_eq!(store.need(&in_a("ensemble"), "same"), in_a("same"));
        assert_eq!(store.need(&in_b("ensemble"), "same"), in_b("same"));
        assert_eq!(store.need(&in_a("ensemble"), "other"), in_b("other"));
        assert_eq!(store.need(&in_a("ensemble"), "nobody"), "nobody");
        assert_eq!(store.need("sent", "twice"), "twice");
    }
}
