//! Which of the waiting tasks goes first?

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use crate::stall::Stall;
use crate::usage::{Served, Usage};

/// A peer or flow that did not wait for a while counts as having been served at most this much less than the others.
const CREDIT_NS: u64 = 50_000_000;

/// One peer with open flows.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    number: u64,
    pub(crate) usage: Usage,
    pub(crate) served: Served,
    pub(crate) stall: Stall,
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

/// The waiting tasks of one peer, by flow.
#[derive(Debug)]
struct PeerQueue {
    peer: Arc<Peer>,
    flows: HashMap<u64, FlowQueue>,
    /// The flows in the order in which they go. An entry may be too early, if its flow was served after it was made.
    order: BTreeSet<FlowPosition>,
}

/// The waiting tasks of one flow, by the order in which they came.
#[derive(Debug)]
struct FlowQueue {
    flow: Arc<FlowService>,
    /// The service of the flow when its entry in the order was made.
    served_ns: u64,
    tasks: BTreeMap<u64, Waker>,
}

/// The place of a flow in its peer's queue. The lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FlowPosition {
    served_ns: u64,
    /// The number of its first task.
    first_task: u64,
    flow: u64,
}

/// A flow, and the service that it had.
#[derive(Debug)]
pub(crate) struct FlowService {
    pub(crate) number: u64,
    pub(crate) served: Served,
}

/// The place of a task in its peer's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueuePosition {
    flow: u64,
    /// The order in which tasks came.
    task: u64,
}

impl Peer {
    pub(crate) fn new(number: u64) -> Peer {
        Peer { number, ..Peer::default() }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// A new flow. It gets no credit, else a client could gain time by opening connections.
    pub(crate) fn new_flow(&self, number: u64) -> FlowService {
        FlowService { number, served: Served::new(self.virtual_time_ns.load(Ordering::Relaxed)) }
    }
}

impl FlowService {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl FlowQueue {
    /// Where it belongs in the order of its peer's flows, as the entry was made. `None` if no task waits.
    fn position(&self) -> Option<FlowPosition> {
        let (first_task, _) = self.tasks.first_key_value()?;
        Some(FlowPosition { served_ns: self.served_ns, first_task: *first_task, flow: self.flow.number })
    }
}

impl PeerQueue {
    /// Does `change` to the tasks of a flow, and keeps the order of flows right.
    fn change<T>(&mut self, number: u64, change: impl FnOnce(&mut FlowQueue) -> T) -> Option<T> {
        let queue = self.flows.get_mut(&number)?;
        let before = queue.position();
        let result = change(queue);
        let after = queue.position();
        if before != after {
            if let Some(position) = before {
                self.order.remove(&position);
            }
            self.order.extend(after);
        }
        if after.is_none() {
            self.flows.remove(&number);
        }
        Some(result)
    }

    /// Removes the task that goes first: of the flow with the least service now, the task that came first. Also returns the service of that flow.
    fn pop(&mut self) -> Option<(u64, Waker)> {
        // Each flow that was served since its entry was made goes back once, unless it is served meanwhile.
        for _ in 0..self.order.len() {
            let first = self.order.first()?.flow;
            let is_late = self.change(first, |queue| {
                let served_ns = queue.flow.served.get();
                served_ns > std::mem::replace(&mut queue.served_ns, served_ns)
            });
            if is_late == Some(false) {
                break;
            }
        }
        let first = self.order.first()?.flow;
        self.change(first, |queue| Some((queue.served_ns, queue.tasks.pop_first()?.1)))?
    }
}

impl WaitQueue {
    /// Adds a task of `flow`, and returns its position.
    pub(crate) fn push(&mut self, peer: &Arc<Peer>, flow: &Arc<FlowService>, waker: &Waker) -> QueuePosition {
        self.last_number += 1;
        peer.served.raise_to(self.virtual_time_ns.saturating_sub(CREDIT_NS));
        let virtual_time_ns = peer.virtual_time_ns.load(Ordering::Relaxed);
        flow.served.raise_to(virtual_time_ns.saturating_sub(CREDIT_NS));
        let position = QueuePosition { flow: flow.number, task: self.last_number };
        self.push_again(peer, flow, position, waker);
        position
    }

    /// Adds a task at the position that it had before.
    pub(crate) fn push_again(&mut self, peer: &Arc<Peer>, flow: &Arc<FlowService>, at: QueuePosition, waker: &Waker) {
        let new = || PeerQueue { peer: Arc::clone(peer), flows: HashMap::new(), order: BTreeSet::new() };
        let queue = self.peers.entry(peer.number).or_insert_with(new);
        let served_ns = flow.served.get();
        let new = || FlowQueue { flow: Arc::clone(flow), served_ns, tasks: BTreeMap::new() };
        queue.flows.entry(at.flow).or_insert_with(new);
        queue.change(at.flow, |flow| flow.tasks.insert(at.task, waker.clone()));
    }

