//! Does every request end once, in time and in order, whatever happens when?
//!
//! Decider and driver run together against instances of a play with a clock of its own. [`Delayed`] stands for deciders that wait, start
//! several batches at one event, and reject: what the default scheduler never does.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use nerite_schedule::{
    Arrival, Batch, Context, Deadline, Driver, Event, Fifo, InstanceId, Rejection, Run, Scheduler, Slot, Ticket,
    TimeoutAction,
};
use proptest::prelude::*;

/// Starts what waits once it is `rows_max` rows or the oldest waited for `delay_us`, on all instances that may start. Cancels and
/// rejects what is past its deadline.
struct Delayed {
    delay_us: u64,
    rows_max: u32,
    queue: Vec<(Arrival, u64)>,
    granted: BTreeSet<InstanceId>,
    stopped: bool,
}

impl Delayed {
    fn new(delay_us: u64, rows_max: u32) -> Delayed {
        Delayed { delay_us, rows_max, queue: Vec::new(), granted: BTreeSet::new(), stopped: false }
    }

    fn expire(&mut self, context: &mut Context<'_>) {
        let now_us = context.now_us;
        let is_due = |arrival: &Arrival| arrival.deadline.is_some_and(|deadline| deadline.at_us <= now_us);
        for (arrival, _) in self.queue.extract_if(.., |(arrival, _)| is_due(arrival)) {
            context.reject(arrival.ticket, Rejection::TimedOut);
        }
    }

    fn start(&mut self, context: &mut Context<'_>) {
        while let (Some((_, since_us)), Some(instance)) = (self.queue.first(), self.granted.first().copied()) {
            let (mut rows, mut count, mut tickets) = (0, 0, Vec::new());
            for (arrival, _) in &self.queue {
                let fits = rows + arrival.rows <= self.rows_max;
                if !fits || !tickets.is_empty() && !(context.may_join)(&tickets, arrival.ticket) {
                    break;
                }
                (rows, count) = (rows + arrival.rows, count + 1);
                tickets.push(arrival.ticket);
            }
            let is_due = since_us + self.delay_us <= context.now_us;
            if !is_due && !self.stopped && rows < self.rows_max && count == self.queue.len() {
                break;
            }
            self.queue.drain(..count);
            self.granted.remove(&instance);
            let slots = tickets.into_iter().map(|ticket| Slot::Request { ticket, controls: None }).collect();
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
            Event::Cancelled(ticket) => {
                self.queue.retain(|(arrival, _)| arrival.ticket != ticket);
                context.reject(ticket, Rejection::Cancelled);
            }
            Event::Stop => self.stopped = true,
            Event::Done(_) | Event::Time => {}
        }
        self.expire(context);
        self.start(context);
        if let Some((_, since_us)) = self.queue.first().filter(|_| !self.granted.is_empty()) {
            context.wake_at(since_us + self.delay_us);
        }
        self.queue.iter().filter_map(|(arrival, _)| arrival.deadline).for_each(|due| context.wake_at(due.at_us));
    }

    fn waiting(&self) -> usize {
        self.queue.len()
    }
}

/// A job of a play.
#[derive(Clone, Debug)]
struct Job {
    number: usize,
    rows: u32,
    deadline_us: Option<u64>,
}

/// What a play does to the driver, each after a pause in µs.
#[derive(Clone, Debug)]
enum Deed {
    Arrive { rows: u32, patience_us: Option<u64> },
    Cancel { back: u64 },
    Stop,
}

/// How a job ended, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Ran { instance: InstanceId, at_us: u64, order: usize },
    Rejected { why: Rejection, at_us: u64 },
}

struct Play {
    driver: Driver<Job>,
    now_us: u64,
    /// When an instance is done.
    busy: BTreeMap<InstanceId, u64>,
    run_us: u64,
    rows_max: u32,
    jobs: Vec<(Job, u64)>,
    ends: BTreeMap<usize, End>,
    batches: Vec<Vec<usize>>,
}

impl Play {
    fn new(scheduler: impl Scheduler + Send + 'static, instances: usize, run_us: u64, rows_max: u32) -> Play {
        let mut driver = Driver::new(Box::new(scheduler));
        (0..instances).for_each(|instance| driver.grant(InstanceId(instance), 0));
        let (busy, ends) = (BTreeMap::new(), BTreeMap::new());
        Play { driver, now_us: 0, busy, run_us, rows_max, jobs: Vec::new(), ends, batches: Vec::new() }
    }

