//! How do sequences run whose requests are batched as they come?
//!
//! Triton's strategy `oldest`. Each instance has so many sequences as candidates, and a dynamic batcher of its own that gets one request
//! of each at a time.

use std::collections::HashMap;

use super::table::{SequenceNumber, SequenceTable};
use crate::action::{Action, Actions, Controls};
use crate::{
    Arrival, BatchPolicy, Batcher, Context, Event, InstanceId, Rejection, Repeat, Scheduler, Slot, Ticket, Wants,
};

/// The settings of an [`Oldest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestPolicy {
    /// Instances of the model.
    pub instances: usize,
    /// Sequences that are served at a time by each instance.
    pub candidates_max: usize,
    /// After so long without a request a sequence is over.
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
    /// Requests that a batcher has: which batcher, of which sequence, and what the model is told.
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
    /// A scheduler of that policy to which nothing has happened.
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
        // Its sequence has its turn now: how long it may wait was a question of the backlog.
        self.tell(
            at,
            Event::Arrived(Arrival { deadline: None, sequence: None, repeat: Repeat::Never, ..waiting.arrival }),
            context,
        );
    }

    /// Tells an instance's batcher, and adds to its batches what the model is told.
    fn tell(&mut self, at: InstanceId, event: Event, context: &mut Context<'_>) {
        let Some(instance) = self.instances.get_mut(at.0) else { return };
        let mut actions = Actions::default();
        let may_join = &mut *context.may_join;
        instance.batcher.handle(event, &mut Context { now_us: context.now_us, actions: &mut actions, may_join });
        instance.wake_at_us = actions.wake_at_us;
        for action in actions.list {
            match action {
                Action::Run(mut batch) => {
                    for slot in &mut batch.slots {
                        if let Slot::Request { ticket, controls } = slot
                            && let Some((_, number, told)) = self.given.remove(ticket)
                        {
                            *controls = Some(Box::new(told));
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
            self.tell(at, Event::Cancelled(ticket), context);
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
            Event::Granted(at) | Event::Withdrawn(at) => self.tell(at, event, context),
            Event::Done(at) => {
                let ran = self.instances.get_mut(at.0).map(|instance| std::mem::take(&mut instance.running));
                ran.into_iter().flatten().for_each(|number| self.done(number, context));
            }
            Event::Cancelled(ticket) => self.cancelled(ticket, context),
            Event::Stop => self.stopped = true,
            Event::Time => {}
        }
        for at in 0..self.instances.len() {
            if self.instances[at].wake_at_us.is_some_and(|at_us| at_us <= context.now_us) {
                self.tell(InstanceId(at), Event::Time, context);
            }
        }
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
