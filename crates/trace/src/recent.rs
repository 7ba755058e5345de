//! Which recent requests does a viewer get?
//!
//! A viewer polls ([`Recent::requests_after`]). Each call continues the recording for [`WATCH_NS`]. Without a viewer,
//! nothing is recorded. If the operator is a viewer, requests of all clients are recorded, otherwise only those of clients
//! that view their own requests. Only a few requests a second of each client are recorded. So the recording does not slow
//! down the requests of a busy client, and these do not displace the requests of others.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::{Gathered, Noted, Peer, TraceBudget, TraceSink};
use nerite_tensor::Name;
use nerite_watchdog::now_ns;

/// How long requests are recorded after a call of a viewer.
pub const WATCH_NS: u64 = 5_000_000_000;
/// Requests that are kept: of all clients, and of one.
const REQUESTS_MAX: usize = 256;
const REQUESTS_PER_PEER_MAX: usize = 64;
/// Notes of one request that are kept.
const NOTES_MAX: usize = 400;
/// Bytes that are kept of a name that a client chose.
const NAME_BYTES_MAX: usize = 128;
/// Clients that may be viewers at the same time.
const WATCHERS_MAX: usize = 16;
/// Requests of one client, and clients, that are recorded within one window.
const TAKEN_PER_PEER_MAX: u32 = 4;
const TAKEN_PEERS_MAX: usize = 16;
const WINDOW_NS: u64 = 250_000_000;
/// Bytes of notes of requests in flight.
pub const RECENT_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(REQUESTS_PER_PEER_MAX < REQUESTS_MAX);
// All recorded requests of one client and one second are kept. So a client that polls every second misses none of them.
const _: () = assert!(TAKEN_PER_PEER_MAX as u64 * (1_000_000_000 / WINDOW_NS) < REQUESTS_PER_PEER_MAX as u64);

/// A request that has ended.
#[derive(Debug)]
pub struct RecentRequest {
    /// Its number, from 1. Later requests have larger numbers.
    pub number: u64,
    /// Its client.
    pub owner: Peer,
    /// When its first note was made, in ns of the clock of all notes.
    pub begun_ns: u64,
    /// When its last note was made.
    pub ended_ns: u64,
    /// The client's own name for it; may be empty.
    pub request_id: Name,
    /// Its notes, in the order in which they were made.
    pub notes: Vec<RecentNote>,
    /// Whether notes were left out.
    pub is_shortened: bool,
}

/// A note of a request, or of one that a model made for it.
#[derive(Debug)]
pub enum RecentNote {
    /// It was sent to a model.
    Begin {
        /// Its id.
        id: u64,
        /// The id of the request whose model made it. 0 for a client's request.
        parent: u64,
        /// The model.
        model: Name,
        /// Its version.
        version: Name,
    },
    /// It passed a point at this time.
    Passed {
        /// Its id.
        id: u64,
        /// The point.
        point: &'static str,
        /// When.
        ns: u64,
    },
}

/// Requests of the last seconds.
pub struct Recent {
    /// The time until which there is a viewer.
    until_ns: AtomicU64,
    state: Mutex<State>,
    budget: Arc<TraceBudget>,
}

#[derive(Default)]
struct State {
    /// The viewers, and the time until which each of them is one.
    watchers: Vec<(Peer, u64)>,
    window: u64,
    /// How many requests were recorded in this window, by client.
    taken: Vec<(Peer, u32)>,
    kept: VecDeque<Arc<RecentRequest>>,
    last: u64,
}

/// Keeps one request, and passes its notes on to another sink.
struct Sink {
    recent: Arc<Recent>,
    owner: Peer,
    next: Option<Arc<dyn TraceSink>>,
}

impl Recent {
    /// Neither requests nor viewers.
    pub fn new() -> Arc<Recent> {
        Arc::new(Recent {
            until_ns: AtomicU64::new(0),
            state: Mutex::default(),
            budget: TraceBudget::new(RECENT_BYTES_MAX),
        })
    }

    /// Whether there is a viewer now.
    pub fn is_watched(&self) -> bool {
        now_ns() < self.until_ns.load(Ordering::Relaxed)
    }

