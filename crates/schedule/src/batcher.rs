//! Which requests run together in a batch, and when does it start?
//!
//! This is Triton's dynamic batcher. Requests are taken in the order of their levels, then of their arrival. A batch starts as soon as an instance
//! may start, with the largest preferred size that the waiting requests can fill. If the policy sets a delay, the batch waits that long for more
//! requests.
//!
//! ```text
//!   queue ──► 3 rows │ 1 row │ 4 rows │ 2 rows …      rows_max 8
//!             └──────── forming ──────┘ └─ does not fit: closed
//! ```
//! [`queue`] keeps the order and the deadlines. [`forming`] decides about the head of the queue. [`spans`] orders the requests of a batch as they lie
//! in memory. [`tuning`] adapts the delay to the load.

mod forming;
mod policy;
mod queue;
mod spans;
mod tuning;

pub use policy::{BatchPolicy, PriorityLevels, QueuePolicy};

use crate::{Arrival, Batch, Context, Event, InstanceId, Rejection, Scheduler, Slot, Ticket, Wants};
use forming::{BatchDecision, Forming};
use queue::{Expired, Queue, QueuePosition, Waiting};
use tuning::{Start, Tuning};

/// A scheduler that joins requests in batches.
///
/// An event costs time in the logarithm of the number of waiting requests, plus the size of a batch if the head of the
/// queue changed. The model's own rule is asked with the first request of a batch, and then about the others in the
/// order of the queue.
#[derive(Debug)]
pub struct Batcher {
    policy: BatchPolicy,
    queue: Queue,
    forming: Forming,
    /// The instance that was granted last runs next, because its memory is still in the caches.
    granted: Vec<InstanceId>,
    /// No batch starts until this many requests wait for the first time.
    hold_back: usize,
    stopped: bool,
    /// Whether no batch waits for more requests.
    hurries: bool,
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
            granted: Vec::new(),
            stopped: false,
            hurries: false,
        }
    }

    /// From the next event on, batches do not wait for more requests. Requests are still taken.
    pub(crate) fn hurry(&mut self) {
        self.hurries = true;
    }

    fn arrived(&mut self, arrival: Arrival, context: &mut Context<'_>) {
        let ticket = arrival.ticket;
        let level_max = self.policy.levels.policy(arrival.priority).requests_max;
        let is_full = |limit: Option<usize>, waiting: usize| limit.is_some_and(|limit| waiting >= limit);
        if self.stopped {
            context.reject(ticket, Rejection::Stopping);
        } else if is_full(level_max, self.queue.len_of(arrival.priority)) {
            context.reject(ticket, Rejection::Full);
        } else if is_full(self.policy.requests_max, self.queue.len()) {
            context.reject(ticket, Rejection::Overloaded);
        } else {
            let position = self.queue.push(arrival, context.now_us);
            self.changed(position);
        }
    }

    /// A request was added or removed at that position.
    fn changed(&mut self, position: QueuePosition) {
        if !self.forming.covers(position) {
            return;
        }
        let first = self.queue.behind(None).next().map(|(_, waiting)| waiting.arrival.ticket);
        if self.forming.is_cut_by_changes_behind(first) {
            self.forming.cut(position, self.queue.behind(None), &self.policy);
        } else {
            self.forming = Forming::default();
        }
    }

    fn expire(&mut self, context: &mut Context<'_>) {
        while let Some(expired) = self.queue.expire(context.now_us) {
            match expired {
                Expired::Rejected(ticket, position) => {
                    context.reject(ticket, Rejection::TimedOut);
                    self.changed(position);
                }
                Expired::Delayed(position) => self.changed(position),
            }
        }
    }

    fn start(&mut self, context: &mut Context<'_>) {
        while let Some(instance) = self.granted.last().copied() {
            self.extend_batch(context);
            if let Some(tuned) = &self.tuned {
                self.policy.delay_us = tuned.tuning.delay_us();
            }
            match self.forming.decide(&self.policy, self.hurries, context.now_us) {
                BatchDecision::Idle => {
                    context.joins.ends();
                    return self.tuned.iter_mut().for_each(|tuned| tuned.waits_since_us = None);
                }
                BatchDecision::WaitUntil(at_us) => {
                    self.tuned.iter_mut().for_each(|tuned| tuned.waits(context.now_us));
                    return context.wake_at(at_us);
                }
                BatchDecision::AwaitAnswer => return,
                BatchDecision::Run(count) => {
                    self.granted.pop();
                    context.joins.ends();
                    let due_us = self.forming.due_us(&self.policy);
                    self.forming = Forming::default();
                    let batch = self.queue.take_first(count);
                    if let Some(tuned) = &mut self.tuned {
                        tuned.started(instance, &batch, due_us, context.now_us);
                    }
                    context.run(self.batch(instance, batch));
                }
            }
        }
    }

    /// Extends the forming batch by the next requests of the queue.
    fn extend_batch(&mut self, context: &mut Context<'_>) {
        for (position, waiting) in self.queue.behind(self.forming.last()) {
            if self.forming.is_closed() || self.forming.awaits_answer() {
                return;
            }
            if self.forming.last().is_none() && !context.joins.begins(waiting.arrival.ticket) {
                return self.forming.await_answer_at(position);
            }
            let may_join = |head: Ticket, next: Ticket| context.joins.may_join(&[head], next);
            self.forming.look_at(position, waiting, &self.policy, may_join);
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
        !self.hurries && self.queue.len() < self.hold_back
    }
}

impl Tuned {
    fn new(bound_us: u64) -> Tuned {
        Tuned { tuning: Tuning::new(bound_us), waits_since_us: None, running: Vec::new() }
    }

    fn waits(&mut self, now_us: u64) {
        self.waits_since_us.get_or_insert(now_us);
    }

    /// Notes the start of a batch. It would have started at `due_us` even if no more requests had come.
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
            // Expired requests are removed first, so that they do not fill the queue for a new one.
            self.expire(context);
        }
        match event {
            Event::Arrived(arrival) => self.arrived(arrival, context),
            Event::Granted(instance) => self.granted.push(instance),
            Event::Withdrawn(instance) => self.granted.retain(|granted| *granted != instance),
            Event::Cancelled(ticket) => {
                if let Some((position, _)) = self.queue.remove(ticket) {
                    context.reject(ticket, Rejection::Cancelled);
                    self.changed(position);
                }
            }
            Event::Stop => (self.stopped, self.hurries) = (true, true),
            Event::Done(instance) => self.tuned.iter_mut().for_each(|tuned| tuned.ended(instance, context.now_us)),
            Event::Answered => self.forming.answered(),
            Event::Time => {}
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

    fn waiting(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests;
