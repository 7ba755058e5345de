//! Which versions take requests at this moment?

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;

use crate::served::Served;

/// The model versions that are ready, by the identifiers of their models. It is read on every request without a lock,
/// and replaced as a whole when a model is loaded or unloaded.
#[derive(Clone, Default)]
pub struct Catalog(HashMap<Arc<str>, Vec<Arc<Served>>, RandomState>);

impl Catalog {
    /// The version of that number; the highest one without a number.
    pub fn find(&self, model: &str, version: Option<i64>) -> Option<&Arc<Served>> {
        let versions = self.0.get(model)?;
        match version {
            None => versions.last(),
            Some(version) => versions.iter().find(|served| served.version() == version),
        }
    }

    /// All versions of a model, ascending.
    pub fn versions(&self, model: &str) -> &[Arc<Served>] {
        self.0.get(model).map(Vec::as_slice).unwrap_or_default()
    }

    /// All versions of all models, by name.
    pub fn all(&self) -> Vec<Arc<Served>> {
        let mut all: Vec<_> = self.0.values().flatten().cloned().collect();
        all.sort_by(|a, b| (a.name(), a.identifier(), a.version()).cmp(&(b.name(), b.identifier(), b.version())));
        all
    }

    /// Adds a version. It replaces one of the same number.
    pub fn publish(&mut self, served: Arc<Served>) {
        let versions = self.0.entry(served.identifier().into()).or_default();
        versions.retain(|earlier| earlier.version() != served.version());
        versions.push(served);
        versions.sort_by_key(|served| served.version());
    }

    /// Replaces `before` by `after`, if the catalog has exactly that version.
    pub fn exchange(&mut self, before: &Arc<Served>, after: &Arc<Served>) {
        let places = self.0.get_mut(before.identifier()).into_iter().flatten();
        for place in places.filter(|place| Arc::ptr_eq(place, before)) {
            *place = Arc::clone(after);
        }
    }

    /// Removes exactly this version, and not one that replaced it.
    pub fn withdraw(&mut self, served: &Arc<Served>) {
        if let Some(versions) = self.0.get_mut(served.identifier()) {
            versions.retain(|one| !Arc::ptr_eq(one, served));
            if versions.is_empty() {
                self.0.remove(served.identifier());
            }
        }
    }
}
