//! How are sequences batched if each one keeps its position in every batch?
//!
//! This is Triton's strategy `direct`. A batch of an instance has a place for each position up to the last one with a waiting request. Positions
//! without a request in this batch are empty.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::table::{QueuePlace, SequenceNumber, SequenceTable};
use crate::{Arrival, Batch, Context, Event, InstanceChange, InstanceId, Rejection, Repeat, Scheduler, Slot, Wants};

/// The settings of a [`Direct`]. The default has no instance, and no wait.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DirectPolicy {
    /// The number of instances of the model at the beginning.
    pub instances: usize,
    /// The most rows of a batch. This is also the most sequences of an instance.
    pub rows_max: usize,
    /// The time without a request after which a sequence is over.
    pub idle_us: u64,
    /// How long a request waits for those of other sequences.
    pub delay_us: u64,
    /// An instance starts before the delay is over if at least this share of its sequences, from 0 to 1, has a request.
    pub utilization_min: f32,
    /// Whether [`Arrival::shapes`](crate::Arrival::shapes) decides which requests may share a batch.
    pub by_shapes: bool,
    /// The most waiting requests that start sequences. As many further requests of sequences may wait beside them. `None` for no limit.
    pub requests_max: Option<usize>,
    /// The numbers of waiting requests before the first start.
    pub hold_back: HoldBack,
}

/// The numbers of requests that must wait before a scheduler of sequences starts for the first time. Tests use it to start only when all requests
/// have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldBack {
    /// Requests of sequences that have a position.
    pub placed: usize,
    /// Requests of sequences that have none.
    pub backlog: usize,
}

/// A scheduler of sequences that keep their position.
#[derive(Debug)]
pub struct Direct {
    policy: DirectPolicy,
    table: SequenceTable,
    instances: Vec<Instance>,
    stopped: bool,
}

#[derive(Clone, Debug, Default)]
struct Instance {
    granted: bool,
    /// Sequences with a request that may run, by position.
    ready: BTreeMap<usize, SequenceNumber>,
    running: Vec<SequenceNumber>,
}

impl Direct {
    /// A scheduler with that policy and no requests.
    pub fn new(policy: DirectPolicy) -> Direct {
        let table = SequenceTable::new(policy.instances, policy.rows_max.max(1), policy.idle_us, policy.requests_max);
        Direct { policy, table, instances: vec![Instance::default(); policy.instances], stopped: false }
    }

    /// Notes that the sequence is ready, if it has a request that may run.
    fn look_at(&mut self, number: SequenceNumber) {
        if let Some((_, slot)) = self.table.next_of(number)
            && let Some(instance) = self.instances.get_mut(slot.instance.0)
        {
            instance.ready.insert(slot.position, number);
        }
    }

    /// Rejects the waiting requests of a sequence, which ends. Adds the sequence that got its slot to `placed`.
    fn cancel(&mut self, number: SequenceNumber, placed: &mut Vec<SequenceNumber>, context: &mut Context<'_>) {
        if let Some((_, slot)) = self.table.next_of(number)
            && let Some(instance) = self.instances.get_mut(slot.instance.0)
        {
            instance.ready.remove(&slot.position);
        }
        for ticket in self.table.cancel(number, placed) {
            context.reject(ticket, Rejection::Cancelled);
        }
    }

    fn arrived(&mut self, arrival: Arrival, context: &mut Context<'_>) {
        let (ticket, mut placed) = (arrival.ticket, Vec::new());
        if let Err(rejection) = self.table.push(arrival, context.now_us, &mut placed) {
            context.reject(ticket, rejection);
        }
        placed.into_iter().chain(self.table.sequence_of(ticket)).for_each(|number| self.look_at(number));
    }

    /// When the requests of this instance start. `None` if there are none.
    fn due_us(&self, instance: &Instance) -> Option<u64> {
        let since = instance.ready.values().filter_map(|number| self.table.next_of(*number));
        let oldest_us = since.map(|(waiting, _)| waiting.since_us).min()?;
        let DirectPolicy { rows_max, delay_us, utilization_min, .. } = self.policy;
        #[expect(clippy::cast_precision_loss, reason = "few slots, and the configuration gives FP32")]
        let utilization = instance.ready.len() as f32 / rows_max.max(1) as f32;
        let waits = delay_us > 0 && utilization < utilization_min && !self.stopped;
        Some(if waits { oldest_us.saturating_add(delay_us) } else { 0 })
    }

    /// Whether the first start still waits for more requests.
    fn is_held_back(&mut self) -> bool {
        let HoldBack { placed, backlog } = self.policy.hold_back;
        if placed == 0 && backlog == 0 {
            return false;
        }
        let in_backlog = self.table.backlog_len();
        let is_held = !self.stopped && (self.table.len() - in_backlog < placed || in_backlog < backlog);
        if !is_held {
            self.policy.hold_back = HoldBack::default();
        }
        is_held
    }

