//! Which repositories does the server have now?
//!
//! The server has the repositories of its start. A program in whose process the server runs may add and remove repositories. A model of an added
//! repository may have another name than its directory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

use nerite_request::{Code, Status};

use super::{Listing, Store, check_name, is_there};

/// Repositories, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub(super) struct Registered {
    repositories: Vec<PathBuf>,
    /// By the name of a model: its repository and its directory.
    named: BTreeMap<String, (PathBuf, PathBuf)>,
}

impl Registered {
    /// These repositories. One that is named twice, by whatever paths, counts once. Each model has the name of its directory.
    pub fn of(repositories: &[PathBuf]) -> Registered {
        let mut known: Vec<PathBuf> = Vec::new();
        for repository in repositories {
            if !known.iter().any(|known| is_same(known, repository)) {
                known.push(repository.clone());
            }
        }
        Registered { repositories: known, named: BTreeMap::new() }
    }

    /// The repositories.
    pub fn repositories(&self) -> &[PathBuf] {
        &self.repositories
    }

    /// The directories of the models of this name. A directory whose model has another name is not among them.
    pub fn directories(&self, model: &str) -> Vec<PathBuf> {
        if let Some((_, directory)) = self.named.get(model) {
            return Some(directory.clone()).filter(|path| is_there(path)).into_iter().collect();
        }
        let own = self.repositories.iter().map(|repository| repository.join(model));
        own.filter(|path| !self.is_named(path) && is_there(path)).collect()
    }

    /// Whether the model of this name has another name than its directory.
    pub fn has_name(&self, model: &str) -> bool {
        self.named.contains_key(model)
    }

    /// Gives the models their names.
    pub fn rename(&self, listing: &mut Listing) {
        listing.drop_places(|path| self.is_named(path));
        for (name, (_, directory)) in self.named.iter().filter(|(_, (_, directory))| is_there(directory)) {
            listing.put(name, directory.clone());
        }
    }

    fn is_named(&self, path: &Path) -> bool {
        self.named.values().any(|(_, directory)| directory == path)
    }
}

/// Whether both paths lead to the same directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    one == other || place(one).is_some_and(|found| Some(found) == place(other))
}

impl Store {
    /// Adds a repository. `names` has pairs of a directory in it and the name of the model there. Other models have the names of their directories.
    /// Triton's `TRITONSERVER_ServerRegisterModelRepository`, with its errors.
    pub fn register(&self, repository: &Path, names: &[(String, String)]) -> Result<(), Status> {
        let shown = repository.display();
        if !is_there(repository) {
            return Err(Status::invalid(format!("failed to register '{shown}', repository not found")));
        }
        if !names.is_empty() && self.options.namespacing {
            return Err(Status::unsupported(format!(
                "failed to register '{shown}': with model namespacing a model is called as its directory"
            )));
        }
        let mut registered = self.registered_mut();
        if registered.repositories.iter().any(|known| is_same(known, repository)) {
            let text = format!("model repository '{shown}' has already been registered");
            return Err(Status::new(Code::AlreadyExists, text));
        }
        let mut named = registered.named.clone();
        for (directory, name) in names {
            check_name(name)?;
            let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
            if directory.is_empty() || !Path::new(directory).components().all(is_inside) {
                return Err(Status::invalid(format!(
                    "failed to register '{shown}', directory '{directory}' of model '{name}' is not in it"
                )));
            }
            let place = (repository.to_owned(), repository.join(directory));
            if named.insert(name.clone(), place).is_some() {
                let text = format!("failed to register '{name}', there is a conflicting mapping for '{name}'");
                return Err(Status::new(Code::AlreadyExists, text));
            }
        }
        registered.repositories.push(repository.to_owned());
        registered.named = named;
        Ok(())
    }

    /// Removes a repository. Models that were loaded from it stay loaded.
    pub fn unregister(&self, repository: &Path) -> Result<(), Status> {
        let mut registered = self.registered_mut();
        let before = registered.repositories.len();
        registered.repositories.retain(|known| known != repository);
        if registered.repositories.len() == before {
            let shown = repository.display();
            return Err(Status::invalid(format!("failed to unregister '{shown}', repository not found")));
        }
        registered.named.retain(|_, (owner, _)| owner != repository);
        Ok(())
    }

    pub(super) fn registered(&self) -> RwLockReadGuard<'_, Registered> {
        self.registered.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn registered_mut(&self) -> RwLockWriteGuard<'_, Registered> {
        self.registered.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_request::setting::LoadOptions;

    use super::super::StoreOptions;
    use super::*;

