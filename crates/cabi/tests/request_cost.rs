//! How often is memory allocated, and how many locks are taken, for one request through the C interface?
//!
//! The work of the server before and after the run is not counted: that is in `crates/server/tests/request_counts`.
//! `cargo test -p nerite-cabi --test request_cost -- --nocapture` prints the numbers; those of locks by line.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "support/requests.rs"]
mod requests;
#[path = "support/sample.rs"]
mod sample;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use nerite_backend::conformance::context;
use nerite_backend::{Batch, Instance, Meter, ModelVersion, NoMeter, Outbox, Runtime};
use nerite_memory::allocations;
use nerite_request::{Reply, Response};

use requests::{batch, instance, request};
use sample::{backend, config, floats};

#[global_allocator]
static HEAP: nerite_memory::CountingHeap = nerite_memory::CountingHeap;

/// Requests after which all memory that is kept between requests has its final size.
const WARM_UP: usize = 40;
const COUNTED: usize = 16;

/// What one request costs.
struct Cost {
    allocations: usize,
    /// By the line that takes them.
    locks: BTreeMap<String, u64>,
}

/// A request with these inputs, and what receives its responses.
fn batch_of_one(inputs: &[&str], meter: &Arc<dyn Meter>) -> (Batch, Receiver<Response>) {
    let (to, answers) = channel();
    let outputs: Vec<String> = inputs.iter().map(|name| name.replace("IN", "OUT")).collect();
    let request = request(
        inputs.iter().map(|name| floats(name, &[1.0, 2.0])),
        outputs.iter().map(String::as_str),
        Reply::new(move |response| drop(to.send(response))),
    );
    (batch(request, &ModelVersion::unmetered("m"), meter), answers)
}

fn locks() -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for taken in nerite_locks::counts() {
        *found.entry(taken.place.to_string()).or_default() += taken.times;
    }
    found
}

/// What the run of one request costs. The response is delivered after the run, which is not counted.
fn cost(instance: &mut dyn Instance, inputs: &[&str]) -> Cost {
    let mut least = Cost { allocations: usize::MAX, locks: BTreeMap::new() };
    let meter: Arc<dyn Meter> = Arc::new(NoMeter);
    for round in 0..WARM_UP + COUNTED {
        let (batch, answers) = batch_of_one(inputs, &meter);
        let locks_before = locks();
        let mut found = Cost { allocations: 0, locks: BTreeMap::new() };
        let ((), outbox) = Outbox::around(|| {
            let listed = allocations();
            instance.run(batch);
            found.allocations = allocations() - listed;
        });
        for (line, count) in locks() {
            let times = count - locks_before.get(&line).copied().unwrap_or(0);
            if times > 0 {
                found.locks.insert(line, times);
            }
        }
        drop(outbox);
        let Response::Final(answer) = answers.recv().unwrap() else { panic!("an error") };
        assert_eq!(answer.outputs.len(), inputs.len());
        if round >= WARM_UP && found.allocations < least.allocations {
            least = found;
        }
    }
    least
}

#[track_caller]
fn check(inputs: &[&str], allocations_max: usize, locks_max: u64) {
    let folder = tempfile::tempdir().unwrap();
    let model = backend(folder.path()).load(&context(folder.path(), config("max_batch_size: 8"))).unwrap();
    let mut instance = instance(&*model, 0, None).unwrap();
    let found = cost(&mut *instance, inputs);
    let locks: u64 = found.locks.values().sum();
    println!(
        "{inputs:?}: {} allocations, at most {allocations_max}; {locks} locks, at most {locks_max}",
        found.allocations
    );
    for (line, times) in &found.locks {
        println!("    {times:3} {line}");
    }
    assert!(found.allocations <= allocations_max, "{inputs:?}: {} allocations", found.allocations);
    assert!(locks <= locks_max, "{inputs:?}: {locks} locks");
}

#[test]
fn a_request_through_the_c_interface_costs_few_allocations_and_locks() {
    // Four objects (request, input, response, output), each with a handle, and the response path. Lists of two need no
    // allocation. Each call locks the object that its handle refers to by one atomic exchange, which is not counted
    // here. The locks that are counted are those of the response path.
    check(&["IN"], 8, 3);
    // The cost of one more input and output.
    check(&["IN", "IN1"], 13, 4);
}
