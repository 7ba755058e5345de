//! How do scheduler and driver run together on a simulated clock?

use std::collections::BTreeMap;

use nerite_schedule::{
    Arrival, BatchPolicy, Batcher, Client, Deadline, Driver, InstanceId, Rejection, Run, Scheduler, Span, Ticket,
    TimeoutAction,
};
use proptest::prelude::*;

/// A job of a simulation.
#[derive(Clone, Debug)]
pub struct Job {
    pub number: usize,
    pub rows: u32,
    pub priority: u64,
    pub shapes: u64,
    pub deadline: Option<Deadline>,
}

/// The events of a simulation, each after a pause in µs.
#[derive(Clone, Debug)]
pub enum SimulatedEvent {
    Arrive { rows: u32, patience_us: Option<u64>, delays: bool, priority: u64, shapes: u64 },
    Cancel { back: u64 },
    Stop,
}

/// How a job ended, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Ran { instance: InstanceId, at_us: u64, order: usize },
    Rejected { why: Rejection, at_us: u64 },
}

pub struct Simulation {
    pub driver: Driver<Job>,
    now_us: u64,
    /// The end of the run of each busy instance.
    pub busy: BTreeMap<InstanceId, u64>,
    pub instances: usize,
    run_us: u64,
    pub rows_max: u32,
    /// The longest wait while an instance is idle. `None` if there is no such bound.
    pub delay_us: Option<u64>,
    /// All jobs, with their arrival.
    pub jobs: Vec<(Job, u64)>,
    pub ends: BTreeMap<usize, End>,
    /// The numbers of the jobs of each batch, and its start.
    pub batches: Vec<(Vec<usize>, u64)>,
}

impl Simulation {
    pub fn new(scheduler: impl Scheduler + Send + 'static, instances: usize, run_us: u64, rows_max: u32) -> Simulation {
        let mut driver = Driver::new(Box::new(scheduler));
        (0..instances).for_each(|instance| driver.grant(InstanceId(instance), 0));
        Simulation {
            driver,
            now_us: 0,
            busy: BTreeMap::new(),
            instances,
            run_us,
            rows_max,
            delay_us: None,
            jobs: Vec::new(),
            ends: BTreeMap::new(),
            batches: Vec::new(),
        }
    }

    /// The same, with a rule for what joins a batch.
    pub fn with_join_rule(mut self, rule: impl Fn(&Job, &Job) -> bool + Send + 'static) -> Simulation {
        self.driver = self.driver.with_join_rule(rule);
        self
    }

    /// Adds a job with this number of rows and this timeout.
    pub fn arrive(&mut self, rows: u32, patience_us: Option<u64>) -> Ticket {
        self.arrive_as(&SimulatedEvent::Arrive { rows, patience_us, delays: false, priority: 0, shapes: 0 })
    }

    /// Adds a job of that client.
    pub fn arrive_from(&mut self, client: Client, rows: u32) -> Ticket {
        self.arrive_of(
            client,
            &SimulatedEvent::Arrive { rows, patience_us: None, delays: false, priority: 0, shapes: 0 },
        )
    }

    pub fn arrive_as(&mut self, event: &SimulatedEvent) -> Ticket {
        self.arrive_of(Client::default(), event)
    }

    fn arrive_of(&mut self, client: Client, event: &SimulatedEvent) -> Ticket {
        let SimulatedEvent::Arrive { rows, patience_us, delays, priority, shapes } = *event else {
            panic!("{event:?} brings none")
        };
        let action = if delays { TimeoutAction::Delay } else { TimeoutAction::Reject };
        let deadline = patience_us.map(|patience_us| Deadline { at_us: self.now_us + patience_us, action });
        let job = Job { number: self.jobs.len(), rows, priority, shapes, deadline };
        self.jobs.push((job.clone(), self.now_us));
        let spans = [span_of(job.number)].into_iter().collect();
        // Some prefer an instance, which may not exist.
        let prefers = job.number.is_multiple_of(3).then_some(InstanceId(job.number % 5));
        let arrival =
            |ticket| Arrival { priority, deadline, client, shapes, spans, prefers, ..Arrival::new(ticket, rows) };
        let ticket = self.driver.arrive(job, arrival, self.now_us);
        self.take();
        ticket
    }

