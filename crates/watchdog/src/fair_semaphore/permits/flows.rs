//! Which of a peer's waiters goes first?
//!
//! A flow's service is the time for which it had permits. As among peers, the flow with the least service goes first, then the one that holds fewer permits,
//! and then the one whose waiter came first. A flow that begins to wait has at least as much service as the flow of its peer that was given a permit last.
//! Within a flow, waiters go in the order in which they came.

use std::collections::{BTreeMap, HashMap};

use super::{ArrivalNumber, Rank};

/// The flows of one peer that wait for a permit or have one.
#[derive(Debug)]
pub(super) struct Flows<W> {
    known: HashMap<u64, Flow<W>>,
    /// The flows that wait, in the order in which they are served.
    order: BTreeMap<Rank, u64>,
    /// The service of the flow that was given a permit last.
    virtual_time_ns: u64,
}

#[derive(Debug)]
struct Flow<W> {
    served_ns: u64,
    holds: usize,
    waiting: BTreeMap<ArrivalNumber, W>,
}

impl<W> Flows<W> {
    pub(super) fn new() -> Flows<W> {
        Flows { known: HashMap::new(), order: BTreeMap::new(), virtual_time_ns: 0 }
    }

    /// The waiter that goes first.
    pub(super) fn first(&self) -> Option<ArrivalNumber> {
        self.order.first_key_value().map(|(rank, _)| rank.first)
    }

    /// Adds a waiter of this flow.
    pub(super) fn wait(&mut self, flow: u64, arrival: ArrivalNumber, waiter: W) {
        let now_ns = self.virtual_time_ns;
        self.change(flow, |flow| {
            flow.begin_to_wait(now_ns);
            flow.waiting.insert(arrival, waiter);
        });
    }

    /// The waiter of this arrival, if it still waits.
    pub(super) fn waiter(&mut self, flow: u64, arrival: ArrivalNumber) -> Option<&mut W> {
        self.known.get_mut(&flow)?.waiting.get_mut(&arrival)
    }

    /// Removes the waiter of this arrival, if it still waits.
    pub(super) fn leave(&mut self, flow: u64, arrival: ArrivalNumber) -> Option<W> {
        self.change(flow, |flow| flow.waiting.remove(&arrival))
    }

    /// Gives this flow a permit without a wait.
    pub(super) fn take(&mut self, flow: u64) {
        let now_ns = self.virtual_time_ns;
        self.grant(flow, |flow| flow.begin_to_wait(now_ns));
    }

    /// Gives the waiter that goes first a permit.
    pub(super) fn give_next(&mut self) -> Option<W> {
        let next = *self.order.first_key_value()?.1;
        self.grant(next, |flow| flow.waiting.pop_first()).map(|(_, waiter)| waiter)
    }

    /// Takes a permit back from this flow, which used it for that time.
    pub(super) fn give_back(&mut self, flow: u64, spent_ns: u64) {
        self.change(flow, |flow| {
            assert!(flow.holds > 0, "a permit is given back once");
            flow.holds -= 1;
            flow.served_ns = flow.served_ns.saturating_add(spent_ns);
        });
    }

    fn grant<T>(&mut self, flow: u64, change: impl FnOnce(&mut Flow<W>) -> T) -> T {
        let (served_ns, changed) = self.change(flow, |flow| {
            flow.holds += 1;
            let changed = change(flow);
            (flow.served_ns, changed)
        });
        self.virtual_time_ns = self.virtual_time_ns.max(served_ns);
        changed
    }

    /// Changes what is known of a flow, and keeps the order.
    fn change<T>(&mut self, number: u64, change: impl FnOnce(&mut Flow<W>) -> T) -> T {
        let new = || Flow { served_ns: self.virtual_time_ns, holds: 0, waiting: BTreeMap::new() };
        let flow = self.known.entry(number).or_insert_with(new);
        if let Some(rank) = flow.rank() {
            self.order.remove(&rank);
        }
        let changed = change(flow);
        match flow.rank() {
            Some(rank) => drop(self.order.insert(rank, number)),
            None if flow.holds == 0 => drop(self.known.remove(&number)),
            None => {}
        }
        changed
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.known.values().map(|flow| flow.waiting.len()).sum()
    }
}

impl<W> Flow<W> {
    /// A flow that did not wait until now gets no credit, whether it has permits or not.
    fn begin_to_wait(&mut self, virtual_time_ns: u64) {
        if self.waiting.is_empty() {
            self.served_ns = self.served_ns.max(virtual_time_ns);
        }
    }

    /// `None` if it does not wait.
    fn rank(&self) -> Option<Rank> {
        let (first, _) = self.waiting.first_key_value()?;
        Some(Rank { served_ns: self.served_ns, holds: self.holds, first: *first })
    }
}
