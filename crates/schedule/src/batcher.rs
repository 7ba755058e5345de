//! Which requests run together in a batch, and when does it start?
//!
//! This is Triton's dynamic batcher. Requests are taken in the order of their priority levels. Within a level clients take turns, and those of one
//! client are taken in the order of arrival. A batch starts as soon as an instance may start, with the largest preferred size that the waiting
//! requests can fill. If the policy sets a delay, the batch waits that long for more requests.
//!
//! ```text
//!   queue ──► 3 rows │ 1 row │ 4 rows │ 2 rows …      rows_max 8
//!             └──────── forming ──────┘ └─ does not fit: closed
//! ```
//! [`queue`] keeps the order and the deadlines. [`forming`] decides about the head of the queue. [`spans`] orders the requests of a batch by the
//! addresses of their inputs. [`tuning`] adapts the delay to the load.

mod forming;
mod policy;
mod queue;
mod spans;
mod tuning;

pub use policy::{BatchPolicy, PriorityLevels, QueuePolicy};

use crate::granted::Granted;
use crate::{Arrival, Batch, Context, Event, InstanceId, Rejection, Scheduler, Slot, Ticket, Wants};
use forming::{BatchDecision, Forming};
use queue::{Expired, PrefixChanged, Queue, Waiting};
use tuning::{Start, Tuning};

/// A scheduler that joins requests into batches.
///
/// An event takes time logarithmic in the number of waiting requests. If the head of the queue changed, it also takes time linear in the size of a
/// batch. The model's join rule is called for each further request of a batch in the order of the queue.
#[derive(Debug)]
pub struct Batcher {
    policy: BatchPolicy,
    queue: Queue,
    forming: Forming,
    granted: Granted,
    /// No batch starts before this many requests have waited at the same time. 0 once they have.
    hold_back: usize,
    stopped: bool,
    /// Whether batches start without waiting for more requests.
    has_no_delay: bool,
    /// `Some` if the delay adapts to the load.
    tuned: Option<Tuned>,
}

/// A delay that adapts to the load, and the measurements for it.
#[derive(Debug)]
struct Tuned {
    tuning: Tuning,
    /// When the head of the queue began to wait for others although an instance was free.
    waits_since_us: Option<u64>,
    running: Vec<TunedRun>,
}

#[derive(Clone, Copy, Debug)]
struct TunedRun {
    instance: InstanceId,
    oldest_us: u64,
    started_us: u64,
    has_waited: bool,
}

impl Batcher {
    /// A scheduler with that policy and no requests.
    pub fn new(policy: BatchPolicy) -> Batcher {
        Batcher {
            hold_back: policy.hold_back,
            tuned: policy.latency_bound_us.map(Tuned::new),
            policy,
            queue: Queue::default(),
            forming: Forming::default(),
            granted: Granted::default(),
            stopped: false,
            has_no_delay: false,
        }
    }

    /// From the next event on, batches do not wait for more requests. Requests are still accepted.
    pub(crate) fn stop_delaying(&mut self) {
        self.has_no_delay = true;
    }

    fn arrived(&mut self, arrival: Arrival, context: &mut Context<'_>) {
        let Arrival { ticket, priority: level, client, .. } = arrival;
        if self.stopped {
            return context.reject(ticket, Rejection::Stopping);
        }
        let level_max = self.policy.levels.policy(level).requests_max;
        if level_max.is_some_and(|limit| !self.queue.has_place_in(level, client.peer, limit)) {
            return context.reject(ticket, Rejection::Full);
        }
        if self.policy.requests_max.is_some_and(|limit| !self.queue.has_place(client.peer, limit)) {
            return context.reject(ticket, Rejection::Overloaded);
        }
        let is_changed = self.queue.push(arrival, context.now_us);
        self.changed(is_changed);
    }

    fn cancelled(&mut self, ticket: Ticket, context: &mut Context<'_>) {
        if let Some((_, is_changed)) = self.queue.remove(ticket) {
            context.reject(ticket, Rejection::Cancelled);
            self.changed(is_changed);
        }
    }

    /// A request was added or removed.
    fn changed(&mut self, is_prefix_changed: PrefixChanged) {
        // A batch is closed because of the request behind it, which may be another one now.
        if is_prefix_changed || self.forming.is_closed() {
            self.forming = Forming::default();
            self.queue.restart();
        }
    }

    fn expire(&mut self, context: &mut Context<'_>) {
        while let Some(expired) = self.queue.expire(context.now_us) {
            match expired {
                Expired::Rejected(ticket, is_changed) => {
                    context.reject(ticket, Rejection::TimedOut);
                    self.changed(is_changed);
                }
                Expired::Delayed(is_changed) => self.changed(is_changed),
            }
        }
    }

