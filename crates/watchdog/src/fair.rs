//! Which task does a front thread run next?
//!
//! Tokio runs tasks in the order in which they become ready. A client with many connections or expensive requests would take most of the
//! threads' time, and all other clients would wait for it. So the time of each poll is charged to a [`Flow`]: the tasks of one connection.
//! A peer is a heavy user if its flows used more than its share lately. Tasks of heavy users wait while other tasks are ready:
//!
//! ```text
//!   poll ──► light user, or heavy users had less than QUANTUM_NS since the run queue was empty? ── yes ──► run
//!                 │ no                                                                                    ▲
//!                 ▼                                                                                       │
//!          wait in the peer's queue ── a few are woken each time the run queue was empty ── poll ─────────┘
//! ```
//! So a light user waits for about [`QUANTUM_NS`] of other tasks' work, and for the poll that already runs. Among waiting tasks, the peer
//! with the least service goes first, and among its flows the one with the least service (start-time fair queueing).

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use nerite_locks::Mutex;

use crate::slot::now_ns;
use crate::stall::STALL_NS;
use crate::wait_queue::{FlowService, Peer, QueuePosition, WaitQueue};

/// Time that heavy users get each time the run queue was empty. A poll that began within it runs to its end.
pub(crate) const QUANTUM_NS: u64 = 2_000_000;
/// The most waiting tasks that are woken at once. More than one is woken only while polls are short.
const WOKEN_AT_ONCE: usize = 16;
/// One waiting task is woken after this time even if the run queue never became empty.
const STARVED_NS: u64 = 50_000_000;
/// Names of closed peers are dropped when the table has twice as many names as were in use at the last cleanup, and at least this many.
const PEERS_MIN: usize = 64;
/// The most peers whose marks outlive their connections. Beyond that, the one whose mark ends first loses it with its last connection.
const KEPT_MARKS_MAX: usize = 256;

/// The task order of all front threads of one runtime. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FairQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Thread time that heavy users had since the run queue was empty.
    spent_ns: AtomicU64,
    waiting: Mutex<WaitQueue>,
    /// Whether a task runs that wakes the waiting ones. Changed only under the lock of `waiting`.
    has_dispatcher: AtomicBool,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    known: HashMap<String, Weak<Peer>>,
    /// How many were in use at the last cleanup.
    in_use: usize,
    /// Peers that are marked or were lately. They are kept, so that a client cannot remove its mark by closing its connections.
    marked: Vec<Arc<Peer>>,
}

/// Numbers of peers and flows. They are unique over all queues, because these may share a [`crate::FairSemaphore`]. 0 is no peer.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// The tasks of one connection. A clone is the same flow.
#[derive(Clone, Debug)]
pub struct Flow(Arc<Tasks>);

#[derive(Debug)]
struct Tasks {
    queue: FairQueue,
    peer: Arc<Peer>,
    service: Arc<FlowService>,
    /// Whether its tasks run without waiting.
    is_urgent: AtomicBool,
    /// Queue positions of its tasks that wait, or were woken and not polled yet. Locked after `Shared::waiting`, never before.
    waiting: Mutex<BTreeSet<QueuePosition>>,
}

impl FairQueue {
    /// Opens a flow of the peer with that name.
    pub fn open(&self, peer: &str) -> Flow {
        let peer = self.0.peers().find(peer);
        let service = Arc::new(peer.new_flow(NUMBERS.fetch_add(1, Ordering::Relaxed)));
        Flow(Arc::new(Tasks {
            queue: self.clone(),
            peer,
            service,
            is_urgent: AtomicBool::new(false),
            waiting: Mutex::default(),
        }))
    }

    /// Each thread of the runtime calls this before it parks, when it has nothing to run.
    pub fn thread_parks(&self) {
        // It is 0 most of the time. Threads share a cache line without contention as long as none writes it.
        if self.0.spent_ns.load(Ordering::Relaxed) != 0 {
            self.0.spent_ns.store(0, Ordering::Relaxed);
        }
    }

    /// How many peers are marked: their requests made threads wait lately.
    pub fn stalling_peers(&self) -> usize {
        let now_ns = now_ns();
        self.0.peers().marked.iter().filter(|peer| peer.stall.is_marked(|| now_ns)).count()
    }