    fn start(&mut self, context: &mut Context<'_>) {
        if self.is_held_back() {
            return;
        }
        for at in 0..self.instances.len() {
            if self.instances[at].granted && self.is_due(InstanceId(at), context) {
                let batch = self.batch(InstanceId(at), context);
                context.run(batch);
            }
        }
    }

    /// Whether the requests of this instance start now. If they start later, the scheduler requests to be woken.
    fn is_due(&self, at: InstanceId, context: &mut Context<'_>) -> bool {
        let Some(due_us) = self.instances.get(at.0).and_then(|instance| self.due_us(instance)) else { return false };
        if due_us > context.now_us {
            context.wake_at(due_us);
        }
        due_us <= context.now_us
    }

    /// The requests that can share a batch with the oldest, each at its position.
    fn batch(&mut self, at: InstanceId, context: &mut Context<'_>) -> Batch {
        let ready: Vec<(usize, SequenceNumber)> =
            self.instances[at.0].ready.iter().map(|(position, number)| (*position, *number)).collect();
        let arrival = |number: &SequenceNumber| self.table.next_of(*number).map(|(waiting, _)| &waiting.arrival);
        let oldest = ready.iter().filter_map(|(_, number)| arrival(number)).min_by_key(|arrival| arrival.ticket);
        let head = oldest.map(|arrival| (arrival.ticket, arrival.shapes));
        let joins = |number: &SequenceNumber| {
            let (Some((ticket, shapes)), Some(next)) = (head, arrival(number)) else { return false };
            next.ticket == ticket || (next.shapes == shapes && (context.may_join)(ticket, next.ticket))
        };
        // As in Triton, a request that does not join counts as one of its position.
        let len = ready.last().map_or(0, |(position, _)| position + 1);
        let joined: Vec<_> = ready.into_iter().filter(|(_, number)| joins(number)).collect();
        let mut slots: SmallVec<[Slot; 1]> = SmallVec::new();
        for (position, number) in joined {
            slots.resize(position, Slot::Empty);
            let Some((waiting, controls)) = self.table.take(number) else { continue };
            self.table.waits_no_more(QueuePlace::of(&waiting.arrival));
            slots.push(Slot::Request { ticket: waiting.arrival.ticket, controls: Some(Box::new(controls)) });
            self.instances[at.0].ready.remove(&position);
            self.instances[at.0].running.push(number);
        }
        slots.resize(len, Slot::Empty);
        self.instances[at.0].granted = false;
        Batch { instance: at, slots }
    }
}

impl Scheduler for Direct {
    fn handle(&mut self, event: Event, context: &mut Context<'_>) {
        let mut placed = Vec::new();
        for ticket in self.table.expire(context.now_us, &mut placed) {
            context.reject(ticket, Rejection::SequenceTimedOut);
        }
        for number in placed.drain(..) {
            self.look_at(number);
        }
        match event {
            Event::Arrived(arrival) if self.stopped && !matches!(arrival.repeat, Repeat::Of(_)) => {
                context.reject(arrival.ticket, Rejection::Stopping);
            }
            Event::Arrived(arrival) => self.arrived(arrival, context),
            Event::Granted(at) | Event::Withdrawn(at) => {
                if let Some(instance) = self.instances.get_mut(at.0) {
                    instance.granted = matches!(event, Event::Granted(_));
                }
            }
            Event::Changed(at, change) => {
                if change == InstanceChange::Added {
                    self.instances.resize_with(self.instances.len().max(at.0 + 1), Instance::default);
                }
                for number in self.table.change(at, change) {
                    self.look_at(number);
                }
            }
            Event::Done(at) => {
                let ran = self.instances.get_mut(at.0).map(|instance| std::mem::take(&mut instance.running));
                for number in ran.into_iter().flatten() {
                    let next = self.table.done(number, context.now_us).unwrap_or(number);
                    self.look_at(next);
                }
            }
            Event::Cancelled(ticket) => {
                if let Some(number) = self.table.sequence_of(ticket) {
                    self.cancel(number, &mut placed, context);
                    for number in placed {
                        self.look_at(number);
                    }
                }
            }
            Event::CutShort(number) => {
                self.cancel(SequenceNumber(number), &mut placed, context);
                for number in placed {
                    self.look_at(number);
                }
            }
            Event::Stop => {
                self.stopped = true;
                self.table.end_all(&mut placed);
                for number in placed {
                    self.look_at(number);
                }
            }
            Event::Time => {}
        }
        self.start(context);
        self.table.report(context);
        self.table.next_due_us().into_iter().for_each(|at_us| context.wake_at(at_us));
    }

