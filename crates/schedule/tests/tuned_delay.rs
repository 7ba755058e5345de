//! Does the adaptive delay follow the load, and keep the bound?

use std::collections::BTreeMap;

use nerite_schedule::{Arrival, BatchPolicy, Batcher, Driver, InstanceId, Run};
use proptest::prelude::*;

const ROWS_MAX: u32 = 8;
const BOUND_US: u64 = 8_000;

/// A request: its arrival, and the client that waits for its response, if one does.
#[derive(Clone, Copy, Debug)]
struct Job {
    arrived_us: u64,
    client: Option<usize>,
}

/// The result of a request.
#[derive(Clone, Copy, Debug)]
struct End {
    arrived_us: u64,
    /// The time from its arrival to the start of its run.
    waited_us: u64,
    latency_us: u64,
    /// The number of requests in its run.
    together: usize,
}

/// One simulated instance. A run takes `base_us`, and `row_us` for each row.
struct Simulation {
    driver: Driver<Job>,
    now_us: u64,
    run_us: (u64, u64),
    running: Option<(u64, Vec<Job>, u64)>,
    ends: Vec<End>,
    /// Future arrivals, by time.
    coming: BTreeMap<u64, Vec<Option<usize>>>,
    /// Requests that clients still have to send, each after the response to the one before.
    left: usize,
}

impl Simulation {
    fn new(base_us: u64, row_us: u64) -> Simulation {
        let policy = BatchPolicy {
            rows_max: ROWS_MAX,
            preferred: vec![ROWS_MAX],
            latency_bound_us: Some(BOUND_US),
            ..BatchPolicy::default()
        };
        let mut driver = Driver::new(Box::new(Batcher::new(policy)));
        driver.grant(InstanceId(0), 0);
        let run_us = (base_us, row_us);
        Simulation { driver, now_us: 0, run_us, running: None, ends: Vec::new(), coming: BTreeMap::new(), left: 0 }
    }

    fn add_arrival(&mut self, at_us: u64, client: Option<usize>) {
        self.coming.entry(at_us).or_default().push(client);
    }

    /// Open load: requests at these intervals, without waiting for responses.
    fn open(mut self, gaps: impl IntoIterator<Item = u64>) -> Vec<End> {
        let mut at_us = 1000;
        for gap_us in gaps {
            at_us += gap_us;
            self.add_arrival(at_us, None);
        }
        self.go()
    }

    /// Closed load: this number of clients, each of which sends its next request when it has its response.
    fn closed(mut self, clients: usize, requests: usize) -> Vec<End> {
        (0..clients).for_each(|client| self.add_arrival(1000 + 10 * client as u64, Some(client)));
        self.left = requests;
        self.go()
    }

    fn go(mut self) -> Vec<End> {
        loop {
            let done = self.running.as_ref().map(|(at_us, ..)| *at_us);
            let wake = self.driver.wake_at_us().map(|at_us| at_us.max(self.now_us));
            let arrival = self.coming.first_key_value().map(|(at_us, _)| *at_us);
            let Some(next_us) = [done, wake, arrival].into_iter().flatten().min() else { return self.ends };
            self.now_us = next_us;
            if done == Some(next_us) {
                self.done();
            } else if arrival == Some(next_us) {
                for client in self.coming.pop_first().map(|(_, clients)| clients).unwrap_or_default() {
                    let job = Job { arrived_us: next_us, client };
                    self.driver.arrive(job, |ticket| Arrival::new(ticket, 1), next_us);
                }
            } else {
                self.driver.wake(next_us);
            }
            self.take();
        }
    }

    fn take(&mut self) {
        while let Some(Run { slots, instance }) = self.driver.next_run() {
            let jobs: Vec<Job> = Run { slots, instance }.jobs().copied().collect();
            let (base_us, row_us) = self.run_us;
            let done_us = self.now_us + base_us + row_us * jobs.len() as u64;
            assert!(self.running.replace((done_us, jobs, self.now_us)).is_none(), "it runs already");
        }
    }