    /// Removes the task that goes first.
    pub(crate) fn pop(&mut self) -> Option<Waker> {
        let queue = self.peers.values_mut().min_by_key(|queue| (queue.peer.served.get(), queue.peer.number))?;
        self.virtual_time_ns = self.virtual_time_ns.max(queue.peer.served.get());
        let (served_ns, waker) = queue.pop()?;
        queue.peer.virtual_time_ns.fetch_max(served_ns, Ordering::Relaxed);
        if queue.flows.is_empty() {
            let number = queue.peer.number;
            self.peers.remove(&number);
        }
        Some(waker)
    }

    /// Whether the task at that position still waits. If so, `waker` replaces the one it had.
    pub(crate) fn is_waiting(&mut self, peer: &Peer, at: QueuePosition, waker: &Waker) -> bool {
        let flow = self.peers.get_mut(&peer.number).and_then(|queue| queue.flows.get_mut(&at.flow));
        let found = flow.and_then(|flow| flow.tasks.get_mut(&at.task));
        found.map(|known| known.clone_from(waker)).is_some()
    }

    /// Removes the task at that position, if it still waits.
    pub(crate) fn remove(&mut self, peer: &Peer, at: QueuePosition) -> Option<Waker> {
        let queue = self.peers.get_mut(&peer.number)?;
        let waker = queue.change(at.flow, |flow| flow.tasks.remove(&at.task)).flatten();
        if queue.flows.is_empty() {
            self.peers.remove(&peer.number);
        }
        waker
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.peers.values().flat_map(|queue| queue.flows.values()).map(|flow| flow.tasks.len()).sum()
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

        fn push(&mut self, name: &'static str, peer: &Arc<Peer>, flow: &Arc<FlowService>) -> QueuePosition {
            let waker = self.waker(name);
            self.queue.push(peer, flow, &waker)
        }

        /// Wakes `count` tasks, and returns the names of all that were woken so far.
        fn pop(&mut self, count: usize) -> String {
            (0..count).for_each(|_| self.queue.pop().unwrap().wake());
            self.woken.lock().unwrap().join(" ")
        }
    }

    fn flow(number: u64, served_ns: u64) -> Arc<FlowService> {
        Arc::new(FlowService { number, served: Served::new(served_ns) })
    }

    fn peer(number: u64, served_ns: u64) -> Arc<Peer> {
        let peer = Peer::new(number);
        peer.served.add(served_ns);
        Arc::new(peer)
    }

    #[test]
    fn the_least_service_goes_first_among_peers_and_then_among_flows() {
        let (much, little, mut waiting) = (peer(1, 90 * MS), peer(2, 80 * MS), Waiting::default());
        let flows = [1, 5, 3].map(|ms| flow(ms, ms * MS));
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
    fn a_flow_with_many_tasks_goes_behind_others_as_it_is_served() {
        let (one, mut waiting) = (peer(1, 0), Waiting::default());
        let (many, few) = (flow(1, MS), flow(2, 2 * MS));
        let names = ["m1", "m2", "m3", "m4"];
        for name in names {
            waiting.push(name, &one, &many);
        }
        waiting.push("f1", &one, &few);
        waiting.push("f2", &one, &few);
        assert_eq!(waiting.pop(1), "m1");
        // Its first task has run, and the others wait with what it has used now.
        many.served.add(2 * MS);
        assert_eq!(waiting.pop(1), "m1 f1");
        few.served.add(5 * MS);
        assert_eq!(waiting.pop(4), "m1 f1 m2 m3 m4 f2");
        assert_eq!((waiting.queue.len(), waiting.queue.peers.len()), (0, 0));
    }

    #[test]
    fn an_idle_flow_has_little_credit_and_a_new_one_has_none() {
        let (one, mut waiting) = (peer(1, 500 * MS), Waiting::default());
        let (busy, idle) = (flow(1, 400 * MS), flow(2, MS));
        waiting.push("busy", &one, &busy);
        waiting.pop(1);
        let new = Arc::new(one.new_flow(3));
        assert_eq!(new.served.get(), 400 * MS);
        waiting.push("new", &one, &new);
        waiting.push("idle", &one, &idle);
        assert_eq!(idle.served.get(), 350 * MS);
        let late = peer(2, 0);
        waiting.push("late", &late, &flow(4, 0));
        assert_eq!(late.served.get(), 450 * MS);
        assert_eq!(waiting.pop(3), "busy late idle new");
    }

    #[test]
    fn a_task_keeps_its_position_until_it_is_removed() {
        let (one, flow, mut waiting) = (peer(1, 0), flow(1, 0), Waiting::default());
        let [first, second, third] = ["first", "second", "third"].map(|name| waiting.push(name, &one, &flow));
        let renamed = waiting.waker("renamed");
        assert!(waiting.queue.is_waiting(&one, second, &renamed));
        assert_eq!(waiting.pop(1), "first");
        assert!(!waiting.queue.is_waiting(&one, first, &renamed));
        waiting.queue.push_again(&one, &flow, first, &waiting.waker("again"));
        waiting.queue.remove(&one, third);
        waiting.queue.remove(&one, third);
        assert_eq!(waiting.pop(2), "first again renamed");
        assert_eq!((waiting.queue.len(), waiting.queue.peers.len()), (0, 0));
    }
}
