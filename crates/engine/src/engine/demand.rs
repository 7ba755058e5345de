//! How is the model of a request loaded, in control mode `demand`?
//!
//! ```text
//!  request ──► is it loaded? ── yes ──► it goes on
//!                 │ no
//!                 ▼
//!           queue of its client ──► one load at a time ──► space? ──► load ──► all requests that wait for it go on
//!                                                            └─ no: the least recently used model that may be evicted is unloaded
//! ```
//! Each client has its own queue of models. One model of each queue is loaded at a time, so a client that asks for many models delays only itself.
//! [`nerite_repository::Residence`] decides which model may be evicted for which client. `eviction` carries that out.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_repository::Residence;
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, Status};

use super::parts::Reason;
use super::{Engine, spawn};
use crate::limits::DEMANDS_PER_PEER_MAX;
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
    /// Models that clients are loading by name now, and the number of such loads of each.
    explicit: HashMap<String, usize>,
    /// `Some` once no request may wait any more: the error that such requests get.
    refusal: Option<Status>,
}

struct Waiter {
    number: u64,
    peer: Peer,
    done: Done,
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
    /// The bytes of their files.
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
        let queue = self.queue();
        queue.loading.contains(model) || queue.explicit.contains_key(model)
    }

    /// Whether a client is loading the model by name now.
    pub(crate) fn is_loading_explicitly(&self, model: &str) -> bool {
        self.queue().explicit.contains_key(model)
    }

    fn explicit_begins(&self, model: &str) {
        *self.queue().explicit.entry(model.to_owned()).or_default() += 1;
    }

    fn explicit_ends(&self, model: &str) {
        let mut queue = self.queue();
        if let Some(count) = queue.explicit.get_mut(model) {
            *count -= 1;
            if *count == 0 {
                queue.explicit.remove(model);
            }
        }
    }

    /// Queues a request. Returns its number, and whether the caller must start a thread for the client's queue.
    fn line_up(&self, model: &str, peer: &Peer, done: Done) -> Result<(u64, bool), Status> {
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
        let waiter = Waiter { number, peer: peer.clone(), done };
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

    /// Ends the load of a model, and calls all requests that wait for it.
    fn finish(&self, model: &str, outcome: &Result<(), Status>) {
        let mut queue = self.queue();
        queue.loading.remove(model);
        let waiters = queue.waiters.remove(model).unwrap_or_default();
        for waiter in &waiters {
            queue.leave(&waiter.peer);
        }
        drop(queue);
        for waiter in waiters {
            (waiter.done)(outcome.clone());
        }
    }

    /// Refuses all requests that wait, and all that would from now on. Loads that have begun end by themselves.
    fn refuse_all(&self, refusal: &Status) {
        let mut queue = self.queue();
        queue.refusal = Some(refusal.clone());
        let waiters: Vec<Waiter> = queue.waiters.drain().flat_map(|(_, waiters)| waiters).collect();
        queue.lines.clear();
        queue.per_peer.clear();
        drop(queue);
        // A load that waits for space finds that nobody waits for its model.
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
    pub(crate) fn askers(&self, model: &str) -> BTreeSet<Peer> {
        let queue = self.queue();
        queue.waiters.get(model).into_iter().flatten().map(|waiter| waiter.peer.clone()).collect()
    }

    /// Counts a model that was loaded if `is_demand`: a request needed it, or needed an ensemble that it is part of.
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
    fn leave(&mut self, peer: &Peer) {
        if let Some(waiting) = self.per_peer.get_mut(peer) {
            *waiting -= 1;
            if *waiting == 0 {
                self.per_peer.remove(peer);
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queue = self.demand.queue();
        let Some(waiters) = queue.waiters.get_mut(&self.model) else { return };
        let Some(at) = waiters.iter().position(|waiter| waiter.number == self.number) else { return };
        let waiter = waiters.remove(at);
        if waiters.is_empty() {
            queue.waiters.remove(&self.model);
        }
        queue.leave(&waiter.peer);
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

    /// Loads a model for a client's request, then calls `done`. The request waits until the returned value is dropped. Err: too many requests wait.
    pub fn demand(
        self: &Arc<Self>,
        model: &str,
        peer: &Peer,
        done: impl FnOnce(Result<(), Status>) + Send + 'static,
    ) -> Result<Waiting, Status> {
        let demand = self.demand.as_ref().ok_or_else(|| Status::internal("no model is loaded by its requests"))?;
        let (number, begins) = demand.line_up(model, peer, Box::new(done))?;
        let waiting = Waiting { demand: Arc::clone(demand), model: model.to_owned(), number };
        if begins {
            let peer_of_line = peer;
            let (engine, demand, peer) = (Arc::clone(self), Arc::clone(demand), peer.clone());
            let started = spawn("nerite-demand", move || {
                while let Some(model) = demand.next_in_line(&peer) {
                    let outcome = engine.load_on_demand(&demand, &model, &peer);
                    demand.finish(&model, &outcome);
                    // The load may have failed after its space was reserved, or the model may have been unloaded meanwhile.
                    engine.forget_if_gone(&demand, &model);
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

    /// Loads a model that a client names. It first waits for space, as the load for a request does.
    pub(super) fn load_explicitly(
        self: &Arc<Self>,
        demand: &Demand,
        model: &str,
        options: &LoadOptions,
        peer: &Peer,
    ) -> Result<(), Status> {
        let bytes = self.bytes_missing(model)?;
        demand.explicit_begins(model);
        let room = self.make_room(demand, model, bytes, peer);
        let outcome = room.and_then(|()| self.load_for(model, options, &Reason::default()));
        demand.explicit_ends(model);
        self.forget_if_gone(demand, model);
        if outcome.is_ok() && *peer != Peer::Unknown {
            self.note_use(model, peer);
        }
        outcome
    }

    fn load_on_demand(self: &Arc<Self>, demand: &Demand, model: &str, peer: &Peer) -> Result<(), Status> {
        if !self.served(model).is_empty() {
            return Ok(());
        }
        let bytes = self.bytes_missing(model)?;
        self.make_room(demand, model, bytes, peer)?;
        self.load_for(model, &LoadOptions::default(), &Reason::demanded())?;
        self.note_use(model, peer);
        Ok(())
    }

    /// The bytes of the files of a model and of those of its parts that are not loaded.
    fn bytes_missing(&self, model: &str) -> Result<u64, Status> {
        let source = self.read(model, &LoadOptions::default())?;
        let parts = source.needs().into_iter().filter(|part| self.served(part).is_empty());
        let of = |part: String| self.store().read(&part, &LoadOptions::default()).map_or(0, |source| source.bytes());
        Ok(parts.map(of).fold(source.bytes(), u64::saturating_add))
    }
}

#[cfg(test)]
mod tests;
