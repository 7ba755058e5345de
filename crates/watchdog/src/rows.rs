//! Who of those who wait goes first?

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use crate::usage::{Served, Usage};

/// Whoever did not wait for a while is treated as if it had been served so much less than the others at the most.
const CREDIT_NS: u64 = 50_000_000;

/// One peer with open flows.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    number: u64,
    pub(crate) usage: Usage,
    pub(crate) served: Served,
    /// What that flow had been served whose task went last.
    reached_ns: AtomicU64,
}

/// The tasks that wait, by peer.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: HashMap<u64, Row>,
    /// What that peer had been served whose task went last.
    reached_ns: u64,
    last_number: u64,
}

#[derive(Debug)]
struct Row {
    peer: Arc<Peer>,
    tasks: BTreeMap<QueuePosition, Waker>,
}

/// Where a task waits: the lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueuePosition {
    /// What its flow had been served when it began to wait.
    served_ns: u64,
    /// The order in which tasks came.
    number: u64,
}

impl Peer {
    pub(crate) fn new(number: u64) -> Peer {
        Peer { number, ..Peer::default() }
    }

    /// Where a new flow begins. It has no credit: connections cost nothing.
    pub(crate) fn newcomer(&self) -> Served {
        Served::new(self.reached_ns.load(Ordering::Relaxed))
    }
}

impl Rows {
    /// Lets a task of a flow that was served so much wait.
    pub(crate) fn push(&mut self, peer: &Arc<Peer>, flow: &Served, waker: &Waker) -> QueuePosition {
        self.last_number += 1;
        peer.served.at_least(self.reached_ns.saturating_sub(CREDIT_NS));
        let reached_ns = peer.reached_ns.load(Ordering::Relaxed);
        let served_ns = flow.at_least(reached_ns.saturating_sub(CREDIT_NS));
        let place = QueuePosition { served_ns, number: self.last_number };
        self.push_again(peer, place, waker);
        place
    }

    /// Lets a task wait where it has waited before.
    pub(crate) fn push_again(&mut self, peer: &Arc<Peer>, place: QueuePosition, waker: &Waker) {
        let new = || Row { peer: Arc::clone(peer), tasks: BTreeMap::new() };
        self.rows.entry(peer.number).or_insert_with(new).tasks.insert(place, waker.clone());
    }

    /// Takes out who goes first.
    pub(crate) fn pop(&mut self) -> Option<Waker> {
        let row = self.rows.values_mut().min_by_key(|row| (row.peer.served.get(), row.peer.number))?;
        self.reached_ns = self.reached_ns.max(row.peer.served.get());
        let (place, waker) = row.tasks.pop_first()?;
        row.peer.reached_ns.fetch_max(place.served_ns, Ordering::Relaxed);
        if row.tasks.is_empty() {
            let number = row.peer.number;
            self.rows.remove(&number);
        }
        Some(waker)
    }

    /// Whether the task at that place waits still. If so, this waker is the one that will be used.
    pub(crate) fn is_waiting(&mut self, peer: &Peer, place: QueuePosition, waker: &Waker) -> bool {
        let found = self.rows.get_mut(&peer.number).and_then(|row| row.tasks.get_mut(&place));
        found.map(|known| known.clone_from(waker)).is_some()
    }

    /// Takes out the task at that place, if it waits still.
    pub(crate) fn remove(&mut self, peer: &Peer, place: QueuePosition) -> Option<Waker> {
        let row = self.rows.get_mut(&peer.number)?;
        let waker = row.tasks.remove(&place);
        if row.tasks.is_empty() {
            self.rows.remove(&peer.number);
        }
        waker
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.rows.values().map(|row| row.tasks.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Mutex;
    use std::task::Wake;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Notes that it was woken.
    struct Bell(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[derive(Default)]
    struct Waiting {
        rows: Rows,
        woken: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Waiting {
        fn waker(&self, name: &'static str) -> Waker {
            Arc::new(Bell(name, Arc::clone(&self.woken))).into()
        }

        fn push(&mut self, name: &'static str, peer: &Arc<Peer>, flow: &Served) -> QueuePosition {
            let waker = self.waker(name);
            self.rows.push(peer, flow, &waker)
        }

        /// Wakes so many, and tells all that were woken so far.
        fn pop(&mut self, count: usize) -> String {
            (0..count).for_each(|_| self.rows.pop().unwrap().wake());
            self.woken.lock().unwrap().join(" ")
        }
    }

    fn peer(number: u64, served_ns: u64) -> Arc<Peer> {
        let peer = Peer::new(number);
        peer.served.add(served_ns);
        Arc::new(peer)
    }

    #[test]
    fn who_was_served_least_goes_first_peers_before_flows() {
        let (much, little, mut waiting) = (peer(1, 90 * MS), peer(2, 80 * MS), Waiting::default());
        let flows = [1, 5, 3].map(|ms| Served::new(ms * MS));
        waiting.push("much-1", &much, &flows[0]);
        waiting.push("little-5", &little, &flows[1]);
        waiting.push("little-3", &little, &flows[2]);
        waiting.push("little-3-later", &little, &flows[2]);
        assert_eq!(waiting.pop(2), "little-3 little-3-later");
        // What it is served meanwhile counts at once.
        little.served.add(20 * MS);
        assert_eq!(waiting.pop(2), "little-3 little-3-later much-1 little-5");
        assert_eq!((waiting.rows.len(), waiting.rows.rows.len()), (0, 0));
        assert!(waiting.rows.pop().is_none());
    }

    #[test]
    fn who_did_not_wait_has_little_credit_and_who_is_new_has_none() {
        let (one, mut waiting) = (peer(1, 500 * MS), Waiting::default());
        let (busy, idle) = (Served::new(400 * MS), Served::new(MS));
        waiting.push("busy", &one, &busy);
        waiting.pop(1);
        let new = one.newcomer();
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
    fn a_task_keeps_its_place_and_leaves_it_when_it_is_no_more() {
        let (one, flow, mut waiting) = (peer(1, 0), Served::default(), Waiting::default());
        let [first, second, third] = ["first", "second", "third"].map(|name| waiting.push(name, &one, &flow));
        let renamed = waiting.waker("renamed");
        assert!(waiting.rows.is_waiting(&one, second, &renamed));
        assert_eq!(waiting.pop(1), "first");
        assert!(!waiting.rows.is_waiting(&one, first, &renamed));
        waiting.rows.push_again(&one, first, &waiting.waker("again"));
        waiting.rows.remove(&one, third);
        waiting.rows.remove(&one, third);
        assert_eq!(waiting.pop(2), "first again renamed");
        assert_eq!((waiting.rows.len(), waiting.rows.rows.len()), (0, 0));
    }
}