    /// Wakes one or a few waiting tasks each time the run queue was empty. Ends when no task waits.
    async fn dispatch(self) {
        let mut count = 1;
        loop {
            let is_empty = run_queue_is_empty().await;
            let spent_ns = self.0.spent_ns.swap(0, Ordering::Relaxed);
            count = if is_empty && spent_ns < QUANTUM_NS { WOKEN_AT_ONCE.min(2 * count) } else { 1 };
            let woken: Vec<Waker> = {
                let mut waiting = self.0.waiting();
                let woken: Vec<Waker> = std::iter::from_fn(|| waiting.pop()).take(count).collect();
                self.0.has_dispatcher.store(!woken.is_empty(), Ordering::Relaxed);
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
        self.0.waiting().len()
    }
}

/// Waits until all ready tasks have run and tokio has polled for new events. False if that took longer than [`STARVED_NS`].
async fn run_queue_is_empty() -> bool {
    let (begun_ns, runtime) = (now_ns(), tokio::runtime::Handle::current());
    while now_ns().saturating_sub(begun_ns) < STARVED_NS {
        // Tokio polls for events after some dozens of tasks. It resumes a task that yielded after that poll, but before the tasks that the
        // events made ready. So this task then moves behind them, to the end of its thread's queue.
        tokio::task::yield_now().await;
        move_to_queue_end().await;
        // Tasks that do not fit into a thread's own queue are in the global one.
        if runtime.metrics().global_queue_depth() == 0 {
            return true;
        }
    }
    false
}

/// Lets all tasks run that are in this thread's queue. Tokio puts a task that wakes itself at its end.
async fn move_to_queue_end() {
    let mut has_moved = false;
    poll_fn(|cx| {
        if has_moved {
            return Poll::Ready(());
        }
        has_moved = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Shared {
    /// Whether heavy users have used up [`QUANTUM_NS`] since the run queue was empty.
    fn is_used_up(&self) -> bool {
        self.spent_ns.load(Ordering::Relaxed) >= QUANTUM_NS
    }

    fn waiting(&self) -> MutexGuard<'_, WaitQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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
        let peer = Arc::new(Peer::new(NUMBERS.fetch_add(1, Ordering::Relaxed)));
        self.known.insert(name.to_owned(), Arc::downgrade(&peer));
        peer
    }

    /// Keeps a peer whose mark is new, as long as the mark counts. Returns its name.
    fn keep_marked(&mut self, peer: &Arc<Peer>, now_ns: u64) -> String {
        self.marked.retain(|known| known.stall.is_remembered(now_ns) && !Arc::ptr_eq(known, peer));
        if self.marked.len() >= KEPT_MARKS_MAX
            && let Some(first) =
                (0..self.marked.len()).min_by_key(|at| self.marked.get(*at).map(|known| known.stall.until_ns()))
        {
            self.marked.swap_remove(first);
        }
        self.marked.push(Arc::clone(peer));
        let name = self.known.iter().find(|(_, known)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(peer)));
        name.map(|(name, _)| name.clone()).unwrap_or_default()
    }
}

impl Flow {
    /// A flow with a queue of its own, which waits for no other flow.
    pub fn alone() -> Flow {
        FairQueue::default().open("")
    }

    /// From now on its tasks run without waiting. For a connection that is being closed: its memory is needed by others.
    pub fn make_urgent(&self) {
        self.0.is_urgent.store(true, Ordering::Relaxed);
        let woken: Vec<Waker> = {
            let mut waiting = self.0.queue.0.waiting();
            self.0.waiting().iter().filter_map(|position| waiting.remove(&self.0.peer, *position)).collect()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Thread time in ns that was charged to it, and to the others of its peer before it was opened.
    pub fn served_ns(&self) -> u64 {
        self.0.service.served.get()
    }

    /// Its number, unique in this process.
    pub fn number(&self) -> u64 {
        self.0.service.number()
    }

    /// The number of its peer, unique in this process while the peer has a flow.
    pub fn peer_number(&self) -> u64 {
        self.0.peer.number()
    }

    fn is_urgent(&self) -> bool {
        self.0.is_urgent.load(Ordering::Relaxed)
    }

    /// Whether its peer is marked: its requests made threads wait lately.
    pub fn is_stalling(&self) -> bool {
        self.0.peer.stall.is_marked(now_ns)
    }

    /// Notes that a thread waited for its request, without using the processor. If the peer's waits come to much, it is marked.
    pub(crate) fn note_wait(&self, now_ns: u64, waited_ns: u64) {
        if waited_ns >= STALL_NS && self.0.peer.stall.count(now_ns, waited_ns) {
            self.mark(now_ns, waited_ns);
        }
    }

    #[cold]
    fn mark(&self, now_ns: u64, waited_ns: u64) {
        let Some(length_ns) = self.0.peer.stall.mark(now_ns) else { return };
        let name = self.0.queue.0.peers().keep_marked(&self.0.peer, now_ns);
        log::info!(
            "a request of {name} made a thread wait for {} ms; what its requests do with shared memory is done on other threads until {} s \
             have passed without such a wait",
            waited_ns / 1_000_000,
            length_ns / 1_000_000_000,
        );
    }

    /// Charges a poll that ended at `now_ns`.
    pub(crate) fn charge(&self, now_ns: u64, spent_ns: u64) {
        let Tasks { queue, peer, service, .. } = &*self.0;
        service.served.add(spent_ns);
        peer.served.add(spent_ns);
        peer.usage.add(now_ns, spent_ns);
        if peer.usage.is_heavy(now_ns) {
            queue.0.spent_ns.fetch_add(spent_ns, Ordering::Relaxed);
        }
    }

    /// Whether a task that was woken just now has to wait. It does not overtake tasks that wait already.
    fn must_wait(&self, now_ns: u64) -> bool {
        self.is_heavy(now_ns) && (self.0.queue.0.has_dispatcher.load(Ordering::Relaxed) || self.0.queue.0.is_used_up())
    }

    fn is_heavy(&self, now_ns: u64) -> bool {
        self.0.peer.usage.is_heavy(now_ns) && !self.is_urgent()
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
    /// Its queue position, from the first poll that had to wait until the poll that ran.
    position: Option<QueuePosition>,
}

impl Task {
    pub(crate) fn of(flow: &Flow) -> Task {
        Task { flow: flow.clone(), position: None }
    }

    /// Ready if the task may be polled now.
    pub(crate) fn poll_permission(&mut self, cx: &Context<'_>, now_ns: u64) -> Poll<()> {
        if self.position.is_none() && !self.flow.must_wait(now_ns) {
            return Poll::Ready(());
        }
        self.poll_queued(cx, now_ns)
    }

    #[cold]
    fn poll_queued(&mut self, cx: &Context<'_>, now_ns: u64) -> Poll<()> {
        let Tasks { queue, peer, service, .. } = &*self.flow.0;
        let mut waiting = queue.0.waiting();
        match self.position {
            Some(position) if waiting.is_waiting(peer, position, cx.waker()) => return Poll::Pending,
            // It was woken, but the tasks that were woken with it have used up the time.
            Some(position) if self.flow.is_heavy(now_ns) && queue.0.is_used_up() => {
                waiting.push_again(peer, service, position, cx.waker());
            }
            Some(position) => {
                self.flow.0.waiting().remove(&position);
                self.position = None;
                return Poll::Ready(());
            }
            // The queue is locked, so nobody makes the flow urgent between this check and the push below.
            None if self.flow.is_urgent() => return Poll::Ready(()),
            None => {
                let position = waiting.push(peer, service, cx.waker());
                self.flow.0.waiting().insert(position);
                self.position = Some(position);
            }
        }
        if !queue.0.has_dispatcher.swap(true, Ordering::Relaxed) {
            drop(tokio::spawn(queue.clone().dispatch()));
        }
        Poll::Pending
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(position) = self.position.take() {
            let Tasks { queue, peer, .. } = &*self.flow.0;
            let mut waiting = queue.0.waiting();
            self.flow.0.waiting().remove(&position);
            drop(waiting.remove(peer, position));
        }
    }
}

#[cfg(test)]
mod tests;
