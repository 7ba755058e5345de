//! Whose task does a front thread run next?
//!
//! Tokio runs tasks in the order in which they become ready. A client with many connections or expensive requests would have most of the
//! threads' time, and everybody else would wait for it. So the time of each poll is charged to a [`Flow`]: the tasks of one connection. A
//! peer whose flows used more than its share lately waits while others are ready:
//!
//! ```text
//!   poll ──► did the peer use little lately, or has little run since the run queue was empty? ── yes ──► run
//!                 │ no                                                                                    ▲
//!                 ▼                                                                                       │
//!            wait in the peer's row ── a few are woken each time the run queue was empty ── poll ─────────┘
//! ```
//! So somebody who uses little waits for about [`QUANTUM_NS`] of others' work, and for the poll that runs already. Among those who wait, the
//! peer goes first who was served least, and of its flows the one that was served least (start-time fair queueing).

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use crate::rows::{Peer, QueuePosition, Rows};
use crate::slot::now_ns;
use crate::usage::Served;

/// So much time those who have to wait get each time the run queue was empty, and the rest of a poll that began before.
pub(crate) const QUANTUM_NS: u64 = 2_000_000;
/// At most so many of them are woken at once: more than one only while polls are short.
const WOKEN_AT_ONCE: usize = 16;
/// If the run queue was not empty for so long, one of them is woken all the same.
const STARVED_NS: u64 = 50_000_000;
/// The names of peers that have gone are dropped when there are twice as many names as were in use the last time, or this many.
const PEERS_MIN: usize = 64;

/// The order of all front threads of one runtime. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FairQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Thread time that peers who used much have had since the run queue was empty.
    spent_ns: AtomicU64,
    /// Those who wait.
    rows: Mutex<Rows>,
    /// Whether there is a task that wakes them. Changed under the lock of `rows` only.
    is_led: AtomicBool,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    known: HashMap<String, Weak<Peer>>,
    /// How many were in use when names were last dropped.
    in_use: usize,
    last_number: u64,
}

/// The tasks of one connection. Its clones are the same flow.
#[derive(Clone, Debug)]
pub struct Flow(Arc<Tasks>);

#[derive(Debug)]
struct Tasks {
    queue: FairQueue,
    peer: Arc<Peer>,
    served: Served,
    /// Whether its tasks wait for nobody.
    is_urgent: AtomicBool,
    /// Where those of its tasks stand that wait, or have been woken a moment ago. Locked after the rows only.
    waiting: Mutex<BTreeSet<QueuePosition>>,
}

impl FairQueue {
    /// A flow of the peer with that name.
    pub fn open(&self, peer: &str) -> Flow {
        let peer = self.0.peers().find(peer);
        let served = peer.newcomer();
        Flow(Arc::new(Tasks {
            queue: self.clone(),
            peer,
            served,
            is_urgent: AtomicBool::new(false),
            waiting: Mutex::default(),
        }))
    }

