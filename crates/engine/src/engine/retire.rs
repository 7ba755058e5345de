//! How does a model version end after it was unloaded?
//!
//! Its requests in flight are answered first. A model that an ensemble is made of ends after that ensemble, because the ensemble's
//! requests still need it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nerite_repository::Generation;

use crate::engine::{Engine, spawn};
use crate::served::Served;

/// The interval at which it is logged which versions are waited for.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// The most versions that are logged each time.
const LOGGED_MAX: usize = 10;

/// The versions that are ending, each with the names of the models that it is made of.
#[derive(Debug, Default)]
pub(crate) struct Retiring {
    waiting: Mutex<HashMap<Generation, Vec<String>>>,
    ended: Condvar,
}

impl Retiring {
    /// Waits until all of them have ended, at most until `deadline`. Returns whether all ended in time. Logs every second how many models are left,
    /// in Triton's words, and from the second time on calls `log_who`.
    fn wait_for_all(&self, deadline: Instant, log_who: impl Fn()) -> bool {
        let mut waiting = self.lock();
        let begun = Instant::now();
        let mut log_at = begun;
        loop {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            if waiting.is_empty() || now >= log_at {
                // No other requests are in flight, because the listeners were closed before.
                log::info!(
                    "Timeout {}: Found {} live models and 0 in-flight non-inference requests",
                    left.as_secs_f64().ceil(),
                    models(&waiting)
                );
                if log_at > begun && !waiting.is_empty() {
                    drop(waiting);
                    log_who();
                    waiting = self.lock();
                }
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

/// A version of a model that has not ended yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unended {
    /// The name of the model.
    pub model: String,
    /// The version.
    pub version: i64,
    /// Its requests in flight. If it has none, its instances are ending.
    pub in_flight: usize,
}

impl fmt::Display for Unended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unended { model, version, in_flight } = self;
        write!(f, "'{model}' (version {version}) ")?;
        match in_flight {
            0 => f.write_str("whose instances have not ended"),
            count => write!(f, "with {count} in-flight inferences"),
        }
    }
}

impl Engine {
    /// Waits for the versions that are ending, at most until `deadline`. Returns whether all ended in time.
    pub(crate) fn wait_for_retired(&self, deadline: Instant) -> bool {
        self.retiring.wait_for_all(deadline, || {
            for one in self.unended().iter().take(LOGGED_MAX) {
                log::info!("waiting for model {one}");
            }
        })
    }

    /// The versions that the server waits for when it stops: those that are ending, and those that have requests in flight.
    pub fn unended(&self) -> Vec<Unended> {
        let retiring: Vec<Generation> = self.retiring.lock().keys().cloned().collect();
        let of = |generation: Generation| {
            let in_flight = self.generation(&generation).map_or(0, |served| served.in_flight());
            Unended { model: generation.model.to_string(), version: generation.version, in_flight }
        };
        let busy = self.in_flight().into_iter().map(|(served, in_flight)| Unended {
            model: served.name().to_owned(),
            version: served.version(),
            in_flight,
        });
        let mut all: Vec<Unended> = retiring.into_iter().map(of).chain(busy).collect();
        all.sort();
        all.dedup_by(|one, other| (&one.model, one.version) == (&other.model, other.version));
        all
    }

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
        // All of them are noted before the first one ends, so that each waits for those that are made of it.
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

/// The same versions, each after all that are made of it. So even a single thread can end them in this order.
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
