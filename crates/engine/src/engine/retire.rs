//! How does a model version end after it was unloaded?
//!
//! Its requests in flight are answered first. A model that an ensemble is made of ends after that ensemble, because the ensemble's
//! requests still need it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nerite_repository::Generation;

use crate::engine::{Engine, spawn};
use crate::served::Served;

/// The interval at which the log says who is waited for.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// The versions that are ending, each with the names of the models that it is made of.
#[derive(Debug, Default)]
pub(crate) struct Retiring {
    waiting: Mutex<HashMap<Generation, Vec<String>>>,
    ended: Condvar,
}

impl Retiring {
    /// Waits for the last of them, at most until `deadline`. Returns whether all ended in time. Logs every second how
    /// many models are left, in Triton's words.
    pub(crate) fn wait_for_all(&self, deadline: Instant) -> bool {
        let mut waiting = self.lock();
        let mut log_at = Instant::now();
        loop {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            if waiting.is_empty() || now >= log_at {
                // No calls are left: the listeners were closed before.
                log::info!(
                    "Timeout {}: Found {} live models and 0 in-flight non-inference requests",
                    left.as_secs_f64().ceil(),
                    models(&waiting)
                );
                log_at = now + LOG_EVERY;
            }
            if waiting.is_empty() || left.is_zero() {
                return waiting.is_empty();
            }
            let pause = left.min(log_at.saturating_duration_since(now));
            waiting = self.ended.wait_timeout(waiting, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for these, at most until `deadline`. Returns whether all ended in time.
    pub(crate) fn wait_for(&self, retired: &[Generation], deadline: Instant) -> bool {
        let mut waiting = self.lock();
        while retired.iter().any(|generation| waiting.contains_key(generation)) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            waiting = self.ended.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits until no other ending version is made of `generation`.
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

/// The number of models that these versions belong to.
fn models(versions: &HashMap<Generation, Vec<String>>) -> usize {
    versions.keys().map(|generation| &generation.model).collect::<HashSet<_>>().len()
}

impl Engine {
    /// The versions that have requests in flight, with their numbers, those that are ending included.
    pub fn in_flight(&self) -> Vec<(Arc<Served>, usize)> {
        let generations = self.generations();
        let all = generations.values().map(|served| (Arc::clone(served), served.in_flight()));
        let mut found: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        drop(generations);
        found.sort_by_key(|(served, _)| (served.name().to_owned(), served.version()));
        found
    }

    /// Ends these versions, each on its own thread.
    pub(crate) fn retire(self: &Arc<Self>, retire: Vec<Generation>) {
        let with_needs = retire.into_iter().map(|generation| {
            let needs = self.generation(&generation).map(|served| served.identity().needs.clone()).unwrap_or_default();
            (generation, needs)
        });
        let ordered = users_first(with_needs.collect());
        // All of them are noted before the first one ends.
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
        // The version is dropped after the lock is released, because the process of a model may take long to end.
        let gone = self.generations().remove(generation);
        drop(gone);
        self.lifecycle().drained(generation);
        if let Some(demand) = &self.demand {
            self.forget_if_gone(demand, &generation.model);
        }
        self.retiring.end(generation);
    }

    /// A version of a model that is retired and has not ended. Without a number, the highest one.
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

/// The same versions, each after all that are made of it. A single thread could end them in this order.
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