    /// To be called by each thread of the runtime that has nothing to run.
    pub fn ran_empty(&self) {
        // Mostly it is 0, and a line of memory that is only read is not fought for.
        if self.0.spent_ns.load(Ordering::Relaxed) != 0 {
            self.0.spent_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Wakes those who wait, one or a few each time the run queue was empty, until nobody waits.
    async fn lead(self) {
        let mut count = 1;
        loop {
            let is_empty = run_queue_is_empty().await;
            let spent_ns = self.0.spent_ns.swap(0, Ordering::Relaxed);
            count = if is_empty && spent_ns < QUANTUM_NS { WOKEN_AT_ONCE.min(2 * count) } else { 1 };
            let woken: Vec<Waker> = {
                let mut rows = self.0.rows();
                let woken: Vec<Waker> = std::iter::from_fn(|| rows.pop()).take(count).collect();
                self.0.is_led.store(!woken.is_empty(), Ordering::Relaxed);
                woken
            };
            if woken.is_empty() {
                return;
            }
            woken.into_iter().for_each(Waker::wake);
        }
    }

    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.0.rows().len()
    }
}

/// Waits until the tasks that are ready have run and new events were looked for. False: it took longer than [`STARVED_NS`].
async fn run_queue_is_empty() -> bool {
    let (begun_ns, runtime) = (now_ns(), tokio::runtime::Handle::current());
    while now_ns().saturating_sub(begun_ns) < STARVED_NS {
        // Tokio resumes a task that yields after it has looked for new events, and before the tasks that they made ready: each time it has
        // run some dozens of tasks. So this goes to the end of its thread's own queue then.
        tokio::task::yield_now().await;
        to_the_end().await;
        // The queue that all threads share has what does not fit into their own.
        if runtime.metrics().global_queue_depth() == 0 {
            return true;
        }
    }
    false
}

/// Lets all tasks run that are in the queue of this thread. Tokio puts a task there that wakes itself.
async fn to_the_end() {
    let mut is_there = false;
    poll_fn(|cx| {
        if is_there {
            return Poll::Ready(());
        }
        is_there = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Shared {
    /// Whether those who use much have had their time since the run queue was empty.
    fn is_used_up(&self) -> bool {
        self.spent_ns.load(Ordering::Relaxed) >= QUANTUM_NS
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    fn find(&mut self, name: &str) -> Arc<Peer> {
        if let Some(peer) = self.known.get(name).and_then(Weak::upgrade) {
            return peer;
        }
        if self.known.len() >= PEERS_MIN.max(2 * self.in_use) {
            self.known.retain(|_, peer| peer.strong_count() > 0);
            self.in_use = self.known.len();
        }
        self.last_number += 1;
        let peer = Arc::new(Peer::new(self.last_number));
        self.known.insert(name.to_owned(), Arc::downgrade(&peer));
        peer
    }
}

impl Flow {
    /// A flow that shares its threads with no other.
    pub fn alone() -> Flow {
        FairQueue::default().open("")
    }

    /// Lets its tasks wait for nobody from now on: for a connection that is to end, so that others get what it holds.
    pub fn make_urgent(&self) {
        self.0.is_urgent.store(true, Ordering::Relaxed);
        let woken: Vec<Waker> = {
            let mut rows = self.0.queue.0.rows();
            self.0.waiting().iter().filter_map(|place| rows.remove(&self.0.peer, *place)).collect()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    fn is_urgent(&self) -> bool {
        self.0.is_urgent.load(Ordering::Relaxed)
    }

    /// Charges a poll that ended at `now_ns`.
    pub(crate) fn charge(&self, now_ns: u64, spent_ns: u64) {
        let Tasks { queue, peer, served, .. } = &*self.0;
        served.add(spent_ns);
        peer.served.add(spent_ns);
        peer.usage.add(now_ns, spent_ns);
        if peer.usage.is_much(now_ns) {
            queue.0.spent_ns.fetch_add(spent_ns, Ordering::Relaxed);
        }
    }

    /// Whether a task that was woken just now has to wait: nobody overtakes those who wait.
    fn must_wait(&self, now_ns: u64) -> bool {
        self.uses_much(now_ns) && (self.0.queue.0.is_led.load(Ordering::Relaxed) || self.0.queue.0.is_used_up())
    }

    fn uses_much(&self, now_ns: u64) -> bool {
        self.0.peer.usage.is_much(now_ns) && !self.is_urgent()
    }
}

impl Tasks {
    fn waiting(&self) -> MutexGuard<'_, BTreeSet<QueuePosition>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One task of a flow.
pub(crate) struct Task {
    flow: Flow,
    /// Where it waits, from its first poll that had to until the one that ran.
    place: Option<QueuePosition>,
}

impl Task {
    pub(crate) fn of(flow: &Flow) -> Task {
        Task { flow: flow.clone(), place: None }
    }

    pub(crate) fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Ready if a poll may run now.
    pub(crate) fn poll_turn(&mut self, cx: &Context<'_>, now_ns: u64) -> Poll<()> {
        if self.place.is_none() && !self.flow.must_wait(now_ns) {
            return Poll::Ready(());
        }
        self.poll_line(cx, now_ns)
    }

    #[cold]
    fn poll_line(&mut self, cx: &Context<'_>, now_ns: u64) -> Poll<()> {
        let Tasks { queue, peer, served, .. } = &*self.flow.0;
        let mut rows = queue.0.rows();
        match self.place {
            Some(place) if rows.is_waiting(peer, place, cx.waker()) => return Poll::Pending,
            // It was woken, but those who were woken with it have used up the time.
            Some(place) if self.flow.uses_much(now_ns) && queue.0.is_used_up() => {
                rows.push_again(peer, place, cx.waker());
            }
            Some(place) => {
                self.flow.0.waiting().remove(&place);
                self.place = None;
                return Poll::Ready(());
            }
            // Since the rows are locked nobody makes it urgent between this look and its place.
            None if self.flow.is_urgent() => return Poll::Ready(()),
            None => {
                let place = rows.push(peer, served, cx.waker());
                self.flow.0.waiting().insert(place);
                self.place = Some(place);
            }
        }
        if !queue.0.is_led.swap(true, Ordering::Relaxed) {
            drop(tokio::spawn(queue.clone().lead()));
        }
        Poll::Pending
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let Tasks { queue, peer, .. } = &*self.flow.0;
            let mut rows = queue.0.rows();
            self.flow.0.waiting().remove(&place);
            drop(rows.remove(peer, place));
        }
    }
}

#[cfg(test)]
mod tests;
