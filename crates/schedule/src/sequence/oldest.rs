//! How are the requests of sequences batched in the order of their arrival?
//!
//! This is Triton's strategy `oldest`. Each instance has a limited number of sequences as candidates. Its own dynamic batcher gets one request of
//! each at a time.

use std::collections::HashMap;

use super::table::{SequenceNumber, SequenceTable};
use crate::action::{Action, Actions, Controls};
use crate::{
    Arrival, BatchPolicy, Batcher, Context, Event, InstanceId, Rejection, Repeat, Scheduler, Slot, Ticket, Wants,
};

/// The settings of an [`Oldest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestPolicy {
    /// The number of instances of the model.
    pub instances: usize,
    /// The most sequences that each instance serves at a time.
    pub candidates_max: usize,
    /// The time without a request after which a sequence is over.
    pub idle_us: u64,
    /// How the requests of the candidates are batched.
    pub batch: BatchPolicy,
}

/// A scheduler that batches the requests of the oldest sequences.
#[derive(Debug)]
pub struct Oldest {
    policy: OldestPolicy,
    table: SequenceTable,
    instances: Vec<Instance>,
    /// Requests in a batcher: the batcher, the sequence, and the controls for the model.
    given: HashMap<Ticket, (InstanceId, SequenceNumber, Controls)>,
    stopped: bool,
}

#[derive(Debug)]
struct Instance {
    batcher: Batcher,
    running: Vec<SequenceNumber>,
    wake_at_us: Option<u64>,
}

impl Oldest {
    /// A scheduler with that policy and no requests.
    pub fn new(policy: OldestPolicy) -> Oldest {
        let table = SequenceTable::new(policy.instances, policy.candidates_max.max(1), policy.idle_us);
        let instance =
            |_| Instance { batcher: Batcher::new(policy.batch.clone()), running: Vec::new(), wake_at_us: None };
        let instances = (0..policy.instances).map(instance).collect();
        Oldest { policy, table, instances, given: HashMap::new(), stopped: false }
    }

    /// Gives the sequence's next request to its instance's batcher, if it may run.
    fn offer(&mut self, number: SequenceNumber, context: &mut Context<'_>) {
        let Some(at) = self.table.next_of(number).map(|(_, slot)| slot.instance) else { return };
        let Some((waiting, controls)) = self.table.take(number) else { return };
        let ticket = waiting.arrival.ticket;
        self.given.insert(ticket, (at, number, controls));
        // The timeout applied to the backlog. The sequence has a slot now.
        self.forward(
            at,
            Event::Arrived(Arrival { deadline: None, sequence: None, repeat: Repeat::Never, ..waiting.arrival }),
            context,
        );
    }

    /// Passes an event to an instance's batcher, and adds the controls to the batches that it starts.
    fn forward(&mut self, at: InstanceId, event: Event, context: &mut Context<'_>) {
        let Some(instance) = self.instances.get_mut(at.0) else { return };
        let mut actions = Actions::default();
        let joins = &mut *context.joins;
        instance.batcher.handle(event, &mut Context { now_us: context.now_us, actions: &mut actions, joins });
        instance.wake_at_us = actions.wake_at_us;
        for action in actions.list {
            match action {
                Action::Run(mut batch) => {
                    for slot in &mut batch.slots {
                        if let Slot::Request { ticket, controls } = slot
                            && let Some((_, number, sequence_controls)) = self.given.remove(ticket)
                        {
                            *controls = Some(Box::new(sequence_controls));
                            instance.running.push(number);
                        }
                    }
                    context.run(batch);
                }
                Action::Reject(ticket, rejection) => context.reject(ticket, rejection),
            }
        }
    }

    fn cancelled(&mut self, ticket: Ticket, context: &mut Context<'_>) {
        if let Some((at, number, _)) = self.given.remove(&ticket) {
            self.forward(at, Event::Cancelled(ticket), context);
            self.done(number, context);
            return;
        }
        let mut placed = Vec::new();
        if self.table.remove(ticket, context.now_us, &mut placed) {
            context.reject(ticket, Rejection::Cancelled);
            self.offer_all(placed, context);
        }
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

    /// Takes no more requests of clients. The batchers still take those that wait in the table, so they are not told to stop.
    fn stop(&mut self, context: &mut Context<'_>) {
        self.stopped = true;
        let mut placed = Vec::new();
        self.table.end_all(&mut placed);
        self.offer_all(placed, context);
        for at in 0..self.instances.len() {
            self.instances[at].batcher.hurry();
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
            Event::Arrived(arrival) => {
                let ticket = arrival.ticket;
                match self.table.push(arrival, context.now_us) {
                    Ok(_) => {
                        if let Some(number) = self.table.sequence_of(ticket) {
                            self.offer(number, context);
                        }
                    }
                    Err(rejection) => context.reject(ticket, rejection),
                }
            }
            Event::Granted(at) | Event::Withdrawn(at) => self.forward(at, event, context),
            Event::Done(at) => {
                let ran = self.instances.get_mut(at.0).map(|instance| std::mem::take(&mut instance.running));
                ran.into_iter().flatten().for_each(|number| self.done(number, context));
            }
            Event::Cancelled(ticket) => self.cancelled(ticket, context),
            Event::Stop => self.stop(context),
            Event::Answered => {
                (0..self.instances.len()).for_each(|at| self.forward(InstanceId(at), Event::Answered, context));
            }
            Event::Time => {}
        }
        for at in 0..self.instances.len() {
            if self.instances[at].wake_at_us.is_some_and(|at_us| at_us <= context.now_us) {
                self.forward(InstanceId(at), Event::Time, context);
            }
        }
        context.over(self.table.over());
        self.table.next_due_us().into_iter().for_each(|at_us| context.wake_at(at_us));
        self.instances.iter().filter_map(|instance| instance.wake_at_us).for_each(|at_us| context.wake_at(at_us));
    }

    fn wants(&self) -> Wants {
        Wants { shapes: self.policy.batch.by_shapes, spans: self.policy.batch.by_spans }
    }

    fn waiting(&self) -> usize {
        self.table.len() + self.given.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, SequenceId, SequenceStep};

    /// Each letter is a request of the sequence of that name; a capital one is its last. All come while a request of another sequence runs, which has
    /// a place of its own. Checks the batches.
    #[track_caller]
    fn check(candidates_max: usize, rows_max: u32, arrivals: &str, expect: &[&str]) {
        let batch = BatchPolicy { rows_max, preferred: vec![rows_max], ..BatchPolicy::default() };
        let candidates_max = candidates_max + 1;
        let policy = OldestPolicy { instances: 1, candidates_max, idle_us: 1_000_000, batch };
        let mut driver = Driver::new(Box::new(Oldest::new(policy)));
        driver.grant(InstanceId(0), 0);
        let mut known = String::new();
        for letter in std::iter::once('-').chain(arrivals.chars()) {
            let name = letter.to_ascii_lowercase();
            let id = SequenceId::Number(name as u64);
            let step = SequenceStep { id, start: !known.contains(name), end: letter.is_ascii_uppercase() };
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
        // The first is idle, and not over.
        check(1, 4, "ab", &["a"]);
    }
}
