//! Which of the waiting tasks goes first?

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use crate::usage::{Served, Usage};

/// A peer or flow that did not wait for a while counts as having been served at most this much less than the others.
const CREDIT_NS: u64 = 50_000_000;

/// One peer with open flows.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    number: u64,
    pub(crate) usage: Usage,
    pub(crate) served: Served,
    /// The service of the flow whose task was woken last. It is the virtual time among this peer's flows.
    virtual_time_ns: AtomicU64,
}

/// The tasks that wait, by peer.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    peers: HashMap<u64, PeerQueue>,
    /// The service of the peer whose task was woken last. It is the virtual time among peers.
    virtual_time_ns: u64,
    last_number: u64,
}

#[derive(Debug)]
struct PeerQueue {
    peer: Arc<Peer>,
    tasks: BTreeMap<QueuePosition, Waker>,
}

/// The place of a task in its peer's queue. The lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueuePosition {
    /// The service that its flow had when the task began to wait.
    served_ns: u64,
    /// The order in which tasks came.
    number: u64,
}

impl Peer {
    pub(crate) fn new(number: u64) -> Peer {
        Peer { number, ..Peer::default() }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The service that a new flow starts with. It gets no credit, else a client could gain time by opening connections.
    pub(crate) fn initial_service(&self) -> Served {
        Served::new(self.virtual_time_ns.load(Ordering::Relaxed))
    }
}

impl WaitQueue {
    /// Adds a task of `flow`, and returns its position.
    pub(crate) fn push(&mut self, peer: &Arc<Peer>, flow: &Served, waker: &Waker) -> QueuePosition {
        self.last_number += 1;
        peer.served.raise_to(self.virtual_time_ns.saturating_sub(CREDIT_NS));
        let virtual_time_ns = peer.virtual_time_ns.load(Ordering::Relaxed);
        let served_ns = flow.raise_to(virtual_time_ns.saturating_sub(CREDIT_NS));
        let position = QueuePosition { served_ns, number: self.last_number };
        self.push_again(peer, position, waker);
        position
    }

    /// Adds a task at the position that it had before.
    pub(crate) fn push_again(&mut self, peer: &Arc<Peer>, position: QueuePosition, waker: &Waker) {
        let new = || PeerQueue { peer: Arc::clone(peer), tasks: BTreeMap::new() };
        self.peers.entry(peer.number).or_insert_with(new).tasks.insert(position, waker.clone());
    }

    /// Removes the task that goes first.
    pub(crate) fn pop(&mut self) -> Option<Waker> {
        let queue = self.peers.values_mut().min_by_key(|queue| (queue.peer.served.get(), queue.peer.number))?;
        self.virtual_time_ns = self.virtual_time_ns.max(queue.peer.served.get());
        let (position, waker) = queue.tasks.pop_first()?;
        queue.peer.virtual_time_ns.fetch_max(position.served_ns, Ordering::Relaxed);
        if queue.tasks.is_empty() {
            let number = queue.peer.number;
            self.peers.remove(&number);
        }
        Some(waker)
    }

    /// Whether the task at that position still waits. If so, `waker` replaces the one it had.
    pub(crate) fn is_waiting(&mut self, peer: &Peer, position: QueuePosition, waker: &Waker) -> bool {
        let found = self.peers.get_mut(&peer.number).and_then(|queue| queue.tasks.get_mut(&position));
        found.map(|known| known.clone_from(waker)).is_some()
    }

    /// Removes the task at that position, if it still waits.
    pub(crate) fn remove(&mut self, peer: &Peer, position: QueuePosition) -> Option<Waker> {
        let queue = self.peers.get_mut(&peer.number)?;
        let waker = queue.tasks.remove(&position);
        if queue.tasks.is_empty() {
            self.peers.remove(&peer.number);
        }
        waker
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.peers.values().map(|queue| queue.tasks.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Mutex;
    use std::task::Wake;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A waker that notes its name when it is woken.
    struct NamedWaker(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Wake for NamedWaker {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[derive(Default)]
    struct Waiting {
        queue: WaitQueue,
        woken: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Waiting {
        fn waker(&self, name: &'static str) -> Waker {
            Arc::new(NamedWaker(name, Arc::clone(&self.woken))).into()
        }

        fn push(&mut self, name: &'static str, peer: &Arc<Peer>, flow: &Served) -> QueuePosition {
            let waker = self.waker(name);
            self.queue.push(peer, flow, &waker)
        }

        /// Wakes `count` tasks, and returns the names of all that were woken so far.
        fn pop(&mut self, count: usize) -> String {
            (0..count).for_each(|_| self.queue.pop().unwrap().wake());
            self.woken.lock().unwrap().join(" ")
        }
    }

    fn peer(number: u64, served_ns: u64) -> Arc<Peer> {
        let peer = Peer::new(number);
        peer.served.add(served_ns);
        Arc::new(peer)
    }

    #[test]
    fn the_least_service_goes_first_among_peers_and_then_among_flows() {
        let (much, little, mut waiting) = (peer(1, 90 * MS), peer(2, 80 * MS), Waiting::default());
        let flows = [1, 5, 3].map(|ms| Served::new(ms * MS));
        waiting.push("much-1", &much, &flows[0]);
        waiting.push("little-5", &little, &flows[1]);
        waiting.push("little-3", &little, &flows[2]);
        waiting.push("little-3-later", &little, &flows[2]);
        assert_eq!(waiting.pop(2), "little-3 little-3-later");
        // Later service of a waiting peer counts at once.
        little.served.add(20 * MS);
        assert_eq!(waiting.pop(2), "little-3 little-3-later much-1 little-5");
        assert_eq!((waiting.queue.len(), waiting.queue.peers.len()), (0, 0));
        assert!(waiting.queue.pop().is_none());
    }

    #[test]
    fn an_idle_flow_has_little_credit_and_a_new_one_has_none() {
        let (one, mut waiting) = (peer(1, 500 * MS), Waiting::default());
        let (busy, idle) = (Served::new(400 * MS), Served::new(MS));
        waiting.push("busy", &one, &busy);
        waiting.pop(1);
        let new = one.initial_service();
        assert_eq!(new.get(), 400 * MS);
        waiting.push("new", &one, &new);
        waiting.push("idle", &one, &idle);
        assert_eq!(idle.get(), 350 * MS);
        let late = peer(2, 0);
        waiting.push("late", &late, &Served::default());
        assert_eq!(late.served.get(), 450 * MS);
        assert_eq!(waiting.pop(3), "busy late idle new");
    }

    #[test]
    fn a_task_keeps_its_position_until_it_is_removed() {
        let (one, flow, mut waiting) = (peer(1, 0), Served::default(), Waiting::default());
        let [first, second, third] = ["first", "second", "third"].map(|name| waiting.push(name, &one, &flow));
        let renamed = waiting.waker("renamed");
        assert!(waiting.queue.is_waiting(&one, second, &renamed));
        assert_eq!(waiting.pop(1), "first");
        assert!(!waiting.queue.is_waiting(&one, first, &renamed));
        waiting.queue.push_again(&one, first, &waiting.waker("again"));
        waiting.queue.remove(&one, third);
        waiting.queue.remove(&one, third);
        assert_eq!(waiting.pop(2), "first again renamed");
        assert_eq!((waiting.queue.len(), waiting.queue.peers.len()), (0, 0));
    }
}