    /// Whether there is no viewer any more, and this was not reported before.
    pub fn has_just_ended(&self) -> bool {
        let until = self.until_ns.load(Ordering::Relaxed);
        let has_ended = until != 0 && until <= now_ns();
        has_ended && self.until_ns.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The budget for requests that are recorded only for viewers.
    pub fn budget(&self) -> &Arc<TraceBudget> {
        &self.budget
    }

    /// The requests after this number that `visitor` may see, oldest first. The operator may see those of all clients, another client its own, and a
    /// client that is not identified none. If there are too many viewers already, the error is their number.
    pub fn requests_after(&self, visitor: &Peer, after: u64) -> Result<Vec<Arc<RecentRequest>>, usize> {
        let now = now_ns();
        let mut state = self.lock();
        state.watch(visitor, now)?;
        let until = state.watchers.iter().map(|(_, until)| *until).max().unwrap_or(0);
        self.until_ns.store(until, Ordering::Relaxed);
        let is_own = |owner: &Peer| visitor.is_identified() && owner == visitor;
        let may_see = |one: &&Arc<RecentRequest>| visitor.is_operator() || is_own(&one.owner);
        Ok(state.kept.iter().filter(|one| one.number > after).filter(may_see).cloned().collect())
    }

    /// The sink for the next request of `owner`, if the request is recorded. `next` gets the notes as well.
    pub fn sink(self: &Arc<Recent>, owner: &Peer, next: Option<Arc<dyn TraceSink>>) -> Option<Arc<dyn TraceSink>> {
        let is_taken = self.lock().takes(owner, now_ns());
        is_taken.then(|| Arc::new(Sink { recent: Arc::clone(self), owner: owner.clone(), next }) as _)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Records that `visitor` is a viewer. If there are too many viewers, the operator replaces one.
    fn watch(&mut self, visitor: &Peer, now: u64) -> Result<(), usize> {
        self.watchers.retain(|(peer, until)| now < *until && peer != visitor);
        if self.watchers.len() >= WATCHERS_MAX {
            let other = self.watchers.iter().position(|(peer, _)| !peer.is_operator());
            let Some(other) = other.filter(|_| visitor.is_operator()) else { return Err(WATCHERS_MAX) };
            self.watchers.swap_remove(other);
        }
        self.watchers.push((visitor.clone(), now + WATCH_NS));
        Ok(())
    }

    /// Whether the next request of `owner` is recorded.
    fn takes(&mut self, owner: &Peer, now: u64) -> bool {
        let looks = |(peer, until): &(Peer, u64)| now < *until && (peer.is_operator() || peer == owner);
        if !self.watchers.iter().any(looks) {
            return false;
        }
        if self.window != now / WINDOW_NS {
            self.window = now / WINDOW_NS;
            self.taken.clear();
        }
        if let Some((_, count)) = self.taken.iter_mut().find(|(peer, _)| peer == owner) {
            *count += 1;
            return *count <= TAKEN_PER_PEER_MAX;
        }
        let has_room = self.taken.len() < TAKEN_PEERS_MAX;
        if has_room {
            self.taken.push((owner.clone(), 1));
        }
        has_room
    }

    /// Keeps a request. Returns the one that it replaces, to be freed without the lock.
    fn keep(&mut self, mut request: RecentRequest) -> Option<Arc<RecentRequest>> {
        let of_owner = self.kept.iter().filter(|other| other.owner == request.owner).count();
        let replaced = if of_owner >= REQUESTS_PER_PEER_MAX {
            self.kept.iter().position(|other| other.owner == request.owner)
        } else {
            (self.kept.len() >= REQUESTS_MAX).then_some(0)
        };
        let replaced = replaced.and_then(|at| self.kept.remove(at));
        self.last += 1;
        request.number = self.last;
        self.kept.push_back(Arc::new(request));
        replaced
    }
}

impl TraceSink for Sink {
    fn finished(&self, trace: Gathered) {
        if let Some(request) = RecentRequest::of(&trace, &self.owner) {
            let replaced = self.recent.lock().keep(request);
            drop(replaced);
        }
        if let Some(next) = &self.next {
            next.finished(trace);
        }
    }
}

impl RecentRequest {
    /// Milliseconds since its last note.
    pub fn age_ms(&self) -> u64 {
        now_ns().saturating_sub(self.ended_ns) / 1_000_000
    }

    /// The models that it was sent to, including requests that models made for it.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().filter_map(|note| match note {
            RecentNote::Begin { model, .. } => Some(model.as_str()),
            RecentNote::Passed { .. } => None,
        })
    }

    /// The part of a trace that is kept. `None` if no model was found for it.
    fn of(trace: &Gathered, owner: &Peer) -> Option<RecentRequest> {
        let mut request = RecentRequest {
            number: 0,
            owner: owner.clone(),
            begun_ns: u64::MAX,
            ended_ns: 0,
            request_id: Name::default(),
            notes: Vec::new(),
            is_shortened: trace.is_shortened || trace.notes.len() > NOTES_MAX,
        };
        let mut has_model = false;
        for note in trace.notes.iter().take(NOTES_MAX) {
            let id = note.id;
            let kept = match &note.what {
                Noted::Begin(begin) => {
                    has_model = true;
                    if begin.parent == 0 {
                        request.request_id = shortened(&begin.request_id);
                    }
                    // They are names of loaded models, whose length the file system limits.
                    let (model, version) = (begin.model.clone(), begin.version.clone());
                    RecentNote::Begin { id, parent: begin.parent, model, version }
                }
                Noted::Passed(point, ns) => {
                    (request.begun_ns, request.ended_ns) = (request.begun_ns.min(*ns), request.ended_ns.max(*ns));
                    RecentNote::Passed { id, point, ns: *ns }
                }
                // A model can report any time for its own points, so they are left out.
                Noted::Reported(..) | Noted::Tensor(_) => continue,
            };
            request.notes.push(kept);
        }
        has_model.then_some(request)
    }
}

/// The beginning of a name. A short one is shared, not copied.
fn shortened(name: &Name) -> Name {
    if name.len() <= NAME_BYTES_MAX {
        name.clone()
    } else {
        Name::new(&name[..name.floor_char_boundary(NAME_BYTES_MAX)])
    }
}

#[cfg(test)]
mod tests;
