//! Which changes of a model need no reload, and what happens if its files change during a load?

use std::sync::Arc;

use nerite_repository::{Generation, ModelSource};
use nerite_request::Status;
use nerite_request::setting::LoadOptions;

use super::Engine;
use super::parts::Reason;
use crate::catalog::Catalog;
use crate::limits::CHANGED_LOADS_MAX;

impl Engine {
    /// Gives generations that stay loaded the instances that their model's configuration has now. They serve requests meanwhile.
    pub(super) fn resize(
        &self,
        source: &ModelSource,
        generations: &[Generation],
        reason: &Reason,
    ) -> Result<(), Status> {
        for generation in generations {
            let Some(served) = self.generation(generation) else { continue };
            let progress = self.load_begins(source, generation.version, reason);
            let sender = reason.peer().filter(|_| source.overridden);
            let resized = self.loader.resize(&served, source, sender, &progress);
            let ended = |error| progress.ending().check(&source.identifier).err().unwrap_or(error);
            let resized = resized.map_err(ended).inspect_err(|error| {
                self.note_failure(&source.identifier, &error.message);
                let model = &source.model;
                log::error!("failed to change the instances of '{model}' version {}: {error}", generation.version);
            })?;
            let resized = Arc::new(resized);
            // The lock is held so that no other thread withdraws the generation in between.
            let _lifecycle = self.lifecycle();
            let mut generations = self.generations();
            let Some(known) = generations.get_mut(generation) else { continue };
            *known = Arc::clone(&resized);
            drop(generations);
            self.catalog.rcu(|catalog| {
                let mut next = Catalog::clone(catalog);
                next.exchange(&served, &resized);
                next
            });
        }
        if !generations.is_empty() {
            self.lifecycle().resized(&source.identifier, source.fingerprint.served);
        }
        Ok(())
    }

    /// Returns when the instances that loads removed from a model are gone, after their runs. Instances that still have sequences are not waited for. The
    /// caller holds no turn, because such a run may itself load the model.
    pub(super) fn wait_for_removed(&self, model: &str) {
        self.served(model).iter().for_each(|served| served.wait_for_removed());
    }

    /// Refuses a load if the files have changed since its source was read. The loaded model could be a mix of both.
    pub(super) fn check_unchanged(&self, source: &ModelSource, reason: &Reason) -> Result<(), Status> {
        if !is_of_files(source, reason) || self.is_current(source) {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "the files of model '{}' changed while it was loaded; load it again once they are complete",
            source.model
        )))
    }

    fn is_current(&self, source: &ModelSource) -> bool {
        let now = self.store().read(&source.identifier, &LoadOptions::default());
        let states_count = self.loader.leaves_files_unchanged(source);
        now.is_ok_and(|now| {
            now.fingerprint == source.fingerprint && (!states_count || now.file_states == source.file_states)
        })
    }

    /// Loads a model from its files. If they change meanwhile, it is loaded again, a limited number of times.
    pub(super) fn load_as_it_is(
        self: &Arc<Self>,
        model: &str,
        options: &LoadOptions,
        mut source: ModelSource,
        reason: &Reason,
    ) -> Result<(), Status> {
        for _ in 1..CHANGED_LOADS_MAX {
            let outcome = self.load_noted(model, &source, reason);
            if outcome.is_ok() || !is_of_files(&source, reason) || self.is_current(&source) {
                return outcome;
            }
            log::warn!("the files of model '{model}' changed while it was loaded; loading it again");
            source = self.read(model, options)?;
        }
        self.load_noted(model, &source, reason)
    }
}

/// Whether a load takes the model's files as they are now. A configuration that came with a request replaces them. An ensemble that is loaded again
/// because a part of it changed keeps the configuration that it has, because a load of later edits was not requested.
fn is_of_files(source: &ModelSource, reason: &Reason) -> bool {
    !source.overridden && !reason.is_changed_part()
}
