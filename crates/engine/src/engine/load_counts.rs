//! How many loads of each model have ended, and how?

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::Status;

use super::Engine;

/// The loads of one model that have ended since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadCount {
    /// The model's identifier.
    pub model: String,
    /// Loads after which the model was as requested. That includes those that found it so.
    pub successes: u64,
    /// Loads that failed or were ended.
    pub failures: u64,
}

/// The counts of all models. Models that are in no repository have none, because clients may send any number of names.
#[derive(Debug, Default)]
pub(super) struct LoadCounts(Mutex<BTreeMap<String, [u64; 2]>>);

impl LoadCounts {
    /// Counts a load that has ended.
    fn add(&self, model: &str, is_success: bool) {
        let mut counts = self.lock();
        let [successes, failures] = counts.entry(model.to_owned()).or_default();
        *(if is_success { successes } else { failures }) += 1;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, [u64; 2]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// The loads that have ended, by model.
    pub fn load_counts(&self) -> Vec<LoadCount> {
        let count = |(model, &[successes, failures]): (&String, &[u64; 2])| LoadCount {
            model: model.clone(),
            successes,
            failures,
        };
        self.load_counts.lock().iter().map(count).collect()
    }

    /// The bytes of the names of all models in [`Engine::load_counts`], and how many there are.
    pub fn load_counts_size(&self) -> (usize, usize) {
        let counts = self.load_counts.lock();
        (counts.keys().map(String::len).sum(), counts.len())
    }

    /// Forgets the loads of a model that is unloaded, if no repository has it any more.
    pub(super) fn forget_load_count(&self, model: &str) {
        if !self.store().has(model) {
            self.load_counts.lock().remove(model);
        }
    }

    /// Counts a load that has ended, if a repository has the model.
    pub(super) fn count_load(&self, model: &str, outcome: &Result<(), Status>) {
        if self.store().has(model) {
            self.load_counts.add(model, outcome.is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_has_its_own_counts() {
        let counts = LoadCounts::default();
        for (model, is_success) in [("a", true), ("b", false), ("a", true), ("a", false)] {
            counts.add(model, is_success);
        }
        let found: Vec<_> = counts.lock().iter().map(|(model, counts)| (model.clone(), *counts)).collect();
        assert_eq!(found, [("a".to_owned(), [2, 1]), ("b".to_owned(), [0, 1])]);
    }
}
