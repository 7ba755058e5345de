//! Which parts are loaded with a model in control mode `demand`, and how are they kept until the model is loaded?

use std::collections::BTreeMap;
use std::sync::Arc;

use nerite_repository::ModelSource;
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, Status};

use super::Engine;
use super::demand::{Demand, ModelWithParts};

impl Engine {
    /// Waits for space, then loads a model and its parts by `load`, and passes the outcome to `finish`. The parts are not evicted before `finish` has
    /// returned.
    pub(super) fn load_with_room(
        self: &Arc<Self>,
        demand: &Demand,
        whole: &ModelWithParts,
        peer: &Peer,
        load: impl FnOnce() -> Result<(), Status>,
        finish: impl FnOnce(&Result<(), Status>),
    ) -> Result<(), Status> {
        if let Err(error) = self.make_room(demand, whole, peer) {
            finish(&Err(error.clone()));
            return Err(error);
        }
        // A part that was chosen for eviction earlier still looks as if it were loaded.
        whole.parts.keys().for_each(|part| demand.await_eviction(part));
        let outcome = load();
        finish(&outcome);
        demand.parts_end(whole);
        whole.parts.keys().for_each(|part| self.forget_if_gone(demand, part));
        outcome
    }

    /// A model and its parts, as a load with these options reads them.
    pub(super) fn with_parts(&self, model: &str, options: &LoadOptions) -> Result<ModelWithParts, Status> {
        let source = self.read(model, options)?;
        let mut parts = BTreeMap::new();
        self.collect_with_parts(&source, &mut parts);
        parts.remove(model);
        Ok(ModelWithParts { model: model.to_owned(), bytes: source.bytes(), parts })
    }

    /// Adds the parts of a model, and their parts. If a part cannot be read, the load fails later.
    fn collect_with_parts(&self, source: &ModelSource, parts: &mut BTreeMap<String, u64>) {
        for part in source.needs() {
            if parts.contains_key(&part) {
                continue;
            }
            let read = self.store().read(&part, &LoadOptions::default()).ok();
            parts.insert(part, read.as_ref().map_or(0, ModelSource::bytes));
            if let Some(source) = read {
                self.collect_with_parts(&source, parts);
            }
        }
    }
}
