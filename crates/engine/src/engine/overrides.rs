//! Which models keep the configuration that a load brought?
//!
//! As in Triton, a load without a configuration changes nothing at such a model while its directory is as it was. Files that a load brought are
//! replaced by the next load.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_repository::Fingerprint;
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, Status};

use super::Engine;
use super::parts::Reason;

/// The models that were last loaded with a configuration that a request brought, and what their directories were like then.
#[derive(Debug, Default)]
pub(super) struct Overrides(Mutex<HashMap<String, Fingerprint>>);

impl Overrides {
    /// Forgets a model that is unloaded.
    pub fn forget(&self, model: &str) {
        self.lock().remove(model);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Fingerprint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Loads a model that a request names, unless it keeps the configuration that it has.
    pub(super) fn load_unless_kept(
        self: &Arc<Self>,
        model: &str,
        options: &LoadOptions,
        peer: &Peer,
        reason: &Reason,
    ) -> Result<(), Status> {
        if let Some(demand) = &self.demand {
            // Such a model may be evicted, and is loaded from its directory then.
            return self.load_explicitly(demand, model, options, peer, reason);
        }
        let brings_config = options.config.is_some() && options.files.is_empty();
        let is_plain = options.config.is_none() && options.files.is_empty();
        let known = self.overrides.lock().get(model).cloned();
        let directory = if brings_config || known.is_some() { self.directory_of(model) } else { None };
        if is_plain && known.is_some() && known == directory && !self.served(model).is_empty() {
            return Ok(());
        }
        self.load_for(model, options, reason)?;
        match directory.filter(|_| brings_config) {
            Some(directory) => drop(self.overrides.lock().insert(model.to_owned(), directory)),
            None => self.overrides.forget(model),
        }
        Ok(())
    }

    /// What identifies the present state of the model's directory.
    fn directory_of(&self, model: &str) -> Option<Fingerprint> {
        self.store.read(model, &LoadOptions::default()).ok().map(|source| source.fingerprint)
    }
}
