//! How does a model version end that takes no more requests of clients?
//!
//! Its requests in flight are answered first. A model that an ensemble is made of ends after that ensemble, because the ensemble's
//! requests still need it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nerite_repository::Generation;

use crate::engine::{Engine, spawn};
use crate::served::Served;

/// The versions that are ending, each with the names of the models that it is made of.
#[derive(Debug, Default)]
pub(crate) struct Retiring {
    waiting: Mutex<HashMap<Generation, Vec<String>>>,
    ended: Condvar,
}

impl Retiring {
    /// Waits for the last of them, at most until `deadline`. Whether all ended in time.
    pub(crate) fn wait_for_all(&self, deadline: Instant) -> bool {
        let mut waiting = self.lock();
        while !waiting.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| *left > Duration::ZERO)
            else {
                return false;
            };
            waiting = self.ended.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits until no other version that is ending is made of `generation`.
    fn wait_for_users(&self, generation: &Generation) {
        let mut waiting = self.lock();
        while waiting.iter().any(|(other, needs)| other != generation && is_among(needs, generation)) {
            waiting = self.ended.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn begin(&self, generation: &Generation, needs: Vec<String>) {
        self.lock().insert(generation.clone(), needs);
    }

    fn end(&self, generation: &Generation) {
        self.lock().remove(generation);
        self.ended.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Generation, Vec<String>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Ends these versions, each on a thread of its own.
    pub(crate) fn retire(self: &Arc<Self>, retire: Vec<Generation>) {
        let with_needs = retire.into_iter().map(|generation| {
            let needs = self.generation(&generation).map(|served| served.identity().needs.clone()).unwrap_or_default();
            (generation, needs)
        });
        let ordered = users_first(with_needs.collect());
        // All of them are known before one ends.
        for (generation, needs) in &ordered {
            self.retiring.begin(generation, needs.clone());
        }
        for (generation, _) in ordered {
            let (engine, apart) = (Arc::clone(self), generation.clone());
            if let Err(error) = spawn("nerite-retire", move || engine.drain(&apart)) {
                log::warn!("no thread to unload '{}': {error}; waiting for its last request here", generation.model);
                self.drain(&generation);
            }
        }
    }

    fn drain(&self, generation: &Generation) {
        self.retiring.wait_for_users(generation);
        if let Some(served) = self.generation(generation) {
            served.retire();
            log::info!("successfully unloaded '{}' version {}", generation.model, generation.version);
        }
        // The version goes after the lock does: a model's process may take its time to end.
        let gone = self.generations().remove(generation);
        drop(gone);
        self.lifecycle().drained(generation);
        if let Some(demand) = &self.demand {
            self.forget_if_gone(demand, &generation.model);
        }
        self.retiring.end(generation);
    }

    /// A version of a model that takes no more requests of clients but has not ended; without a number the highest.
    pub(crate) fn leaving(&self, model: &str, version: Option<i64>) -> Option<Arc<Served>> {
        let generations = self.generations();
        let of_model = generations.iter().filter(|(generation, _)| {
            *generation.model == *model && version.is_none_or(|version| version == generation.version)
        });
        of_model.max_by_key(|(generation, _)| generation.version).map(|(_, served)| Arc::clone(served))
    }
}

fn is_among(needs: &[String], generation: &Generation) -> bool {
    needs.iter().any(|need| **need == *generation.model)
}

/// The same, each after all that are made of it: one thread alone could end them in this order.
fn users_first(list: Vec<(Generation, Vec<String>)>) -> Vec<(Generation, Vec<String>)> {
    let (mut ensembles, plain): (Vec<_>, Vec<_>) = list.into_iter().partition(|(_, needs)| !needs.is_empty());
    let mut ordered = Vec::with_capacity(ensembles.len() + plain.len());
    while !ensembles.is_empty() {
        let is_needed = |at: usize| {
            ensembles.iter().enumerate().any(|(n, (_, needs))| n != at && is_among(needs, &ensembles[at].0))
        };
        // Ensembles that need each other are never loaded.
        let next = (0..ensembles.len()).find(|at| !is_needed(*at)).unwrap_or_default();
        ordered.push(ensembles.remove(next));
    }
    ordered.extend(plain);
    ordered
}