    fn wants(&self) -> Wants {
        Wants { shapes: self.policy.by_shapes, spans: false }
    }

    fn binds(&self) -> bool {
        true
    }

    fn would_start(&mut self, at: InstanceId, context: &mut Context<'_>) -> bool {
        !self.is_held_back() && self.is_due(at, context)
    }

    fn waiting(&self) -> usize {
        self.table.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, SequenceId, SequenceKey, SequenceStep};

    /// Each letter is a request of the sequence of that name. Two sequences have a position. Checks how many requests have started after each.
    #[track_caller]
    fn check(placed: usize, backlog: usize, arrivals: &str, expect: &[usize]) {
        let hold_back = HoldBack { placed, backlog };
        let policy =
            DirectPolicy { instances: 1, rows_max: 2, idle_us: 1_000_000, hold_back, ..DirectPolicy::default() };
        let mut driver = Driver::new(Box::new(Direct::new(policy)));
        driver.grant(InstanceId(0), 0);
        let mut started = 0;
        let mut known = String::new();
        let mut found = Vec::new();
        for letter in arrivals.chars() {
            let start = !known.contains(letter);
            known.push(letter);
            let key = SequenceKey { owner: 0, id: SequenceId::Number(letter as u64) };
            let step = SequenceStep { key, start, end: false };
            driver.arrive(letter, |ticket| Arrival { sequence: Some(step), ..Arrival::new(ticket, 1) }, 0);
            started += std::iter::from_fn(|| driver.next_run()).map(|run| run.jobs().count()).sum::<usize>();
            found.push(started);
        }
        assert_eq!(found, expect, "{hold_back:?} {arrivals}");
    }

    #[test]
    fn no_batch_starts_before_enough_requests_wait_with_and_without_a_position() {
        check(0, 0, "abc", &[1, 1, 1]);
        check(2, 0, "ab", &[0, 2]);
        check(3, 0, "aba", &[0, 0, 2]);
        check(1, 2, "abccc", &[0, 0, 0, 2, 2]);
        check(2, 1, "accb", &[0, 0, 0, 2]);
        check(0, 1, "abc", &[0, 0, 2]);
    }

    /// Each digit is the shape of the first request of a sequence. Checks the positions of the first batch: a digit, or `.` for an empty one.
    #[track_caller]
    fn check_positions(shapes: &str, expect: &str) {
        let hold_back = HoldBack { placed: shapes.len(), backlog: 0 };
        let policy = DirectPolicy {
            instances: 1,
            rows_max: 4,
            idle_us: 1_000_000,
            by_shapes: true,
            hold_back,
            ..DirectPolicy::default()
        };
        let mut driver = Driver::new(Box::new(Direct::new(policy)));
        driver.grant(InstanceId(0), 0);
        for (number, shape) in shapes.chars().enumerate() {
            let key = SequenceKey { owner: 0, id: SequenceId::Number(number as u64 + 1) };
            let sequence = Some(SequenceStep { key, start: true, end: false });
            driver.arrive(shape, |ticket| Arrival { sequence, shapes: shape as u64, ..Arrival::new(ticket, 1) }, 0);
        }
        let run = driver.next_run().expect("enough requests wait");
        let shown = run.slots.iter().map(|slot| match slot {
            crate::RunSlot::Job(shape, _) => *shape,
            crate::RunSlot::Empty => '.',
        });
        assert_eq!(shown.collect::<String>(), expect, "{shapes}");
    }

    #[test]
    fn a_batch_reaches_up_to_the_last_position_with_a_waiting_request() {
        check_positions("111", "111");
        check_positions("121", "1.1");
        check_positions("112", "11.");
        check_positions("1222", "1...");
    }

