//! Which scheduler waits, starts several batches at one event, and rejects?

use std::collections::BTreeSet;

use nerite_schedule::{Arrival, Batch, Context, Event, InstanceId, Rejection, Scheduler, Slot};

/// Starts the waiting requests when they have `rows_max` rows or the oldest has waited for `delay_us`, on all instances that may start. Rejects
/// cancelled requests and those past their deadline.
pub struct Delayed {
    delay_us: u64,
    rows_max: u32,
    queue: Vec<(Arrival, u64)>,
    granted: BTreeSet<InstanceId>,
    stopped: bool,
}

impl Delayed {
    pub fn new(delay_us: u64, rows_max: u32) -> Delayed {
        Delayed { delay_us, rows_max, queue: Vec::new(), granted: BTreeSet::new(), stopped: false }
    }

    fn expire(&mut self, context: &mut Context<'_>) {
        let now_us = context.now_us;
        let is_due = |arrival: &Arrival| arrival.deadline.is_some_and(|deadline| deadline.at_us <= now_us);
        for (arrival, _) in self.queue.extract_if(.., |(arrival, _)| is_due(arrival)) {
            context.reject(arrival.ticket, Rejection::TimedOut);
        }
    }

    /// The number of requests that start now if an instance may.
    fn next_batch(&self, context: &Context<'_>) -> Option<usize> {
        let (first, since_us) = self.queue.first()?;
        let (mut rows, mut count) = (0, 0);
        for (arrival, _) in &self.queue {
            let fits = rows + arrival.rows <= self.rows_max;
            let joins = count == 0 || (context.may_join)(first.ticket, arrival.ticket);
            if !fits || !joins {
                break;
            }
            (rows, count) = (rows + arrival.rows, count + 1);
        }
        let is_due = since_us + self.delay_us <= context.now_us;
        let waits = !is_due && !self.stopped && rows < self.rows_max && count == self.queue.len();
        (!waits).then_some(count)
    }

    fn start(&mut self, context: &mut Context<'_>) {
        while let (Some(count), Some(instance)) = (self.next_batch(context), self.granted.first().copied()) {
            let batch = self.queue.drain(..count);
            let slots = batch.map(|(arrival, _)| Slot::Request { ticket: arrival.ticket, controls: None }).collect();
            self.granted.remove(&instance);
            context.run(Batch { instance, slots });
        }
    }
}

impl Scheduler for Delayed {
    fn handle(&mut self, event: Event, context: &mut Context<'_>) {
        match event {
            Event::Arrived(arrival) if self.stopped => context.reject(arrival.ticket, Rejection::Stopping),
            Event::Arrived(arrival) if arrival.rows > self.rows_max => context.reject(arrival.ticket, Rejection::Full),
            Event::Arrived(arrival) => self.queue.push((arrival, context.now_us)),
            Event::Granted(instance) => {
                self.granted.insert(instance);
            }
            Event::Withdrawn(instance) => {
                self.granted.remove(&instance);
            }
            Event::Cancelled(ticket) => {
                self.queue.retain(|(arrival, _)| arrival.ticket != ticket);
                context.reject(ticket, Rejection::Cancelled);
            }
            Event::Stop => self.stopped = true,
            Event::CutShort(_) | Event::Done(_) | Event::Changed(..) | Event::Time => {}
        }
        self.expire(context);
        self.start(context);
        if let Some((_, since_us)) = self.queue.first().filter(|_| !self.granted.is_empty()) {
            context.wake_at(since_us + self.delay_us);
        }
        self.queue.iter().filter_map(|(arrival, _)| arrival.deadline).for_each(|due| context.wake_at(due.at_us));
    }

    fn would_start(&mut self, _: InstanceId, context: &mut Context<'_>) -> bool {
        self.next_batch(context).is_some()
    }

    fn waiting(&self) -> usize {
        self.queue.len()
    }
}
