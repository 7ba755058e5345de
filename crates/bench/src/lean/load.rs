//! How is a closed loop run and timed?

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use nerite_bench::cost::{cpu_us, with_descendants};
use nerite_bench::wire::{Connection, Endpoint, Grpc, Headers, Http};

use super::args::{Placement, Plan, Protocol};
use super::error::{BenchError, tried};
use super::payload::Payload;
use super::report;
use super::report::{Cell, Costs};

/// The method of gRPC that is called.
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Measures every combination, and prints each as soon as it is known.
pub(crate) fn run(plan: &Plan) -> Result<(), BenchError> {
    report::title(plan.json);
    for &bytes in &plan.bytes {
        for server in &plan.servers {
            for &placement in &plan.placements {
                for &concurrency in &plan.concurrency {
                    let costs = measure(plan, server, placement, bytes, concurrency)?;
                    let cell = Cell { protocol: server.0.name(), placement: placement.name(), bytes, concurrency };
                    report::line(&cell, &costs, plan.json);
                }
            }
        }
    }
    Ok(())
}

/// One finished request: when it ended, and how long it took.
#[derive(Clone, Copy)]
struct Sample {
    end: Instant,
    took: Duration,
}

/// What the workers share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    done: AtomicUsize,
}

#[expect(clippy::disallowed_methods, reason = "without a thread for each worker there is no measurement")]
fn measure(
    plan: &Plan,
    server: &(Protocol, String),
    placement: Placement,
    bytes: usize,
    concurrency: usize,
) -> Result<Costs, BenchError> {
    let payload = Arc::new(Payload::new(plan, server, placement, bytes)?);
    let shared = Arc::new(Shared::default());
    let workers: Vec<JoinHandle<io::Result<Vec<Sample>>>> = (0..concurrency)
        .map(|_| {
            let (server, payload, shared) = (server.clone(), Arc::clone(&payload), Arc::clone(&shared));
            spawn(move || {
                let outcome = connect(&server).and_then(|mut one| work(one.as_mut(), &payload, &shared));
                // The failure of one worker ends the measurement, because the load would be different without it.
                shared.stop.fetch_or(outcome.is_err(), Ordering::Relaxed);
                outcome
            })
        })
        .collect();

    wait(&shared, plan.warm_up, concurrency);
    let (server_pids, me) = (with_descendants(&plan.pids), [std::process::id()]);
    let (from, server_before, client_before) = (Instant::now(), cpu_us(&server_pids), cpu_us(&me));
    wait(&shared, plan.length, plan.requests_min);
    let (to, server_after, client_after) = (Instant::now(), cpu_us(&server_pids), cpu_us(&me));
    shared.stop.store(true, Ordering::Relaxed);

    let mut took = Vec::new();
    let mut failure = None;
    for worker in workers {
        match worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked"))) {
            Ok(samples) => took.extend(samples.iter().filter(|s| s.end > from && s.end <= to).map(|s| s.took)),
            Err(reason) => failure = Some(reason),
        }
    }
    let ended = Arc::into_inner(payload).map_or(Ok(()), Payload::end);
    if let Some(reason) = failure {
        return Err(match reason.kind() {
            io::ErrorKind::InvalidData => BenchError::Refused(reason.to_string()),
            _ => tried(format!("{} at {}", server.0.name(), server.1))(reason),
        });
    }
    ended?;
    took.sort_unstable();
    Ok(Costs {
        seconds: (to - from).as_secs_f64(),
        took,
        server_cpu_us: (!server_pids.is_empty()).then_some(server_after - server_before),
        client_cpu_us: client_after - client_before,
    })
}

fn connect((protocol, address): &(Protocol, String)) -> io::Result<Box<dyn Connection>> {
    let endpoint = Endpoint::plain(address);
    Ok(match protocol {
        Protocol::Http => Box::new(Http::connect(&endpoint)?),
        Protocol::Grpc => Box::new(Grpc::connect(&endpoint, Headers::new(INFER, endpoint.authority(), false, &[]))?),
    })
}

fn work(connection: &mut dyn Connection, payload: &Payload, shared: &Shared) -> io::Result<Vec<Sample>> {
    let mut samples = Vec::with_capacity(1 << 16);
    while !shared.stop.load(Ordering::Relaxed) {
        let times = connection.exchange(&payload.bytes)?;
        samples.push(Sample { end: times.end, took: times.end - times.start });
        shared.done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(samples)
}

/// Waits until this time has passed and this many requests have ended, or a worker has failed.
#[expect(clippy::disallowed_methods, reason = "the main thread has nothing else to do")]
fn wait(shared: &Shared, length: Duration, requests: usize) {
    let (since, first) = (Instant::now(), shared.done.load(Ordering::Relaxed));
    while !shared.stop.load(Ordering::Relaxed)
        && (since.elapsed() < length || shared.done.load(Ordering::Relaxed) < first + requests)
    {
        sleep(LOOK_EVERY.max(length / 100));
    }
}