    #[test]
    fn a_sequence_is_over_when_no_request_of_it_waits_or_runs_and_none_came_for_too_long() {
        let policy = DirectPolicy { instances: 1, rows_max: 2, idle_us: 100, ..DirectPolicy::default() };
        let mut driver = Driver::new(Box::new(Direct::new(policy)));
        driver.grant(InstanceId(0), 0);
        let arrive = |driver: &mut Driver<u64>, id: u64, start: bool, end: bool, at_us: u64| {
            let key = SequenceKey { owner: 0, id: SequenceId::Number(id) };
            let step = SequenceStep { key, start, end };
            driver.arrive(id, |ticket| Arrival { sequence: Some(step), ..Arrival::new(ticket, 1) }, at_us);
            std::iter::from_fn(|| driver.next_run()).flat_map(|run| run.slots).find_map(|slot| match slot {
                crate::RunSlot::Job(_, controls) => controls.map(|controls| controls.state),
                crate::RunSlot::Empty => None,
            })
        };
        let first = arrive(&mut driver, 7, true, false, 0).expect("it runs");
        // The next request waits for longer than a sequence may be idle.
        assert_eq!(arrive(&mut driver, 7, false, false, 10), None);
        driver.wake(500);
        assert_eq!(driver.take_over(), []);
        driver.done(InstanceId(0), 500);
        driver.grant(InstanceId(0), 500);
        assert_eq!(driver.next_run().map(|run| run.jobs().count()), Some(1));
        driver.done(InstanceId(0), 600);
        driver.grant(InstanceId(0), 600);
        driver.wake(699);
        assert_eq!(driver.take_over(), []);
        driver.wake(700);
        assert_eq!(driver.take_over(), [first]);
        // Another sequence ends with its last request.
        let second = arrive(&mut driver, 8, true, true, 800).expect("it runs");
        assert_eq!(driver.take_over(), []);
        driver.done(InstanceId(0), 900);
        assert_eq!((driver.take_over(), driver.take_over()), (vec![second], Vec::new()));
    }

    /// `a` starts or continues sequence `a`, `+a` starts it again, `-a` ends it. `!0`: instance 0 is down. `^0`: it is up again. There are two
    /// instances with a position each. Checks where the requests run: `a0` is a request of `a` on instance 0.
    #[track_caller]
    fn check_down(events: &str, expect: &str) {
        let policy = DirectPolicy { instances: 2, rows_max: 1, idle_us: 1_000_000, ..DirectPolicy::default() };
        let mut driver = Driver::new(Box::new(Direct::new(policy)));
        (0..2).for_each(|at| driver.grant(InstanceId(at), 0));
        let (mut known, mut ran) = (String::new(), Vec::new());
        for event in events.split(' ') {
            let last = event.chars().last().expect("an event has letters");
            let at = InstanceId(usize::from(last == '1'));
            if event.starts_with(['!', '^']) {
                let change = if event.starts_with('!') { InstanceChange::Down } else { InstanceChange::Up };
                driver.change(at, change, 0);
            } else {
                let (start, end) = (event.starts_with('+') || !known.contains(last), event.starts_with('-'));
                known.push(last);
                let key = SequenceKey { owner: 0, id: SequenceId::Number(last as u64) };
                let step = SequenceStep { key, start, end };
                driver.arrive(last, |ticket| Arrival { sequence: Some(step), ..Arrival::new(ticket, 1) }, 0);
            }
            while let Some(run) = driver.next_run() {
                ran.push(format!("{}{}", run.jobs().collect::<String>(), run.instance.0));
                driver.done(run.instance, 0);
                driver.grant(run.instance, 0);
            }
        }
        assert_eq!(ran.join(" "), expect, "{events}");
    }

    #[test]
    fn new_sequences_go_to_instances_that_are_up_and_bound_ones_stay() {
        check_down("a b", "a0 b1");
        check_down("!0 a", "a1");
        check_down("a !0 a", "a0 a0");
        // No instance that is up has a free position, so `b` waits.
        check_down("!0 a b", "a1");
        check_down("!0 a b -a b", "a1 a1 b1 b1");
        check_down("!0 a b ^0", "a1 b0");
        // A position that a sequence leaves is taken only if its instance is up.
        check_down("a b !0 c -a", "a0 b1 a0");
        check_down("a b !0 c -a ^0", "a0 b1 a0 c0");
        check_down("a -a !0 b ^0 c", "a0 a0 b1 c0");
        // A sequence that starts again leaves its position if the instance is down.
        check_down("a !0 +a a", "a0 a1 a1");
        check_down("a b !0 +a -b ^0", "a0 b1 b1 a1");
        // If no instance is up, the pool reports none as down. If it reports all as down, all are used.
        check_down("!0 !1 a b", "a0 b1");
    }

    #[test]
    fn a_stopping_scheduler_holds_no_request_back() {
        let hold_back = HoldBack { placed: 9, backlog: 9 };
        let policy = DirectPolicy { instances: 1, rows_max: 2, idle_us: 1, hold_back, ..DirectPolicy::default() };
        let mut driver = Driver::new(Box::new(Direct::new(policy)));
        driver.grant(InstanceId(0), 0);
        let key = SequenceKey { owner: 0, id: SequenceId::Number(1) };
        let step = SequenceStep { key, start: true, end: true };
        driver.arrive('a', |ticket| Arrival { sequence: Some(step), ..Arrival::new(ticket, 1) }, 0);
        assert!(driver.next_run().is_none());
        driver.stop(0);
        assert!(driver.next_run().is_some());
    }
}