    /// Carries out all decisions.
    pub fn take(&mut self) {
        while let Some(Run { instance, slots }) = self.driver.next_run() {
            let run = Run { instance, slots };
            assert!(self.busy.insert(instance, self.now_us + self.run_us).is_none(), "{instance:?} runs already");
            assert!(run.jobs().map(|job| job.rows).sum::<u32>() <= self.rows_max, "oversized");
            self.batches.push((run.jobs().map(|job| job.number).collect(), self.now_us));
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

    fn check_idle(&self) {
        if let Some(delay_us) = self.delay_us.filter(|_| self.busy.len() < self.instances) {
            let waiting = self.jobs.iter().filter(|(job, _)| !self.ends.contains_key(&job.number));
            let late = waiting.filter(|(_, arrived_us)| arrived_us + delay_us <= self.now_us).count();
            assert_eq!(late, 0, "somebody waits at {} beside an idle instance", self.now_us);
        }
    }

    /// Advances the clock to that time, with all events that are due in between.
    pub fn pass_until(&mut self, until_us: u64) {
        loop {
            let done = self.busy.iter().map(|(instance, at_us)| (*at_us, Some(*instance))).min();
            let wake = self.driver.wake_at_us().map(|at_us| (at_us.max(self.now_us), None));
            let first = done.into_iter().chain(wake).min_by_key(|(at_us, _)| *at_us);
            let Some((at_us, what)) = first else { break };
            if at_us > until_us {
                break;
            }
            self.now_us = at_us;
            match what {
                Some(instance) => {
                    self.busy.remove(&instance);
                    self.driver.done(instance, at_us);
                    self.take();
                    let (would_start, started) = (self.driver.would_start(instance, at_us), self.batches.len());
                    self.driver.grant(instance, at_us);
                    self.take();
                    assert_eq!(self.batches.len() > started, would_start, "the scheduler knows whether it starts");
                }
                None => self.driver.wake(at_us),
            }
            self.take();
            self.check_idle();
        }
        self.now_us = until_us;
    }

    pub fn do_all(&mut self, events: &[(u64, SimulatedEvent)]) {
        let mut tickets = Vec::new();
        for (pause_us, event) in events {
            self.pass_until(self.now_us + pause_us);
            match event {
                SimulatedEvent::Arrive { .. } => tickets.push(self.arrive_as(event)),
                SimulatedEvent::Cancel { back } => {
                    if let Some(ticket) = tickets.iter().rev().nth(*back as usize) {
                        self.driver.cancel(*ticket, self.now_us);
                    }
                }
                SimulatedEvent::Stop => self.driver.stop(self.now_us),
            }
            self.take();
            self.check_idle();
        }
        self.pass_until(self.now_us + 1_000_000);
    }
}

/// Where the input of a request lies: some are end to end, and not in the order in which they come.
pub fn span_of(number: usize) -> Span {
    Span { allocation: number as u64 / 8, offset: 4 * (number as u64 * 3 % 8), len: 4 }
}

pub fn events() -> impl Strategy<Value = Vec<(u64, SimulatedEvent)>> {
    let arrive =
        (1u32..5, prop::option::of(0u64..300), any::<bool>(), 1u64..4, prop::sample::select(vec![0u64, 0, 0, 1]));
    let event = prop_oneof![
        8 => arrive.prop_map(|(rows, patience_us, delays, priority, shapes)| {
            SimulatedEvent::Arrive { rows, patience_us, delays, priority, shapes }
        }),
        2 => (0u64..5).prop_map(|back| SimulatedEvent::Cancel { back }),
        1 => Just(SimulatedEvent::Stop),
    ];
    prop::collection::vec((0u64..120, event), 0..60)
}

/// A batcher that prefers batches of the largest size, with a limit on waiting requests.
/// How many requests of one peer may wait if there are no others, of `requests_max`: three quarters, and at least one.
pub fn share_of(requests_max: usize) -> usize {
    (3 * requests_max / 4).max(requests_max.min(1))
}

pub fn bounded_batcher(rows_max: usize, requests_max: usize) -> Batcher {
    let (rows_max, requests_max) = (rows_max as u32, Some(requests_max));
    Batcher::new(BatchPolicy { rows_max, preferred: vec![rows_max], requests_max, ..BatchPolicy::default() })
}