    /// Repositories `a` and `b` below a new folder, with these models. The store has only `a` at the start.
    fn store(models: &[&str], namespacing: bool) -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        for model in models {
            let path = folder.path().join(model);
            fs::create_dir_all(path.join("1")).unwrap();
            fs::write(path.join("config.pbtxt"), "backend: \"identity\"").unwrap();
        }
        let repositories = vec![folder.path().join("a")];
        let options = StoreOptions { repositories, auto_complete: true, namespacing, ..StoreOptions::default() };
        let store = Store::open(options).unwrap();
        (folder, store)
    }

    fn names(store: &Store) -> Vec<String> {
        store.list().unwrap().models().map(|(name, _)| name.to_owned()).collect()
    }

    fn pairs(names: &[(&str, &str)]) -> Vec<(String, String)> {
        names.iter().map(|(directory, name)| ((*directory).to_owned(), (*name).to_owned())).collect()
    }

    #[track_caller]
    fn check_refused(store: &Store, repository: &Path, names: &[(&str, &str)], expect: (Code, &str)) {
        let before = self::names(store);
        let refused = store.register(repository, &pairs(names)).unwrap_err();
        assert!(refused.code == expect.0 && refused.message.contains(expect.1), "{refused:?}");
        assert_eq!(self::names(store), before, "nothing has changed");
    }

    #[test]
    fn models_come_and_go_with_their_repository() {
        let (folder, store) = store(&["a/one", "b/two"], false);
        let b = folder.path().join("b");
        assert!(store.read("two", &LoadOptions::default()).is_err() && !store.has("two"));
        store.register(&b, &[]).unwrap();
        assert_eq!(names(&store), ["one", "two"]);
        assert_eq!(store.read("two", &LoadOptions::default()).unwrap().directory.path(), b.join("two"));
        check_refused(&store, &b, &[], (Code::AlreadyExists, "has already been registered"));
        store.unregister(&b).unwrap();
        assert_eq!(names(&store), ["one"]);
        let refused = store.unregister(&b).unwrap_err();
        assert!(refused.code == Code::InvalidArg && refused.message.ends_with("repository not found"), "{refused}");
        store.unregister(&folder.path().join("a")).unwrap();
        assert_eq!(names(&store), Vec::<String>::new());
    }

    #[test]
    fn a_repository_is_one_by_whatever_paths_it_is_named() {
        let (folder, store) = store(&["a/one"], false);
        let a = folder.path().join("a");
        std::os::unix::fs::symlink(&a, folder.path().join("link")).unwrap();
        let given = [a.clone(), a.join("."), folder.path().join("link"), folder.path().join("b")];
        assert_eq!(Registered::of(&given).repositories(), [a, folder.path().join("b")]);
        check_refused(&store, &given[2], &[], (Code::AlreadyExists, "has already been registered"));
    }

    #[test]
    fn a_model_may_have_another_name_than_its_directory() {
        let (folder, store) = store(&["a/one", "b/two", "b/deep/three"], false);
        let b = folder.path().join("b");
        store.register(&b, &pairs(&[("two", "second"), ("deep/three", "third")])).unwrap();
        assert_eq!(names(&store), ["deep", "one", "second", "third"]);
        for (name, place) in [("second", "two"), ("third", "deep/three")] {
            let source = store.read(name, &LoadOptions::default()).unwrap();
            assert_eq!((source.model.as_str(), source.config.name.as_str()), (name, name));
            assert_eq!(source.directory.path(), b.join(place));
        }
        assert!(store.read("two", &LoadOptions::default()).is_err(), "its directory's name is not its name any more");
        store.unregister(&b).unwrap();
        assert_eq!(names(&store), ["one"]);
    }

    #[test]
    fn what_cannot_be_registered_changes_nothing() {
        let (folder, store) = store(&["a/one", "b/two"], false);
        let b = folder.path().join("b");
        check_refused(&store, &folder.path().join("c"), &[], (Code::InvalidArg, "', repository not found"));
        let twice = [("two", "x"), ("two", "x")];
        check_refused(&store, &b, &twice, (Code::AlreadyExists, "there is a conflicting mapping for 'x'"));
        for (directory, name) in
            [("../a/one", "x"), ("/etc", "x"), ("", "x"), ("two", ".."), ("two", "a/b"), ("two", "")]
        {
            assert!(store.register(&b, &pairs(&[(directory, name)])).is_err(), "{directory} {name}");
        }
        let (folder, spaced) = self::store(&["a/one", "b/one"], true);
        let b = folder.path().join("b");
        check_refused(&spaced, &b, &[("one", "x")], (Code::Unsupported, "with model namespacing"));
        spaced.register(&b, &[]).unwrap();
        assert_eq!(spaced.identifiers("one").len(), 2);
    }
}
