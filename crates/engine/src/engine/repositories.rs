//! How are repositories added and removed while the server runs?

use std::path::Path;

use nerite_repository::ControlMode;
use nerite_request::Status;

use super::Engine;

/// A change of the repositories.
#[derive(Clone, Copy, Debug)]
pub enum RepositoryChange<'a> {
    /// Adds a repository, with names for some of its directories, as [`nerite_repository::Store::register`].
    Register(&'a Path, &'a [(String, String)]),
    /// Removes it, as [`nerite_repository::Store::unregister`].
    Unregister(&'a Path),
}

impl Engine {
    /// Adds or removes a repository, in control mode `explicit`.
    pub fn change_repositories(&self, change: RepositoryChange<'_>) -> Result<(), Status> {
        let (word, path) = match change {
            RepositoryChange::Register(path, _) => ("registered", path),
            RepositoryChange::Unregister(path) => ("unregistered", path),
        };
        if self.options.control != ControlMode::Explicit {
            let what = if word == "registered" { "registration" } else { "unregistration" };
            let text = format!("repository {what} is not allowed if model control mode is not EXPLICIT");
            return Err(Status::unsupported(text));
        }
        match change {
            RepositoryChange::Register(path, names) => self.store.register(path, names),
            RepositoryChange::Unregister(path) => self.store.unregister(path),
        }?;
        log::info!("Model repository {word}: {}", path.display());
        Ok(())
    }
}
