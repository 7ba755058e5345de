//! Does a client wait only for the run in progress and one more, whatever another client sends?

use nerite_schedule::{Client, Fifo, Rejection, Scheduler};
use proptest::prelude::*;

use crate::simulation::{End, Simulation, bounded_batcher};

/// The peer that sends more than the server can do.
const FLOOD: u64 = 1;
/// The peer that has one request at a time.
const WITNESS: u64 = 2;

/// What both peers send, and what the server can do.
#[derive(Clone, Debug)]
struct Load {
    instances: usize,
    run_us: u64,
    batch_max: usize,
    requests_max: usize,
    /// The pause before each request of the flood, and its flow. On average more come than can run.
    flood: Vec<(u64, u64)>,
}

fn loads() -> impl Strategy<Value = Load> {
    (1usize..4, 20u64..400, 1usize..9, 3usize..40).prop_flat_map(|(instances, run_us, batch_max, requests_max)| {
        let pause_us = run_us / (2 * instances * batch_max) as u64;
        let flood = prop::collection::vec((0..=2 * pause_us, 0u64..5), 300);
        flood.prop_map(move |flood| Load { instances, run_us, batch_max, requests_max, flood })
    })
}

/// Lets both send, and checks how long the witness waits. It sends each request when the last one was answered. Returns the number of its requests.
fn check(scheduler: impl Scheduler + Send + 'static, load: &Load) -> usize {
    let mut simulation = Simulation::new(scheduler, load.instances, load.run_us, load.batch_max as u32);
    simulation.delay_us = Some(0);
    let (mut now_us, mut own) = (0, Vec::new());
    for (pause_us, flow) in &load.flood {
        now_us += pause_us;
        simulation.pass_until(now_us);
        simulation.arrive_from(Client { peer: FLOOD, flow: *flow }, 1);
        let is_answered = |number| match simulation.ends.get(number) {
            Some(End::Ran { at_us, .. }) => at_us + load.run_us <= now_us,
            Some(End::Rejected { .. }) => true,
            None => false,
        };
        if own.last().is_none_or(is_answered) {
            own.push(simulation.jobs.len());
            simulation.arrive_from(Client { peer: WITNESS, flow: 9 }, 1);
        }
    }
    simulation.pass_until(now_us + 1_000_000);
    assert_eq!(simulation.ends.len(), simulation.jobs.len(), "lost");
    for number in &own {
        let End::Ran { at_us, .. } = simulation.ends[number] else { panic!("{number} of the witness was rejected") };
        let waited_us = at_us - simulation.jobs[*number].1;
        assert!(waited_us <= 2 * load.run_us, "{number} waited for {waited_us} µs, a run takes {} µs", load.run_us);
    }
    own.len()
}

proptest! {
    #[test]
    fn a_client_waits_for_the_run_in_progress_and_one_more(load in loads()) {
        check(bounded_batcher(load.batch_max, load.requests_max), &load);
        check(Fifo::bounded(load.requests_max), &Load { batch_max: 1, ..load });
    }
}

#[test]
fn the_witness_asks_often_and_the_flood_fills_the_queue() {
    let load = Load { instances: 1, run_us: 100, batch_max: 1, requests_max: 12, flood: vec![(10, 0); 1000] };
    // In 10 ms a hundred requests run. The witness sends the next one in a step of the flood after its answer.
    let sent = check(Fifo::bounded(12), &load);
    assert!((30..=50).contains(&sent), "{sent}");
}

#[test]
fn a_flood_leaves_places_in_the_queue_and_nothing_that_waits_is_rejected() {
    let mut simulation = Simulation::new(Fifo::bounded(4), 1, 100, 1);
    let flood = Client { peer: FLOOD, flow: 0 };
    for _ in 0..6 {
        simulation.arrive_from(flood, 1);
    }
    simulation.arrive_from(Client { peer: WITNESS, flow: 0 }, 1);
    simulation.pass_until(1_000);
    let rejected = |number: usize| matches!(simulation.ends[&number], End::Rejected { why: Rejection::Overloaded, .. });
    assert_eq!((0..7).filter(|number| rejected(*number)).collect::<Vec<_>>(), [4, 5]);
}
