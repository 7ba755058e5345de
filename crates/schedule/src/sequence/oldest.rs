//! How are the requests of sequences batched in the order of their arrival?
//!
//! This is Triton's strategy `oldest`. Each instance has a limited number of sequences as candidates, and a dynamic batcher of its own. The batcher
//! gets one request of each candidate at a time.

use std::collections::HashMap;

use super::table::{QueuePlace, SequenceNumber, SequenceTable};
use crate::action::{Action, Actions, Controls};
use crate::{
    Arrival, BatchPolicy, Batcher, Context, Event, InstanceChange, InstanceId, Rejection, Repeat, Scheduler, Slot,
    Ticket, Wants,
};

/// The settings of an [`Oldest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestPolicy {
    /// The number of instances of the model at the beginning.
    pub instances: usize,
    /// The most sequences that each instance serves at a time.
    pub candidates_max: usize,
    /// The time without a request after which a sequence is over.
    pub idle_us: u64,
    /// The most waiting requests that start sequences. As many further requests of sequences may wait beside them. `None` for no limit.
    pub requests_max: Option<usize>,
    /// How the requests of the candidates are batched.
    pub batch: BatchPolicy,
}

/// A scheduler that batches the requests of the oldest sequences.
#[derive(Debug)]
pub struct Oldest {
    policy: OldestPolicy,
    table: SequenceTable,
    instances: Vec<Instance>,
    given: HashMap<Ticket, Given>,
    stopped: bool,
}

/// A request in a batcher.
#[derive(Debug)]
struct Given {
    at: InstanceId,
    sequence: SequenceNumber,
    place: Option<QueuePlace>,
    /// For the model.
    controls: Controls,
}

#[derive(Debug)]
struct Instance {
    batcher: Batcher,
    running: Vec<SequenceNumber>,
    wake_at_us: Option<u64>,
}

impl Instance {
    fn new(policy: &OldestPolicy) -> Instance {
        Instance { batcher: Batcher::new(policy.batch.clone()), running: Vec::new(), wake_at_us: None }
    }
}

impl Oldest {
    /// A scheduler with that policy and no requests.
    pub fn new(policy: OldestPolicy) -> Oldest {
        let table =
            SequenceTable::new(policy.instances, policy.candidates_max.max(1), policy.idle_us, policy.requests_max);
        let instances = (0..policy.instances).map(|_| Instance::new(&policy)).collect();
        Oldest { policy, table, instances, given: HashMap::new(), stopped: false }
    }

    /// Makes the batcher of an added instance, unless a removed one with the same number has left its own.
    fn add_batcher(&mut self, at: InstanceId) {
        let count = self.instances.len().max(at.0 + 1);
        self.instances.resize_with(count, || Instance::new(&self.policy));
        if self.stopped {
            self.instances.iter_mut().for_each(|instance| instance.batcher.stop_delaying());
        }
    }

    /// Gives the sequence's next request to its instance's batcher, if it may run.
    fn offer(&mut self, number: SequenceNumber, context: &mut Context<'_>) {
        let Some(at) = self.table.next_of(number).map(|(_, slot)| slot.instance) else { return };
        let Some((waiting, controls)) = self.table.take(number) else { return };
        let place = QueuePlace::of(&waiting.arrival);
        self.given.insert(waiting.arrival.ticket, Given { at, sequence: number, place, controls });
        // The deadline applies only while a sequence waits for a slot. This one has a slot now.
        self.forward(
            at,
            Event::Arrived(Arrival { deadline: None, sequence: None, repeat: Repeat::Never, ..waiting.arrival }),
            context,
        );
    }