    fn start(&mut self, context: &mut Context<'_>) {
        while !self.granted.is_empty()
            && let Some(count) = self.next_batch(context)
        {
            let due_us = self.forming.due_us(&self.policy);
            self.forming = Forming::default();
            let batch = self.queue.take_first(count);
            let prefers = batch.iter().find_map(|waiting| waiting.arrival.prefers);
            let Some(instance) = self.granted.take(prefers) else { return };
            if let Some(tuned) = &mut self.tuned {
                tuned.started(instance, &batch, due_us, context.now_us);
            }
            context.run(self.batch(instance, batch));
        }
    }

    /// The number of requests that make the next batch, if it starts now on an instance that is free. Otherwise requests to be woken when it is due.
    fn next_batch(&mut self, context: &mut Context<'_>) -> Option<usize> {
        self.extend_batch(context.may_join);
        if let Some(tuned) = &self.tuned {
            self.policy.delay_us = tuned.tuning.delay_us();
        }
        match self.forming.decide(&self.policy, self.has_no_delay, context.now_us) {
            BatchDecision::Idle => self.tuned.iter_mut().for_each(|tuned| tuned.waits_since_us = None),
            BatchDecision::WaitUntil(at_us) => {
                self.tuned.iter_mut().for_each(|tuned| tuned.waits(context.now_us));
                context.wake_at(at_us);
            }
            BatchDecision::Run(count) => return Some(count),
        }
        None
    }

    /// Extends the forming batch by the next requests of the queue.
    fn extend_batch(&mut self, may_join: &dyn Fn(Ticket, Ticket) -> bool) {
        while !self.forming.is_closed()
            && let Some(waiting) = self.queue.next()
            && self.forming.look_at(waiting, &self.policy, may_join)
        {
            self.queue.advance();
        }
    }

    fn batch(&self, instance: InstanceId, mut batch: Vec<Waiting>) -> Batch {
        if self.policy.by_spans {
            spans::arrange(&mut batch);
        }
        let slot = |waiting: &Waiting| Slot::Request { ticket: waiting.arrival.ticket, controls: None };
        Batch { instance, slots: batch.iter().map(slot).collect() }
    }

    fn is_held_back(&self) -> bool {
        !self.has_no_delay && self.queue.len() < self.hold_back
    }
}

impl Tuned {
    fn new(bound_us: u64) -> Tuned {
        Tuned { tuning: Tuning::new(bound_us), waits_since_us: None, running: Vec::new() }
    }

    fn waits(&mut self, now_us: u64) {
        self.waits_since_us.get_or_insert(now_us);
    }

    /// Notes the start of a batch. `due_us` is when the batch would have started without further requests.
    fn started(&mut self, instance: InstanceId, batch: &[Waiting], due_us: u64, now_us: u64) {
        let since = batch.iter().map(|waiting| waiting.since_us);
        let oldest_us = since.clone().min().unwrap_or(now_us);
        let waited = self.waits_since_us.take();
        self.tuning.started(match waited {
            Some(begun_us) => Start::AfterDelay {
                joined: since.filter(|since_us| *since_us > begun_us).count(),
                filled: now_us < due_us,
            },
            None if oldest_us < now_us => Start::AfterRun,
            None => Start::AtOnce,
        });
        self.running.push(TunedRun { instance, oldest_us, started_us: now_us, has_waited: waited.is_some() });
    }

    fn ended(&mut self, instance: InstanceId, now_us: u64) {
        let Some(at) = self.running.iter().position(|run| run.instance == instance) else { return };
        let run = self.running.swap_remove(at);
        let is_late = run.has_waited && now_us.saturating_sub(run.oldest_us) > self.tuning.bound_us();
        self.tuning.ended(now_us.saturating_sub(run.started_us), is_late);
    }
}

impl Scheduler for Batcher {
    fn handle(&mut self, event: Event, context: &mut Context<'_>) {
        if !self.is_held_back() {
            // Expired requests are removed first, so that a new one does not find the queue full because of them.
            self.expire(context);
        }
        match event {
            Event::Arrived(arrival) => self.arrived(arrival, context),
            Event::Granted(instance) => self.granted.push(instance),
            Event::Withdrawn(instance) => self.granted.withdraw(instance),
            Event::Cancelled(ticket) => self.cancelled(ticket, context),
            Event::Stop => (self.stopped, self.has_no_delay) = (true, true),
            Event::Done(instance) => self.tuned.iter_mut().for_each(|tuned| tuned.ended(instance, context.now_us)),
            Event::CutShort(_) | Event::Changed(..) | Event::Time => {}
        }
        if self.is_held_back() {
            return;
        }
        self.hold_back = 0;
        self.expire(context);
        self.start(context);
        if let Some(at_us) = self.queue.next_deadline_us() {
            context.wake_at(at_us);
        }
    }

    fn wants(&self) -> Wants {
        Wants { shapes: self.policy.by_shapes, spans: self.policy.by_spans }
    }

    fn would_start(&mut self, _: InstanceId, context: &mut Context<'_>) -> bool {
        !self.is_held_back() && self.next_batch(context).is_some()
    }

    fn waiting(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests;
