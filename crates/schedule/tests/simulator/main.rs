//! Does every request end once, in time and in order, in any order of events?
//!
//! Scheduler and driver run together against simulated instances with a simulated clock. [`delayed::Delayed`] is a scheduler that waits, starts
//! several batches at one event, and rejects requests. The default scheduler does none of these.
#![allow(clippy::unwrap_used)]

mod batcher;
mod cancelled_sequences;
mod changed_instances;
mod delayed;
mod fairness;
mod overload;
mod restarted_sequences;
mod rules;
mod sequence_cases;
mod sequences;
mod shared_slots;
mod simulation;

use nerite_schedule::{Arrival, Driver, Fifo, InstanceId, Rejection};
use proptest::prelude::*;

use delayed::Delayed;
use simulation::{End, Simulation, events};

proptest! {
    #[test]
    fn every_request_ends_once_with_each_scheduler(
        events in events(), instances in 1usize..4, run_us in 1u64..200, delay_us in 0u64..150, rows_max in 1u32..9,
    ) {
        let mut simulation = Simulation::new(Delayed::new(delay_us, rows_max), instances, run_us, rows_max);
        simulation.do_all(&events);
        check_ends(&simulation);
        let mut alone = Simulation::new(Fifo::new(), instances, run_us, 4);
        alone.do_all(&events);
        check_ends(&alone);
        prop_assert!(alone.batches.iter().all(|(batch, _)| batch.len() == 1));
    }
}

/// Checks that no request is lost, run twice, reordered, starved, or kept past its deadline.
fn check_ends(simulation: &Simulation) {
    assert!(simulation.driver.is_drained() && simulation.busy.is_empty(), "something waits for ever");
    assert_eq!(simulation.ends.len(), simulation.jobs.len(), "lost");
    let mut last = 0;
    for (number, end) in &simulation.ends {
        let (job, arrived_us) = &simulation.jobs[*number];
        match end {
            End::Ran { order, .. } => {
                assert!(*order > last, "reordered: {number}");
                last = *order;
            }
            End::Rejected { why: Rejection::TimedOut, at_us } => {
                assert_eq!(Some(*at_us), job.deadline.map(|due| due.at_us.max(*arrived_us)), "late");
            }
            End::Rejected { .. } => {}
        }
    }
}

#[test]
fn all_batches_that_may_start_at_one_event_do() {
    let mut simulation = Simulation::new(Delayed::new(100, 2), 2, 10, 2);
    simulation.arrive(2, None);
    simulation.arrive(1, None);
    assert_eq!(simulation.batches, [(vec![0], 0)], "the full one at once");
    simulation.arrive(1, None);
    assert_eq!(simulation.batches.len(), 2);
    // Both instances run. Two batches wait, and start together when both instances are done at the same moment.
    for _ in 0..4 {
        simulation.arrive(1, None);
    }
    simulation.pass_until(10);
    assert_eq!(simulation.batches.len(), 4);
    let mut stopped = Simulation::new(Delayed::new(100, 8), 2, 10, 8);
    stopped.arrive(5, None);
    stopped.arrive(3, None);
    stopped.arrive(8, None);
    assert_eq!(stopped.batches.len(), 2);
}

#[test]
fn a_delayed_batch_starts_at_its_time_though_a_run_ended_before() {
    let mut simulation = Simulation::new(Delayed::new(100, 4), 1, 10, 4);
    simulation.arrive(4, None);
    simulation.pass_until(5);
    simulation.arrive(1, None);
    simulation.pass_until(104);
    assert_eq!(simulation.batches.len(), 1);
    simulation.pass_until(105);
    assert_eq!(simulation.batches, [(vec![0], 0), (vec![1], 105)]);
}

#[test]
fn a_request_that_waited_too_long_is_rejected_at_its_time_though_every_instance_runs() {
    let mut simulation = Simulation::new(Delayed::new(0, 4), 1, 1000, 4);
    simulation.arrive(4, None);
    simulation.arrive(1, Some(50));
    simulation.pass_until(60);
    assert_eq!(simulation.ends[&1], End::Rejected { why: Rejection::TimedOut, at_us: 50 });
}

#[test]
fn a_cancelled_request_is_answered_at_once() {
    let mut simulation = Simulation::new(Fifo::new(), 1, 1000, 4);
    let (first, second) = (simulation.arrive(1, None), simulation.arrive(1, None));
    simulation.driver.cancel(second, 0);
    simulation.driver.cancel(first, 0);
    simulation.take();
    assert_eq!(simulation.ends[&1], End::Rejected { why: Rejection::Cancelled, at_us: 0 });
    assert!(matches!(simulation.ends[&0], End::Ran { .. }));
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
    let mut driver = Driver::new(Box::new(Delayed::new(0, 8))).with_join_rule(|first, next| first % 2 == next % 2);
    for job in [1, 3, 2, 4] {
        driver.arrive(job, |ticket| Arrival::new(ticket, 1), 0);
    }
    driver.grant(InstanceId(0), 0);
    driver.grant(InstanceId(1), 0);
    let runs: Vec<Vec<u32>> =
        std::iter::from_fn(|| driver.next_run()).map(|run| run.jobs().copied().collect()).collect();
    assert_eq!(runs, [vec![1, 3], vec![2, 4]]);
}
