//! Does the dynamic batcher follow its policy, in any order of events?

use std::collections::BTreeMap;

use nerite_schedule::{BatchPolicy, Batcher, PriorityLevels, QueuePolicy, Rejection, TimeoutAction};
use proptest::prelude::*;

use crate::simulation::{End, Job, SimulatedEvent, Simulation, events, share_of, span_of};

pub fn policies() -> impl Strategy<Value = BatchPolicy> {
    let preferred = prop::collection::vec(1u32..9, 0..3);
    let bounds = (prop::option::of(0usize..6), prop::option::of(1usize..4));
    (1u32..9, preferred, 0u64..150, 0usize..4, bounds, any::<bool>()).prop_map(
        |(rows_max, preferred, delay_us, hold_back, (requests_max, second_max), by_spans)| BatchPolicy {
            // A request alone may have four rows.
            rows_max: rows_max.max(4),
            preferred,
            delay_us,
            latency_bound_us: None,
            hold_back,
            requests_max,
            levels: PriorityLevels {
                count: 3,
                default_level: 3,
                policies: BTreeMap::from([(2, QueuePolicy { requests_max: second_max, ..QueuePolicy::default() })]),
                ..PriorityLevels::default()
            },
            by_shapes: true,
            by_spans,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn every_request_ends_once_in_its_time_and_order(
        events in events(), policy in policies(), instances in 1usize..4, run_us in 1u64..200,
    ) {
        let rows_max = policy.rows_max;
        let held_back = policy.hold_back > 1;
        let mut simulation = Simulation::new(Batcher::new(policy.clone()), instances, run_us, rows_max);
        // Requests that are held back may wait for any time, and so may those with deadlines.
        simulation.delay_us = (!held_back).then_some(policy.delay_us);
        simulation.do_all(&events);
        if held_back {
            simulation.driver.stop(2_000_000);
            simulation.take();
            simulation.pass_until(3_000_000);
        }
        check_ends(&simulation, &policy, held_back);
    }
}

pub fn check_ends(simulation: &Simulation, policy: &BatchPolicy, held_back: bool) {
    assert!(simulation.driver.is_drained() && simulation.busy.is_empty(), "something waits for ever");
    assert_eq!(simulation.ends.len(), simulation.jobs.len(), "lost");
    for (batch, at_us) in &simulation.batches {
        let keys: Vec<u64> = batch.iter().map(|number| simulation.jobs[*number].0.shapes).collect();
        assert!(keys.windows(2).all(|pair| pair[0] == pair[1]), "{batch:?} has several shapes");
        if policy.by_spans {
            check_places(batch);
        }
        for number in batch {
            let (job, _) = &simulation.jobs[*number];
            assert!(held_back || !is_due(job, TimeoutAction::Reject, *at_us), "{number} runs though its time is up");
            check_order(simulation, job, batch, *at_us);
        }
    }
    for (number, end) in &simulation.ends {
        let (job, arrived_us) = &simulation.jobs[*number];
        match end {
            End::Rejected { why: Rejection::TimedOut, at_us } => {
                let due_us = job.deadline.unwrap().at_us.max(*arrived_us);
                assert!(if held_back { *at_us >= due_us } else { *at_us == due_us }, "{number} is rejected at {at_us}");
            }
            End::Rejected { why: Rejection::Full, at_us } => {
                assert_eq!(at_us, arrived_us, "{number} waited before");
                let level = |other: &Job| other.priority == job.priority;
                let limit = policy.levels.policy(job.priority).requests_max.unwrap();
                assert_eq!(waiting_beside(simulation, *number, *at_us, level).min(limit), limit, "{number} found room");
            }
            End::Rejected { why: Rejection::Overloaded, at_us } => {
                assert_eq!(at_us, arrived_us, "{number} waited before");
                let most = share_of(policy.requests_max.unwrap());
                assert_eq!(
                    waiting_beside(simulation, *number, *at_us, |_| true).min(most),
                    most,
                    "{number} found room"
                );
            }
            End::Rejected { .. } | End::Ran { .. } => {}
        }
    }
}

/// Checks that a batch whose inputs lie end to end in the order of their addresses is in that order.
fn check_places(batch: &[usize]) {
    let joins = |batch: &[usize]| batch.windows(2).all(|pair| span_of(pair[0]).is_followed_by(&span_of(pair[1])));
    let mut by_address = batch.to_vec();
    by_address.sort_by_key(|number| (span_of(*number).allocation, span_of(*number).offset));
    assert!(!joins(&by_address) || joins(batch), "{batch:?} could lie end to end");
}

fn is_due(job: &Job, action: TimeoutAction, at_us: u64) -> bool {
    job.deadline.is_some_and(|due| due.action == action && due.at_us <= at_us)
}

fn ended_us(simulation: &Simulation, number: usize) -> u64 {
    match simulation.ends[&number] {
        End::Ran { at_us, .. } | End::Rejected { at_us, .. } => at_us,
    }
}

/// The number of earlier requests that had not ended at that time.
fn waiting_beside(simulation: &Simulation, number: usize, at_us: u64, counts: impl Fn(&Job) -> bool) -> usize {
    let earlier = simulation.jobs[..number].iter();
    earlier.filter(|(job, _)| counts(job) && ended_us(simulation, job.number) >= at_us).count()
}

/// Checks that no request that is before `job` by level and arrival was left waiting, apart from delayed ones.
fn check_order(simulation: &Simulation, job: &Job, batch: &[usize], at_us: u64) {
    let before = |other: &Job| {
        let delayed = |one: &Job| is_due(one, TimeoutAction::Delay, at_us);
        !delayed(other) && (other.priority, delayed(other), other.number) < (job.priority, delayed(job), job.number)
    };
    let order = |number: usize| match simulation.ends[&number] {
        End::Ran { order, .. } => order,
        End::Rejected { .. } => 0,
    };
    for (other, arrived_us) in &simulation.jobs {
        let left_behind = before(other) && *arrived_us < at_us && ended_us(simulation, other.number) >= at_us;
        let is_later = !batch.contains(&other.number) && order(other.number) > order(job.number);
        assert!(!(left_behind && is_later), "{} ran before {}", job.number, other.number);
    }
}

fn arrive(simulation: &mut Simulation, priority: u64, shapes: u64) {
    simulation.arrive_as(&SimulatedEvent::Arrive { rows: 1, patience_us: None, delays: false, priority, shapes });
}

#[test]
fn alternating_shapes_starve_no_request() {
    let policy = BatchPolicy { rows_max: 4, preferred: vec![4], by_shapes: true, ..BatchPolicy::default() };
    let mut simulation = Simulation::new(Batcher::new(policy), 1, 10, 4);
    arrive(&mut simulation, 0, 0);
    for number in 0..6 {
        arrive(&mut simulation, 0, number % 2);
    }
    simulation.pass_until(1000);
    let batches: Vec<_> = simulation.batches.iter().map(|(batch, _)| batch.clone()).collect();
    assert_eq!(batches, (0..7).map(|number| vec![number]).collect::<Vec<_>>());
}

#[test]
fn requests_that_are_held_back_start_together() {
    let policy = BatchPolicy { rows_max: 8, preferred: vec![2, 6], hold_back: 8, ..BatchPolicy::default() };
    let mut simulation = Simulation::new(Batcher::new(policy), 1, 10, 8);
    for _ in 0..7 {
        arrive(&mut simulation, 0, 0);
    }
    simulation.pass_until(500);
    assert!(simulation.batches.is_empty());
    arrive(&mut simulation, 0, 0);
    simulation.pass_until(1000);
    let sizes: Vec<_> = simulation.batches.iter().map(|(batch, at_us)| (batch.len(), *at_us)).collect();
    assert_eq!(sizes, [(6, 500), (2, 510)]);
    // The requests are held back only until the first start.
    arrive(&mut simulation, 0, 0);
    assert_eq!(simulation.batches.len(), 3);
}

#[test]
fn a_long_queue_costs_no_event_more_than_a_short_one() {
    // With 200,000 waiting requests, a walk over all of them at each event would take hours.
    let policy = BatchPolicy { rows_max: 4, preferred: vec![4], by_shapes: true, ..BatchPolicy::default() };
    let mut driver = nerite_schedule::Driver::new(Box::new(Batcher::new(policy)));
    let arrival = |ticket, number: u64| nerite_schedule::Arrival {
        deadline: Some(nerite_schedule::Deadline { at_us: 1000 + number, action: TimeoutAction::Delay }),
        priority: number % 3,
        shapes: number % 2,
        ..nerite_schedule::Arrival::new(ticket, 1)
    };
    let tickets: Vec<_> = (0..200_000).map(|n| driver.arrive(n, |ticket| arrival(ticket, n), 0)).collect();
    for (number, ticket) in tickets.iter().enumerate().skip(1).step_by(2) {
        driver.wake(1000 + number as u64 / 4);
        driver.cancel(*ticket, 1000 + number as u64 / 4);
    }
    let mut ran = 0;
    for _ in 0..100_000 {
        driver.grant(nerite_schedule::InstanceId(0), 1_000_000);
        let Some(run) = driver.next_run() else { break };
        ran += run.jobs().count();
        driver.done(run.instance, 1_000_000);
    }
    assert_eq!((ran, driver.waiting()), (100_000, 0));
}
