//! How is the model of a request loaded, in control mode `demand`?
//!
//! ```text
//!  request ──► is it loaded? ── yes ──► it goes on
//!                 │ no
//!                 ▼
//!           queue of its client ──► one load at a time ──► space? ──► load ──► all requests that wait for it go on
//!                                                            └─ no: the least recently used model that may be evicted is unloaded
//! ```
//! Each client has its own queue of models. One model of each queue is loaded at a time, so a client that needs many models delays only itself.
//! [`nerite_repository::Residence`] decides which model may be evicted for which client. `eviction` carries that out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_repository::Residence;
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, Status};

use super::parts::Reason;
use super::{Engine, spawn};
use crate::limits::{ADMISSION_HOLD_US_MAX, DEMANDS_PER_PEER_MAX, LEAVE_PATIENCE};
use crate::timer::now_us;

type Done = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// The models that are loaded, the clients that use them, and the requests that wait for a model.
pub(crate) struct Demand {
    residence: Mutex<Residence<Peer>>,
    /// Notified when a model was unloaded, and when a request stops waiting.
    pub(crate) changed: Condvar,
    queue: Mutex<Queue>,
    loads: AtomicU64,
    evictions: AtomicU64,
}

#[derive(Default)]
struct Queue {
    last: u64,
    waiters: HashMap<String, Vec<Waiter>>,
    per_peer: HashMap<Peer, usize>,
    lines: HashMap<Peer, VecDeque<String>>,
    /// Clients whose queue has a thread that loads its models.
    served: HashSet<Peer>,
    loading: HashSet<String>,
    /// For each model, the requests that hold it: they were notified that it is loaded, and are not admitted to it yet. By number, with the time
    /// until which each holds it at most.
    admitting: HashMap<String, HashMap<u64, u64>>,
    /// Models that are being unloaded to free space for others.
    evicting: HashSet<String>,
    /// Models that clients are loading by name now, and the number of such loads of each.
    explicit: HashMap<String, usize>,
    /// The parts of ensembles that are being loaded and whose space is reserved, and for each part the number of such ensembles.
    parts: HashMap<String, usize>,
    /// `Some` once no request may wait any more: the error that such requests get.
    refusal: Option<Status>,
}

struct Waiter {
    number: u64,
    peer: Peer,
    done: Done,
    /// Whether it holds the model after the load ([`Waiting::hold`]).
    holds: bool,
}

/// A model that is to be loaded, and all models that it is made of, directly or through others, each with the bytes of its files.
pub(crate) struct ModelWithParts {
    pub(crate) model: String,
    pub(crate) bytes: u64,
    pub(crate) parts: BTreeMap<String, u64>,
}

/// A request that waits for its model. It stops waiting when this is dropped.
pub struct Waiting {
    demand: Arc<Demand>,
    model: String,
    number: u64,
}

/// What the metrics show of control mode `demand`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandCounts {
    /// Models that are loaded.
    pub models: usize,
    /// The bytes of their files, or of their memory where more was measured.
    pub bytes: u64,
    /// Models that were loaded for requests, including the models that an ensemble is made of.
    pub loads: u64,
    /// Models that were evicted.
    pub evictions: u64,
    /// Requests that wait for a model.
    pub waiting: usize,
}

impl Demand {
    pub(crate) fn new(bytes_max: Option<u64>) -> Arc<Demand> {
        Arc::new(Demand {
            residence: Mutex::new(Residence::new(bytes_max)),
            changed: Condvar::new(),
            queue: Mutex::default(),
            loads: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        })
    }

    pub(crate) fn counts(&self) -> DemandCounts {
        let waiting = self.queue().per_peer.values().sum();
        let residence = self.residence();
        DemandCounts {
            models: residence.count(),
            bytes: residence.bytes(),
            loads: self.loads.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
            waiting,
        }
    }

    /// Notes that a model was loaded, for whatever reason.
    pub(crate) fn loaded(&self, model: &str, bytes: u64, is_pinned: bool) {
        self.residence().loaded(model, bytes, is_pinned, now_us());
    }

    pub(crate) fn is_loading(&self, model: &str) -> bool {
        self.queue().is_loading(model)
    }

    /// Whether the model may not be evicted: it is being loaded, it was loaded for requests that are not admitted to it yet, or it is being evicted
    /// already.
    pub(crate) fn is_kept(&self, model: &str, now_us: u64) -> bool {
        let queue = self.queue();
        queue.is_loading(model) || queue.is_held(model, now_us) || queue.evicting.contains(model)
    }

