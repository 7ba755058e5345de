//! Does a request that runs again stay the next of its sequence, in any order of events?
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};

use nerite_schedule::{
    Arrival, BatchPolicy, Direct, DirectPolicy, Driver, InstanceId, Oldest, OldestPolicy, PriorityLevels, Rejection,
    Repeat, RunSlot, Scheduler, SequenceId, SequenceKey, SequenceStep, Ticket,
};
use proptest::prelude::*;

const IDLE_US: u64 = 1_000;

fn direct(instances: usize, rows_max: usize) -> Box<dyn Scheduler + Send> {
    Box::new(Direct::new(DirectPolicy { instances, rows_max, idle_us: IDLE_US, ..DirectPolicy::default() }))
}

fn oldest(instances: usize, rows_max: usize) -> Box<dyn Scheduler + Send> {
    let batch = BatchPolicy {
        rows_max: u32::try_from(rows_max).unwrap(),
        preferred: Vec::new(),
        delay_us: 0,
        latency_bound_us: None,
        hold_back: 0,
        requests_max: None,
        levels: PriorityLevels::default(),
        by_shapes: false,
        by_spans: false,
    };
    let candidates_max = rows_max;
    Box::new(Oldest::new(OldestPolicy { instances, candidates_max, idle_us: IDLE_US, requests_max: None, batch }))
}

/// A request, and how often it is to run again.
#[derive(Clone, Copy, Debug)]
struct Job {
    name: char,
    again: u32,
}

struct Simulation {
    driver: Driver<Job>,
    /// The jobs that run on each instance, with the numbers of their states.
    busy: BTreeMap<InstanceId, Vec<(Job, u64)>>,
    /// The names in the order in which they ran. Those with START are in capitals.
    ran: String,
    rejected: Vec<(char, Rejection)>,
    tickets: HashMap<char, Ticket>,
}

impl Simulation {
    fn new(scheduler: Box<dyn Scheduler + Send>, instances: usize) -> Simulation {
        let mut driver = Driver::new(scheduler);
        (0..instances).for_each(|instance| driver.grant(InstanceId(instance), 0));
        let (busy, tickets) = (BTreeMap::new(), HashMap::new());
        Simulation { driver, busy, ran: String::new(), rejected: Vec::new(), tickets }
    }

    fn arrive(&mut self, name: char, again: u32, id: SequenceId, start: bool) {
        let sequence = Some(SequenceStep { key: SequenceKey { owner: 0, id }, start, end: false });
        let repeat = Repeat::Possible;
        let job = Job { name, again };
        let ticket = self.driver.arrive(job, |ticket| Arrival { sequence, repeat, ..Arrival::new(ticket, 1) }, 0);
        self.tickets.insert(name, ticket);
        self.take();
    }

    fn again(&mut self, job: Job, state: u64) {
        let repeat = Repeat::Of(state);
        let ticket = self.driver.arrive(job, |ticket| Arrival { repeat, ..Arrival::new(ticket, 1) }, 0);
        self.tickets.insert(job.name, ticket);
        self.take();
    }

    fn take(&mut self) {
        while let Some(run) = self.driver.next_run() {
            let mut jobs = Vec::new();
            for slot in run.slots {
                let RunSlot::Job(job, controls) = slot else { continue };
                let controls = controls.expect("a request of a sequence has controls");
                let mut running = self.busy.values().flatten().chain(&jobs);
                assert!(!running.any(|(_, state)| *state == controls.state), "two requests of a sequence run at once");
                self.ran.push(if controls.start { job.name.to_ascii_uppercase() } else { job.name });
                jobs.push((job, controls.state));
            }
            assert!(self.busy.insert(run.instance, jobs).is_none());
        }
        while let Some((job, why)) = self.driver.next_rejected() {
            self.rejected.push((job.name, why));
        }
    }

    /// Ends the run of an instance. Before that, requests that are to run again are submitted.
    fn done(&mut self, instance: usize) {
        let Some(jobs) = self.busy.remove(&InstanceId(instance)) else { return };
        for (job, state) in jobs {
            if job.again > 0 {
                self.again(Job { again: job.again - 1, ..job }, state);
            }
        }
        self.driver.done(InstanceId(instance), 0);
        self.driver.grant(InstanceId(instance), 0);
        self.take();
    }

    fn finish(&mut self, instances: usize) {
        while !self.busy.is_empty() {
            (0..instances).for_each(|instance| self.done(instance));
        }
        assert!(self.driver.is_drained(), "somebody waits for ever");
    }
}

fn both(rows_max: usize, check: impl Fn(&mut Simulation)) {
    for scheduler in [direct(1, rows_max), oldest(1, rows_max)] {
        check(&mut Simulation::new(scheduler, 1));
    }
}

use SequenceId::{Number, Own};

