//! Which model does a name mean, where models of several repositories may have it?
//!
//! With `--model-namespacing` the catalog and the lifecycle know models by their identifiers. A client gives a name. It means the one model of that
//! name that was loaded. If several were, the request is refused, as by Triton. A client may give the identifier itself, which Triton's clients
//! cannot.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use nerite_repository::{Lifecycle, Store, phrase};
use nerite_request::Status;
use nerite_request::setting::LoadOptions;

use super::Engine;

/// The identifiers of the loaded models, by name. Empty for a name whose models were all unloaded. Readers take no lock: the map is replaced as a
/// whole when a model is loaded or unloaded.
#[derive(Default)]
pub(crate) struct Namespaces(ArcSwap<HashMap<String, Vec<String>>>);

impl Namespaces {
    /// Replaces the names by those of the lifecycle.
    pub(super) fn note(&self, store: &Store, lifecycle: &Lifecycle) {
        let mut names: HashMap<String, Vec<String>> = HashMap::new();
        for (identifier, is_present) in lifecycle.requested() {
            let of_name = names.entry(store.name_of(identifier).to_owned()).or_default();
            of_name.extend(is_present.then(|| identifier.to_owned()));
        }
        self.0.store(Arc::new(names));
    }

    /// The identifiers of all models of that name.
    fn of(&self, name: &str) -> Vec<String> {
        self.0.load().get(name).cloned().unwrap_or_default()
    }
}

impl Engine {
    /// The identifier of the model that a client names. Err: several models have the name, or all of that name were unloaded.
    pub(crate) fn identifier<'a>(&self, model: &'a str) -> Result<Cow<'a, str>, Status> {
        let Some(namespaces) = &self.namespaces else { return Ok(Cow::Borrowed(model)) };
        let known = namespaces.0.load();
        match known.get(model).map(Vec::as_slice) {
            None => Ok(Cow::Borrowed(model)),
            Some([]) => Err(phrase::no_identifier(model)),
            Some([one]) => Ok(Cow::Owned(one.clone())),
            Some(several) => Err(phrase::ambiguous(model, several.len())),
        }
    }

    /// Whether this names a repository and a model of it, as it may with `--model-namespacing`.
    pub fn is_identifier(&self, text: &str) -> bool {
        self.store.is_identifier(text)
    }

    /// Whether a repository has a directory for a model of this name. Reads the file system.
    pub fn has_directory(&self, model: &str) -> bool {
        self.store.has_directory(model)
    }

    /// Replaces the names by those of the lifecycle. Call this when the lifecycle has changed, with its lock held.
    pub(super) fn note_names(&self, lifecycle: &Lifecycle) {
        if let Some(namespaces) = &self.namespaces {
            namespaces.note(&self.store, lifecycle);
        }
    }

    /// The identifiers of the models that a load of that name loads: all models of the name. If no repository has one, the name itself is returned,
    /// and its load fails.
    pub(super) fn to_load(&self, model: &str, options: &LoadOptions) -> Vec<String> {
        let found = if options.files.is_empty() { self.store.identifiers(model) } else { Vec::new() };
        if found.is_empty() { vec![model.to_owned()] } else { found }
    }

    /// The identifiers of the models that an unload of that name unloads: all of that name that were loaded.
    pub(super) fn to_unload(&self, model: &str) -> Vec<String> {
        let found = self.namespaces.as_ref().map(|namespaces| namespaces.of(model)).unwrap_or_default();
        if found.is_empty() { vec![model.to_owned()] } else { found }
    }
}

/// Does `work` for each of these models, also after an error. Returns the errors as one.
pub(super) fn each(models: &[String], mut work: impl FnMut(&str) -> Result<(), Status>) -> Result<(), Status> {
    let mut failed: Option<Status> = None;
    for model in models {
        if let Err(error) = work(model) {
            failed = Some(match failed {
                None => error,
                Some(first) => Status { message: first.message + &error.message, ..first },
            });
        }
    }
    failed.map_or(Ok(()), Err)
}