    /// The models that are being loaded, or were loaded for requests that are not admitted to them yet.
    pub(crate) fn needed(&self, now_us: u64) -> Vec<String> {
        let queue = self.queue();
        let held = queue.admitting.keys().filter(|model| queue.is_held(model, now_us));
        queue.loading.iter().chain(queue.explicit.keys()).chain(held).cloned().collect()
    }

    /// Reserves space for a model and its parts. The parts are not evicted until [`Demand::parts_end`]. Call this while the residence is locked.
    pub(crate) fn reserve(&self, residence: &mut Residence<Peer>, whole: &ModelWithParts, now_us: u64) {
        residence.loaded(&whole.model, whole.bytes, false, now_us);
        let mut queue = self.queue();
        for (part, bytes) in &whole.parts {
            if !residence.knows(part) {
                residence.loaded(part, *bytes, false, now_us);
            }
            *queue.parts.entry(part.clone()).or_default() += 1;
        }
    }

    /// Call this when the model was loaded, or its load has failed.
    pub(crate) fn parts_end(&self, whole: &ModelWithParts) {
        let mut queue = self.queue();
        whole.parts.keys().for_each(|part| count_down(&mut queue.parts, part));
        drop(queue);
        self.changed.notify_all();
    }

    /// Notes that a model was chosen for eviction. Call this while the residence is locked, and [`Demand::eviction_ends`] once it takes no more
    /// requests.
    pub(crate) fn eviction_begins(&self, model: &str) {
        self.queue().evicting.insert(model.to_owned());
    }

    pub(crate) fn eviction_ends(&self, model: &str) {
        self.queue().evicting.remove(model);
        self.changed.notify_all();
    }