    /// Passes an event to an instance's batcher, and adds the controls to the batches that it starts. The batcher rejects a request only when it is taken
    /// back.
    fn forward(&mut self, at: InstanceId, event: Event, context: &mut Context<'_>) {
        let Some(instance) = self.instances.get_mut(at.0) else { return };
        let mut actions = Actions::default();
        instance.batcher.handle(event, &mut Context { actions: &mut actions, ..*context });
        instance.wake_at_us = actions.wake_at_us;
        for action in actions.list {
            match action {
                Action::Run(mut batch) => {
                    for slot in &mut batch.slots {
                        if let Slot::Request { ticket, controls } = slot
                            && let Some(given) = self.given.remove(ticket)
                        {
                            self.table.waits_no_more(given.place);
                            *controls = Some(Box::new(given.controls));
                            instance.running.push(given.sequence);
                        }
                    }
                    context.run(batch);
                }
                Action::Reject(ticket, rejection) => context.reject(ticket, rejection),
            }
        }
    }

    /// Takes a cancelled request back from its batcher, which rejects it. Returns whether it was there.
    fn take_back(&mut self, ticket: Ticket, context: &mut Context<'_>) -> bool {
        let Some(given) = self.given.remove(&ticket) else { return false };
        self.table.waits_no_more(given.place);
        self.forward(given.at, Event::Cancelled(ticket), context);
        true
    }

    fn arrived(&mut self, arrival: Arrival, context: &mut Context<'_>) {
        let (ticket, mut placed) = (arrival.ticket, Vec::new());
        if let Err(rejection) = self.table.push(arrival, context.now_us, &mut placed) {
            context.reject(ticket, rejection);
        }
        placed.extend(self.table.sequence_of(ticket));
        self.offer_all(placed, context);
    }

    /// Ends the sequence of a request and rejects its waiting requests. A request in a batcher is one of them.
    fn cancelled(&mut self, ticket: Ticket, context: &mut Context<'_>) {
        let given = self.given.get(&ticket).map(|given| given.sequence);
        let Some(number) = given.or_else(|| self.table.sequence_of(ticket)) else { return };
        let running = self.table.running_of(number);
        let was_in_batcher = running.is_some_and(|ticket| self.take_back(ticket, context));
        let placed = self.end(number, context);
        if was_in_batcher {
            self.done(number, context);
        }
        self.offer_all(placed, context);
    }

    /// Ends a sequence and rejects those of its requests that are in no batcher. Returns the sequence that got its slot.
    fn end(&mut self, number: SequenceNumber, context: &mut Context<'_>) -> Vec<SequenceNumber> {
        let mut placed = Vec::new();
        for ticket in self.table.cancel(number, &mut placed) {
            context.reject(ticket, Rejection::Cancelled);
        }
        placed
    }

    fn done(&mut self, number: SequenceNumber, context: &mut Context<'_>) {
        let next = self.table.done(number, context.now_us).unwrap_or(number);
        self.offer(next, context);
    }

    fn expire(&mut self, context: &mut Context<'_>) {
        let mut placed = Vec::new();
        for ticket in self.table.expire(context.now_us, &mut placed) {
            context.reject(ticket, Rejection::SequenceTimedOut);
        }
        self.offer_all(placed, context);
    }

    /// Takes no more requests of clients. The batchers still take the requests that wait in the table, so they do not get [`Event::Stop`].
    fn stop(&mut self, context: &mut Context<'_>) {
        self.stopped = true;
        let mut placed = Vec::new();
        self.table.end_all(&mut placed);
        self.offer_all(placed, context);
        for at in 0..self.instances.len() {
            self.instances[at].batcher.stop_delaying();
            self.forward(InstanceId(at), Event::Time, context);
        }
    }

    fn offer_all(&mut self, placed: Vec<SequenceNumber>, context: &mut Context<'_>) {
        for number in placed {
            self.offer(number, context);
        }
    }
}