    fn arrive(&mut self, rows: u32, patience_us: Option<u64>) -> Ticket {
        let deadline_us = patience_us.map(|patience_us| self.now_us + patience_us);
        let job = Job { number: self.jobs.len(), rows, deadline_us };
        self.jobs.push((job.clone(), self.now_us));
        let deadline = deadline_us.map(|at_us| Deadline { at_us, action: TimeoutAction::Reject });
        let ticket = self.driver.arrive(job, |ticket| Arrival { deadline, ..Arrival::new(ticket, rows) }, self.now_us);
        self.take();
        ticket
    }

    /// Takes all that was decided.
    fn take(&mut self) {
        while let Some(Run { instance, slots }) = self.driver.next_run() {
            let run = Run { instance, slots };
            assert!(self.busy.insert(instance, self.now_us + self.run_us).is_none(), "{instance:?} runs already");
            assert!(run.jobs().map(|job| job.rows).sum::<u32>() <= self.rows_max, "oversized");
            self.batches.push(run.jobs().map(|job| job.number).collect());
            for (order, job) in run.jobs().enumerate() {
                let end = End::Ran { instance, at_us: self.now_us, order: 1000 * self.batches.len() + order };
                assert_eq!(self.ends.insert(job.number, end), None, "run twice");
            }
        }
        while let Some((job, why)) = self.driver.next_rejected() {
            let end = End::Rejected { why, at_us: self.now_us };
            assert_eq!(self.ends.insert(job.number, end), None, "ended twice");
        }
    }

    /// Lets time pass until then, with everything that is due in between.
    fn pass_until(&mut self, until_us: u64) {
        loop {
            let done = self.busy.iter().map(|(instance, at_us)| (*at_us, Some(*instance))).min();
            let wake = self.driver.wake_at_us().map(|at_us| (at_us.max(self.now_us), None));
            let Some((at_us, what)) = done.into_iter().chain(wake).min_by_key(|(at_us, _)| *at_us) else { break };
            if at_us > until_us {
                break;
            }
            self.now_us = at_us;
            match what {
                Some(instance) => {
                    self.busy.remove(&instance);
                    self.driver.done(instance, at_us);
                    self.take();
                    self.driver.grant(instance, at_us);
                }
                None => self.driver.wake(at_us),
            }
            self.take();
        }
        self.now_us = until_us;
    }

    fn do_all(&mut self, deeds: &[(u64, Deed)]) {
        let mut tickets = Vec::new();
        for (pause_us, deed) in deeds {
            self.pass_until(self.now_us + pause_us);
            match deed {
                Deed::Arrive { rows, patience_us } => tickets.push(self.arrive(*rows, *patience_us)),
                Deed::Cancel { back } => {
                    if let Some(ticket) = tickets.iter().rev().nth(*back as usize) {
                        self.driver.cancel(*ticket, self.now_us);
                    }
                }
                Deed::Stop => self.driver.stop(self.now_us),
            }
            self.take();
        }
        self.pass_until(self.now_us + 1_000_000);
    }
}

fn deeds() -> impl Strategy<Value = Vec<(u64, Deed)>> {
    let arrive = (1u32..5, prop::option::of(0u64..300));
    let deed = prop_oneof![
        8 => arrive.prop_map(|(rows, patience_us)| Deed::Arrive { rows, patience_us }),
        2 => (0u64..5).prop_map(|back| Deed::Cancel { back }),
        1 => Just(Deed::Stop),
    ];
    prop::collection::vec((0u64..120, deed), 0..60)
}

proptest! {
    #[test]
    fn every_request_ends_once_whoever_decides(
        deeds in deeds(), instances in 1usize..4, run_us in 1u64..200, delay_us in 0u64..150, rows_max in 1u32..9,
    ) {
        let mut play = Play::new(Delayed::new(delay_us, rows_max), instances, run_us, rows_max);
        play.do_all(&deeds);
        check_ends(&play);
        let mut alone = Play::new(Fifo::new(), instances, run_us, 4);
        alone.do_all(&deeds);
        check_ends(&alone);
        prop_assert!(alone.batches.iter().all(|batch| batch.len() == 1));
    }
}