    fn done(&mut self) {
        let Some((at_us, jobs, started_us)) = self.running.take() else { return };
        for job in &jobs {
            self.ends.push(End {
                arrived_us: job.arrived_us,
                waited_us: started_us - job.arrived_us,
                latency_us: at_us - job.arrived_us,
                together: jobs.len(),
            });
            if job.client.is_some() && self.left > 0 {
                self.left -= 1;
                self.add_arrival(at_us + 10, job.client);
            }
        }
        self.driver.done(InstanceId(0), at_us);
        self.driver.grant(InstanceId(0), at_us);
    }
}

/// The later half, in which the delay has settled.
fn settled(ends: &[End]) -> &[End] {
    &ends[ends.len() / 2..]
}

fn mean(values: impl ExactSizeIterator<Item = u64>) -> u64 {
    let count = values.len() as u64;
    values.sum::<u64>() / count.max(1)
}

#[test]
fn at_low_load_no_request_waits() {
    let ends = Simulation::new(500, 50).open(vec![20_000; 200]);
    assert!(ends.iter().all(|end| end.waited_us == 0), "{ends:?}");
}

#[test]
fn one_client_that_asks_again_and_again_does_not_wait_for_others() {
    let ends = Simulation::new(500, 50).closed(1, 2000);
    assert!(ends.iter().all(|end| end.waited_us == 0));
}

#[test]
fn clients_that_ask_at_the_same_time_get_into_one_batch() {
    let ends = Simulation::new(500, 50).closed(6, 4000);
    let settled = settled(&ends);
    assert!(mean(settled.iter().map(|end| end.together as u64)) >= 5, "{:?}", &settled[..20]);
    assert!(settled.iter().all(|end| end.latency_us <= BOUND_US));
}

#[test]
fn under_load_batches_grow_and_the_bound_holds() {
    // Without batches they would take 1.1 ms of every 0.6 ms.
    let ends = Simulation::new(1000, 100).open(vec![600; 4000]);
    let settled = settled(&ends);
    assert!(mean(settled.iter().map(|end| end.together as u64)) >= 3, "{:?}", &settled[..20]);
    assert!(
        settled.iter().all(|end| end.latency_us <= BOUND_US),
        "{:?}",
        settled.iter().map(|end| end.latency_us).max()
    );
}

#[test]
fn the_delay_falls_to_zero_when_the_load_ends() {
    let (busy, calm) = (vec![600; 2000], vec![20_000; 30]);
    let ends = Simulation::new(1000, 100).open(busy.into_iter().chain(calm));
    let calm_from = ends.len() - 30;
    // Each request that waits without another one joining halves the delay.
    assert!(ends[calm_from + 8..].iter().all(|end| end.waited_us == 0), "{:?}", &ends[calm_from..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_request_waits_beside_an_idle_instance_for_longer_than_the_bound(
        gaps in prop::collection::vec(0u64..5_000, 1..400), base_us in 1u64..12_000, row_us in 0u64..500,
    ) {
        let count = gaps.len();
        let ends = Simulation::new(base_us, row_us).open(gaps);
        prop_assert_eq!(ends.len(), count, "lost");
        // In addition to the bound, a request waits for the runs of earlier requests that were not answered yet.
        let mut by_arrival = ends.clone();
        by_arrival.sort_by_key(|end| end.arrived_us);
        let run_us = base_us + row_us * u64::from(ROWS_MAX);
        for (at, end) in by_arrival.iter().enumerate() {
            let waits_for = |other: &&End| other.arrived_us + other.latency_us > end.arrived_us;
            let before = by_arrival[..at].iter().filter(waits_for).count() as u64;
            prop_assert!(end.waited_us <= BOUND_US + before * run_us, "{:?}", end);
        }
    }
}