impl Scheduler for Oldest {
    fn handle(&mut self, event: Event, context: &mut Context<'_>) {
        self.expire(context);
        match event {
            Event::Arrived(arrival) if self.stopped && !matches!(arrival.repeat, Repeat::Of(_)) => {
                context.reject(arrival.ticket, Rejection::Stopping);
            }
            Event::Arrived(arrival) => self.arrived(arrival, context),
            Event::Granted(at) | Event::Withdrawn(at) => self.forward(at, event, context),
            Event::Changed(at, change) => {
                if change == InstanceChange::Added {
                    self.add_batcher(at);
                }
                let placed = self.table.change(at, change);
                self.offer_all(placed, context);
            }
            Event::Done(at) => {
                let ran = self.instances.get_mut(at.0).map(|instance| std::mem::take(&mut instance.running));
                ran.into_iter().flatten().for_each(|number| self.done(number, context));
            }
            Event::Cancelled(ticket) => self.cancelled(ticket, context),
            Event::CutShort(number) => {
                let placed = self.end(SequenceNumber(number), context);
                self.offer_all(placed, context);
            }
            Event::Stop => self.stop(context),
            Event::Time => {}
        }
        for at in 0..self.instances.len() {
            if self.instances[at].wake_at_us.is_some_and(|at_us| at_us <= context.now_us) {
                self.forward(InstanceId(at), Event::Time, context);
            }
        }
        self.table.report(context);
        self.table.next_due_us().into_iter().for_each(|at_us| context.wake_at(at_us));
        self.instances.iter().filter_map(|instance| instance.wake_at_us).for_each(|at_us| context.wake_at(at_us));
    }

    fn wants(&self) -> Wants {
        Wants { shapes: self.policy.batch.by_shapes, spans: self.policy.batch.by_spans }
    }

    fn binds(&self) -> bool {
        true
    }

    fn would_start(&mut self, at: InstanceId, context: &mut Context<'_>) -> bool {
        self.instances.get_mut(at.0).is_some_and(|instance| instance.batcher.would_start(at, context))
    }

    fn waiting(&self) -> usize {
        self.table.len() + self.given.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, SequenceId, SequenceKey, SequenceStep};

    /// Each letter is a request of the sequence of that name; a capital letter is its last one. All arrive while a request of another sequence runs,
    /// which has a slot beside `candidates_max`. Checks the batches.
    #[track_caller]
    fn check(candidates_max: usize, rows_max: u32, arrivals: &str, expect: &[&str]) {
        let batch = BatchPolicy { rows_max, preferred: vec![rows_max], ..BatchPolicy::default() };
        let candidates_max = candidates_max + 1;
        let policy = OldestPolicy { instances: 1, candidates_max, idle_us: 1_000_000, requests_max: None, batch };
        let mut driver = Driver::new(Box::new(Oldest::new(policy)));
        driver.grant(InstanceId(0), 0);
        let mut known = String::new();
        for letter in std::iter::once('-').chain(arrivals.chars()) {
            let name = letter.to_ascii_lowercase();
            let key = SequenceKey { owner: 0, id: SequenceId::Number(name as u64) };
            let step = SequenceStep { key, start: !known.contains(name), end: letter.is_ascii_uppercase() };
            known.push(name);
            driver.arrive(letter, |ticket| Arrival { sequence: Some(step), ..Arrival::new(ticket, 1) }, 0);
        }
        let mut batches = Vec::new();
        while let Some(run) = driver.next_run() {
            batches.push(run.jobs().collect::<String>());
            driver.done(InstanceId(0), 0);
            driver.grant(InstanceId(0), 0);
        }
        assert_eq!(batches[0], "-");
        assert_eq!(batches[1..], *expect, "{candidates_max} candidates, {rows_max} rows, {arrivals}");
    }

    #[test]
    fn a_batch_has_one_request_of_each_candidate_the_oldest_first() {
        check(2, 4, "ab", &["ab"]);
        check(2, 4, "aabb", &["ab", "ab"]);
        check(3, 2, "abc", &["ab", "c"]);
        check(3, 4, "caab", &["cab", "a"]);
        check(1, 4, "aaa", &["a", "a", "a"]);
    }

    #[test]
    fn a_sequence_is_a_candidate_when_another_has_ended() {
        check(1, 4, "aAbB", &["a", "A", "b", "B"]);
        check(2, 4, "aAbbc", &["ab", "Ab", "c"]);
        // Sequence `a` is idle and not over, so `b` gets no slot.
        check(1, 4, "ab", &["a"]);
    }
}