/// Nothing is lost, doubled, reordered, starved, or kept past its deadline.
fn check_ends(play: &Play) {
    assert!(play.driver.is_drained() && play.busy.is_empty(), "something waits for ever");
    assert_eq!(play.ends.len(), play.jobs.len(), "lost");
    let mut last = 0;
    for (number, end) in &play.ends {
        let (job, came_us) = &play.jobs[*number];
        match end {
            End::Ran { order, .. } => {
                assert!(*order > last, "reordered: {number}");
                last = *order;
            }
            End::Rejected { why: Rejection::TimedOut, at_us } => {
                assert_eq!(Some(*at_us), job.deadline_us.map(|due_us| due_us.max(*came_us)), "late");
            }
            End::Rejected { .. } => {}
        }
    }
}

#[test]
fn all_batches_that_may_start_at_one_event_do() {
    let mut play = Play::new(Delayed::new(100, 2), 2, 10, 2);
    play.arrive(2, None);
    play.arrive(1, None);
    assert_eq!(play.batches, [vec![0]], "the full one at once");
    play.arrive(1, None);
    assert_eq!(play.batches.len(), 2);
    // Both instances run; two batches wait, and start together when both are done at the same moment.
    for _ in 0..4 {
        play.arrive(1, None);
    }
    play.pass_until(10);
    assert_eq!(play.batches.len(), 4);
    let mut stopped = Play::new(Delayed::new(100, 8), 2, 10, 8);
    stopped.arrive(5, None);
    stopped.arrive(3, None);
    stopped.arrive(8, None);
    assert_eq!(stopped.batches.len(), 2);
}

#[test]
fn a_delayed_batch_starts_at_its_time_though_a_run_ended_before() {
    let mut play = Play::new(Delayed::new(100, 4), 1, 10, 4);
    play.arrive(4, None);
    play.pass_until(5);
    play.arrive(1, None);
    play.pass_until(104);
    assert_eq!(play.batches.len(), 1);
    play.pass_until(105);
    assert_eq!(play.batches, [vec![0], vec![1]]);
}

#[test]
fn a_request_that_waited_too_long_is_rejected_at_its_time_though_every_instance_runs() {
    let mut play = Play::new(Delayed::new(0, 4), 1, 1000, 4);
    play.arrive(4, None);
    play.arrive(1, Some(50));
    play.pass_until(60);
    assert_eq!(play.ends[&1], End::Rejected { why: Rejection::TimedOut, at_us: 50 });
}

#[test]
fn who_gives_up_is_answered_at_once() {
    let mut play = Play::new(Fifo::new(), 1, 1000, 4);
    let (first, second) = (play.arrive(1, None), play.arrive(1, None));
    play.driver.cancel(second, 0);
    play.driver.cancel(first, 0);
    play.take();
    assert_eq!(play.ends[&1], End::Rejected { why: Rejection::Cancelled, at_us: 0 });
    assert!(matches!(play.ends[&0], End::Ran { .. }));
}

#[test]
fn an_instance_that_is_done_starts_nothing_before_it_is_granted() {
    let mut driver = Driver::new(Box::new(Fifo::new()));
    driver.grant(InstanceId(0), 0);
    for job in ["first", "second"] {
        driver.arrive(job, |ticket| Arrival::new(ticket, 1), 0);
    }
    assert!(driver.next_run().is_some());
    driver.done(InstanceId(0), 10);
    assert!(driver.next_run().is_none());
    driver.grant(InstanceId(0), 20);
    assert_eq!(driver.next_run().unwrap().jobs().collect::<Vec<_>>(), [&"second"]);
}

#[test]
fn a_backend_may_keep_a_job_out_of_a_batch() {
    let mut driver = Driver::new(Box::new(Delayed::new(0, 8)))
        .asking(|batch: &[&u32], next: &u32| batch.iter().all(|job| **job % 2 == next % 2));
    for job in [1, 3, 2, 4] {
        driver.arrive(job, |ticket| Arrival::new(ticket, 1), 0);
    }
    driver.grant(InstanceId(0), 0);
    driver.grant(InstanceId(1), 0);
    let runs: Vec<Vec<u32>> =
        std::iter::from_fn(|| driver.next_run()).map(|run| run.jobs().copied().collect()).collect();
    assert_eq!(runs, [vec![1, 3], vec![2, 4]]);
}