    /// Waits until a model that was chosen for eviction takes no more requests. Until then it looks as if it were loaded.
    pub(crate) fn await_eviction(&self, model: &str) {
        let mut residence = self.residence();
        while self.queue().evicting.contains(model) {
            let waited = self.changed.wait_timeout(residence, LEAVE_PATIENCE);
            residence = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether a client is loading the model by name now.
    pub(crate) fn is_loading_explicitly(&self, model: &str) -> bool {
        self.queue().explicit.contains_key(model)
    }

    fn explicit_begins(&self, model: &str) {
        *self.queue().explicit.entry(model.to_owned()).or_default() += 1;
    }

    fn explicit_ends(&self, model: &str) {
        count_down(&mut self.queue().explicit, model);
    }

    /// Queues a request. Returns its number, and whether the caller must start a thread for the client's queue.
    fn line_up(&self, model: &str, peer: &Peer, holds: bool, done: Done) -> Result<(u64, bool), Status> {
        let mut queue = self.queue();
        if let Some(refusal) = &queue.refusal {
            return Err(refusal.clone());
        }
        let waiting = queue.per_peer.entry(peer.clone()).or_default();
        if *waiting >= DEMANDS_PER_PEER_MAX {
            return Err(Status::unavailable(format!(
                "model '{model}' is not loaded, and {waiting} requests of this client wait for models already; at most \
                 {DEMANDS_PER_PEER_MAX} may"
            )));
        }
        *waiting += 1;
        queue.last += 1;
        let number = queue.last;
        let waiter = Waiter { number, peer: peer.clone(), done, holds };
        queue.waiters.entry(model.to_owned()).or_default().push(waiter);
        let line = queue.lines.entry(peer.clone()).or_default();
        if !line.iter().any(|other| other == model) {
            line.push_back(model.to_owned());
        }
        Ok((number, queue.served.insert(peer.clone())))
    }

    /// The next model of a client's queue that a request waits for. A model that is being loaded for another client is skipped, because that load
    /// serves all clients.
    fn next_in_line(&self, peer: &Peer) -> Option<String> {
        let mut queue = self.queue();
        while let Some(model) = queue.lines.get_mut(peer).and_then(VecDeque::pop_front) {
            if queue.waiters.contains_key(&model) && queue.loading.insert(model.clone()) {
                return Some(model);
            }
        }
        queue.lines.remove(peer);
        queue.served.remove(peer);
        None
    }

    /// Notes that the load of a model has ended, and notifies all requests that wait for it. The model is not evicted until those that hold it are
    /// admitted.
    fn finish(&self, model: &str, outcome: &Result<(), Status>) {
        let mut queue = self.queue();
        queue.loading.remove(model);
        let waiters = queue.waiters.remove(model).unwrap_or_default();
        let until_us = now_us() + ADMISSION_HOLD_US_MAX;
        for waiter in waiters.iter().filter(|waiter| waiter.holds && outcome.is_ok()) {
            queue.admitting.entry(model.to_owned()).or_default().insert(waiter.number, until_us);
        }
        for waiter in &waiters {
            queue.leave(&waiter.peer);
        }
        drop(queue);
        for waiter in waiters {
            (waiter.done)(outcome.clone());
        }
    }

    /// Refuses all requests that wait, and all later ones that would have to wait. Loads that have begun are completed.
    fn refuse_all(&self, refusal: &Status) {
        let mut queue = self.queue();
        queue.refusal = Some(refusal.clone());
        let waiters: Vec<Waiter> = queue.waiters.drain().flat_map(|(_, waiters)| waiters).collect();
        queue.lines.clear();
        queue.per_peer.clear();
        drop(queue);
        // Loads that wait for space are woken, because no request waits for their models any more.
        self.changed.notify_all();
        for waiter in waiters {
            (waiter.done)(Err(refusal.clone()));
        }
    }

    /// Fails all requests of a client's queue, because there is no thread to load their models.
    fn give_up(&self, peer: &Peer, error: &std::io::Error) {
        let text = format!("no thread to load models: {error}; raise the limit on threads");
        log::error!("{text}");
        while let Some(model) = self.next_in_line(peer) {
            self.finish(&model, &Err(Status::unavailable(text.clone())));
        }
    }

    /// The clients that wait for a model.
    pub(crate) fn waiting_peers(&self, model: &str) -> BTreeSet<Peer> {
        let queue = self.queue();
        queue.waiters.get(model).into_iter().flatten().map(|waiter| waiter.peer.clone()).collect()
    }

    /// Counts a load if `is_demand`: a request needed the model, or an ensemble that the model is part of.
    pub(crate) fn count_load(&self, is_demand: bool) {
        self.loads.fetch_add(u64::from(is_demand), Ordering::Relaxed);
    }

    pub(crate) fn count_eviction(&self) {
        self.evictions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn residence(&self) -> MutexGuard<'_, Residence<Peer>> {
        self.residence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn is_loading(&self, model: &str) -> bool {
        self.loading.contains(model) || self.explicit.contains_key(model) || self.parts.contains_key(model)
    }

    /// Whether the model was loaded for requests that are not admitted to it yet.
    fn is_held(&self, model: &str, now_us: u64) -> bool {
        self.admitting.get(model).is_some_and(|requests| requests.values().any(|until_us| now_us < *until_us))
    }

    fn leave(&mut self, peer: &Peer) {
        if let Some(waiting) = self.per_peer.get_mut(peer) {
            *waiting -= 1;
            if *waiting == 0 {
                self.per_peer.remove(peer);
            }
        }
    }

    /// Forgets a request that waits. False if it does not wait.
    fn stop_waiting(&mut self, model: &str, number: u64) -> bool {
        let Some(waiters) = self.waiters.get_mut(model) else { return false };
        let Some(at) = waiters.iter().position(|waiter| waiter.number == number) else { return false };
        let waiter = waiters.remove(at);
        if waiters.is_empty() {
            self.waiters.remove(model);
        }
        self.leave(&waiter.peer);
        true
    }

    /// Notes that a request was admitted to the model that was loaded for it, or has gone. False if it did not hold the model.
    fn admitted(&mut self, model: &str, number: u64) -> bool {
        let Some(requests) = self.admitting.get_mut(model) else { return false };
        let held = requests.remove(&number).is_some();
        if requests.is_empty() {
            self.admitting.remove(model);
        }
        held
    }
}

fn count_down(counts: &mut HashMap<String, usize>, model: &str) {
    if let Some(count) = counts.get_mut(model) {
        *count -= 1;
        if *count == 0 {
            counts.remove(model);
        }
    }
}

impl Waiting {
    /// Keeps the model loaded from the end of the load until this is dropped, for a second at most. Call it only if the request is admitted as soon
    /// as it is notified, because others may wait for the model's space meanwhile. If the load has ended, this does nothing.
    pub fn hold(&self) {
        let mut queue = self.demand.queue();
        let waiters = queue.waiters.get_mut(&self.model).into_iter().flatten();
        waiters.filter(|waiter| waiter.number == self.number).for_each(|waiter| waiter.holds = true);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queue = self.demand.queue();
        if !queue.stop_waiting(&self.model, self.number) && !queue.admitted(&self.model, self.number) {
            return;
        }
        drop(queue);
        self.demand.changed.notify_all();
    }
}

impl Engine {
    /// Whether requests load their models.
    pub fn is_on_demand(&self) -> bool {
        self.demand.is_some()
    }

    /// Whether a request would load this model: it is in a repository, and not loaded.
    pub fn is_loadable(&self, model: &str) -> bool {
        self.is_on_demand() && self.served(model).is_empty() && self.store().has(model)
    }

    /// Notes that a client uses a model, and with it the models that it is made of.
    pub fn note_use(&self, model: &str, peer: &Peer) {
        let Some(demand) = &self.demand else { return };
        let parts = self.parts_of(model);
        let (mut residence, now_us) = (demand.residence(), now_us());
        for used in std::iter::once(model).chain(parts.iter().map(String::as_str)) {
            residence.used(used, peer, now_us);
        }
    }

    /// Notes that another model uses this one.
    pub(crate) fn note_nested_use(&self, model: &str) {
        if let Some(demand) = &self.demand {
            demand.residence().touched(model, now_us());
        }
    }

    /// The numbers of control mode `demand` for the metrics. `None` in other modes.
    pub fn demand_counts(&self) -> Option<DemandCounts> {
        self.demand.as_ref().map(|demand| demand.counts())
    }

    /// Loads a model for a client's request, then calls `done`. The request waits until the returned value is dropped. `holds` says whether it holds
    /// the model as [`Waiting::hold`] does. Err: too many requests wait.
    pub fn demand(
        self: &Arc<Self>,
        model: &str,
        peer: &Peer,
        holds: bool,
        done: impl FnOnce(Result<(), Status>) + Send + 'static,
    ) -> Result<Waiting, Status> {
        let demand = self.demand.as_ref().ok_or_else(|| Status::internal("no model is loaded by its requests"))?;
        let (number, begins) = demand.line_up(model, peer, holds, Box::new(done))?;
        let waiting = Waiting { demand: Arc::clone(demand), model: model.to_owned(), number };
        if begins {
            let peer_of_line = peer;
            let (engine, demand, peer) = (Arc::clone(self), Arc::clone(demand), peer.clone());
            let started = spawn("nerite-demand", move || {
                while let Some(model) = demand.next_in_line(&peer) {
                    engine.load_on_demand(&demand, &model, &peer, |outcome| demand.finish(&model, outcome));
                }
            });
            if let Err(error) = started {
                waiting.demand.give_up(peer_of_line, &error);
            }
        }
        Ok(waiting)
    }

    /// Refuses requests that wait for a model, now and from now on, because the server stops.
    pub fn refuse_waiting(&self, refusal: &Status) {
        if let Some(demand) = &self.demand {
            demand.refuse_all(refusal);
        }
    }

    /// Loads a model that a client names. It first waits for space, as the load for a request does. A model with a configuration or files of the
    /// client is not evicted.
    pub(super) fn load_explicitly(
        self: &Arc<Self>,
        demand: &Demand,
        model: &str,
        options: &LoadOptions,
        peer: &Peer,
        reason: &Reason,
    ) -> Result<(), Status> {
        let whole = self.with_parts(model, options)?;
        demand.explicit_begins(model);
        let outcome = self.load_with_room(demand, &whole, peer, || self.load_for(model, options, reason), |_| ());
        demand.explicit_ends(model);
        self.forget_if_gone(demand, model);
        if outcome.is_ok() && *peer != Peer::Unknown {
            self.note_use(model, peer);
        }
        outcome
    }

    /// Loads a model for the requests that wait for it. `finish` reports the outcome to them.
    fn load_on_demand(
        self: &Arc<Self>,
        demand: &Demand,
        model: &str,
        peer: &Peer,
        finish: impl FnOnce(&Result<(), Status>),
    ) {
        demand.await_eviction(model);
        if self.served(model).is_empty() {
            let load = || {
                self.load_for(model, &LoadOptions::default(), &Reason::demanded(peer))?;
                self.note_use(model, peer);
                Ok(())
            };
            match self.with_parts(model, &LoadOptions::default()) {
                // `finish` has reported an error to the requests.
                Ok(whole) => drop(self.load_with_room(demand, &whole, peer, load, finish)),
                Err(error) => finish(&Err(error)),
            }
        } else {
            finish(&Ok(()));
        }
        // The load may have failed after its space was reserved, or the model may have been unloaded meanwhile.
        self.forget_if_gone(demand, model);
    }
}

#[cfg(test)]
mod tests;