#[test]
fn a_request_runs_as_often_as_it_comes_again() {
    both(1, |simulation| {
        simulation.arrive('a', 2, Own(1), true);
        simulation.arrive('b', 0, Own(2), true);
        simulation.finish(1);
        assert_eq!((simulation.ran.as_str(), simulation.rejected.len()), ("AaaB", 0));
    });
}

#[test]
fn a_request_that_runs_again_is_the_next_of_its_sequence() {
    both(1, |simulation| {
        simulation.arrive('a', 2, Number(7), true);
        simulation.arrive('b', 1, Number(7), false);
        simulation.finish(1);
        assert_eq!(simulation.ran, "Aaabb");
        simulation.arrive('c', 0, Number(7), false);
        assert_eq!(
            simulation.rejected,
            [('c', Rejection::MissingStart)],
            "the sequence was over with its last request"
        );
    });
}

#[test]
fn a_number_of_the_server_never_equals_a_clients() {
    both(2, |simulation| {
        simulation.arrive('a', 1, Own(7), true);
        simulation.arrive('b', 0, Number(7), false);
        assert_eq!(simulation.rejected, [('b', Rejection::MissingStart)]);
        simulation.arrive('c', 1, Number(7), true);
        simulation.finish(1);
        assert_eq!(simulation.ran.matches(['A', 'a']).count(), 2);
        assert_eq!(simulation.ran.matches(['C', 'c']).count(), 2);
    });
}

#[test]
fn an_admitted_request_runs_again_after_a_stop() {
    both(1, |simulation| {
        simulation.arrive('a', 3, Own(1), true);
        simulation.driver.stop(0);
        simulation.arrive('b', 0, Own(2), true);
        simulation.finish(1);
        assert_eq!(
            (simulation.ran.as_str(), simulation.rejected.as_slice()),
            ("Aaaa", &[('b', Rejection::Stopping)][..])
        );
    });
}

#[test]
fn a_client_that_goes_ends_its_sequence_and_leaves_its_place() {
    both(1, |simulation| {
        simulation.arrive('a', 9, Number(1), true);
        simulation.arrive('b', 0, Own(2), true);
        let jobs = simulation.busy.get(&InstanceId(0)).unwrap().clone();
        simulation.again(jobs[0].0, jobs[0].1);
        simulation.driver.cancel(simulation.tickets[&'a'], 0);
        simulation.take();
        assert_eq!(simulation.rejected, [('a', Rejection::Cancelled)]);
        simulation.busy.insert(InstanceId(0), vec![]);
        simulation.finish(1);
        assert_eq!(simulation.ran, "AB");
        simulation.arrive('c', 0, Number(1), false);
        assert_eq!(simulation.rejected.last(), Some(&('c', Rejection::MissingStart)));
    });
}

#[test]
fn a_request_that_comes_again_after_its_run_is_rejected() {
    both(1, |simulation| {
        simulation.arrive('a', 0, Own(1), true);
        let (job, state) = simulation.busy.get(&InstanceId(0)).unwrap()[0];
        simulation.done(0);
        simulation.again(job, state);
        assert_eq!((simulation.ran.as_str(), simulation.rejected.as_slice()), ("A", &[('a', Rejection::RunEnded)][..]));
    });
}

proptest! {
    /// Each request runs as often as it should, or is rejected. One that waits to run again is also rejected if another one of its sequence is
    /// cancelled. None waits forever.
    #[test]
    fn every_request_ends(
        is_direct: bool, instances in 1usize..3, rows_max in 1usize..4,
        events in prop::collection::vec((0u32..5, 0u64..4, any::<bool>(), 0usize..4), 1..25),
    ) {
        let scheduler = if is_direct { direct(instances, rows_max) } else { oldest(instances, rows_max) };
        let mut simulation = Simulation::new(scheduler, instances);
        let mut repeats = BTreeMap::new();
        for (at, (again, id, is_own, what)) in events.into_iter().enumerate() {
            let name = char::from(b'a' + u8::try_from(at).unwrap());
            let id = if is_own { Own(at as u64) } else { Number(1 + id) };
            simulation.arrive(name, again, id, is_own || what != 1);
            repeats.insert(name, again);
            match what {
                2 => simulation.done(at % instances),
                3 => {
                    let ticket = simulation.tickets[&name];
                    simulation.driver.cancel(ticket, 0);
                    simulation.take();
                }
                _ => {}
            }
        }
        simulation.finish(instances);
        for (name, again) in repeats {
            let ran = simulation.ran.chars().filter(|one| one.to_ascii_lowercase() == name).count();
            let is_rejected = simulation.rejected.iter().any(|(rejected, _)| *rejected == name);
            let expect = again as usize + 1;
            let is_right = if is_rejected { ran < expect } else { ran == expect };
            prop_assert!(is_right, "{} ran {} times in {}", name, ran, simulation.ran);
        }
    }
}
