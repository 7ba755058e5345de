//! Does a request that was accepted wait only for those that were accepted before it, however many more come?
//!
//! All requests are of one peer. A wait is asserted as a count of batches, and as a time of the simulated clock. Of `ahead` requests that wait when one is accepted, each batch takes as
//! many as it may. In the time of one run every instance starts a batch.

use nerite_schedule::{Fifo, Rejection, Scheduler};
use proptest::prelude::*;

use crate::simulation::{End, Simulation, bounded_batcher, share_of};

/// What the server can do, and what it is asked for.
#[derive(Clone, Debug)]
struct Load {
    instances: usize,
    run_us: u64,
    /// Requests that one run takes.
    batch_max: usize,
    /// Requests that may wait, of all peers.
    requests_max: usize,
    /// The pauses between arrivals: about a tenth of what all instances need for one request.
    pauses_us: Vec<u64>,
}

fn loads() -> impl Strategy<Value = Load> {
    (1usize..4, 20u64..400, 1usize..9, 1usize..20).prop_flat_map(|(instances, run_us, batch_max, requests_max)| {
        let pause_us = run_us / (10 * instances * batch_max) as u64;
        let pauses_us = prop::collection::vec(0..=2 * pause_us, 400);
        pauses_us.prop_map(move |pauses_us| Load { instances, run_us, batch_max, requests_max, pauses_us })
    })
}

/// Lets all requests of a load come, and checks each. Returns the most that waited before one that was accepted, and how many were refused.
fn check(scheduler: impl Scheduler + Send + 'static, load: &Load) -> (usize, usize) {
    let mut simulation = Simulation::new(scheduler, load.instances, load.run_us, load.batch_max as u32);
    simulation.delay_us = Some(0);
    let (mut now_us, mut arrivals) = (0, Vec::new());
    for pause_us in &load.pauses_us {
        now_us += pause_us;
        simulation.pass_until(now_us);
        arrivals.push((simulation.driver.waiting(), simulation.batches.len()));
        simulation.arrive(1, None);
    }
    simulation.pass_until(now_us + 1_000_000);
    let (mut ahead_max, mut refused, own_max) = (0, 0, share_of(load.requests_max));
    for (number, (ahead, batches)) in arrivals.into_iter().enumerate() {
        match simulation.ends[&number] {
            End::Ran { at_us, .. } => {
                assert!(ahead < own_max, "{number} found {ahead} that wait");
                ahead_max = ahead_max.max(ahead);
                let batches_max = ahead / load.batch_max + 1;
                let own = simulation.batches.iter().position(|(batch, _)| batch.contains(&number)).unwrap();
                assert!(own < batches + batches_max, "{number} waited for {} batches", own - batches);
                let waited_us = at_us - simulation.jobs[number].1;
                let bound_us = batches_max.div_ceil(load.instances) as u64 * load.run_us;
                assert!(waited_us <= bound_us, "{number} waited for {waited_us} µs, at most {bound_us}");
            }
            End::Rejected { why, at_us } => {
                refused += 1;
                assert_eq!((why, at_us), (Rejection::Overloaded, simulation.jobs[number].1), "{number}, at once");
                assert_eq!(ahead, own_max, "{number} found room");
            }
        }
    }
    (ahead_max, refused)
}

proptest! {
    #[test]
    fn an_accepted_request_waits_only_for_those_accepted_before_it(load in loads()) {
        check(bounded_batcher(load.batch_max, load.requests_max), &load);
        check(Fifo::bounded(load.requests_max), &Load { batch_max: 1, ..load });
    }
}

#[test]
fn ten_times_too_much_fills_the_queue_and_no_more() {
    let load = Load { instances: 2, run_us: 1000, batch_max: 4, requests_max: 16, pauses_us: vec![12; 2000] };
    // In 24 ms each instance runs 24 times: first with one request, then with four. The last twelve wait, which are three quarters of 16.
    let (ahead_max, refused) = check(bounded_batcher(load.batch_max, load.requests_max), &load);
    assert_eq!(ahead_max, 11, "the bound is reached");
    assert_eq!(refused, 2000 - 2 * (1 + 23 * 4) - 12);
    let alone = Load { batch_max: 1, ..load };
    let (ahead_max, refused) = check(Fifo::bounded(16), &alone);
    assert_eq!(ahead_max, 11);
    assert_eq!(refused, 2000 - 2 * 24 - 12);
}
