//! What happens to outputs when other work has reserved all memory?
//!
//! This test has a process of its own, because other tests in the process would get no memory.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use nerite_backend::{Batch, Execute, Instance, Job, Joined, ModelVersion, NoMeter, Times, Work};
use nerite_memory::{Buffer, MemoryReservation};
use nerite_request::{AdmittedRequest, Code, Reply, Response, Status, Wanted};
use nerite_tensor::{DataType, Tensor};

/// Reserves all memory, until less is left than any request needs.
fn everything() -> Vec<MemoryReservation> {
    let sizes = (16..48).rev().map(|bits| 1usize << bits);
    sizes.flat_map(|size| std::iter::from_fn(move || MemoryReservation::take(size).ok())).collect()
}

/// Answers each row with as many strings of 60 bytes as X says.
struct Talkative;

impl Execute for Talkative {
    fn execute(&mut self, work: &mut Work<'_>, _: &mut Times) -> Result<(), Status> {
        let counts: Vec<i32> = work.input("X").unwrap().data.numbers::<i32>().unwrap().to_vec();
        let count: i32 = counts.iter().sum();
        work.put_strings(
            "S",
            &[counts.len() as i64, i64::from(count) / counts.len() as i64],
            (0..count).map(|_| &[b's'; 60][..]),
        )
    }
}

/// Runs jobs that want this many strings each. Returns the size of each answer, or its error.
fn run(counts: &[i32]) -> Vec<Result<usize, Status>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let job = |count: &i32| {
        let heard = Arc::clone(&heard);
        let reply = Reply::new(move |response: Response| {
            let outcome = response.into_content().unwrap().map(|made| made.outputs[0].data.len());
            heard.lock().unwrap().push(outcome);
        });
        let data = Buffer::from_numbers(vec![*count]);
        let request = AdmittedRequest {
            inputs: vec![Tensor { name: "X".into(), datatype: DataType::Int32, shape: [1, 1][..].into(), data }].into(),
            wanted: vec![Wanted { name: "S".into(), slot: None }].into(),
            ..AdmittedRequest::new(reply)
        };
        Job::new(request, ModelVersion::unmetered("talkative").begin(), 0)
    };
    let jobs = counts.iter().map(job).collect();
    Joined::new(Talkative, true).run(Batch { jobs, meter: Arc::new(NoMeter) });
    Arc::into_inner(heard).unwrap().into_inner().unwrap()
}

#[track_caller]
fn check(counts: &[i32], answered: bool) {
    for (outcome, count) in run(counts).into_iter().zip(counts) {
        match outcome {
            Ok(len) => assert!(answered && len == *count as usize * 64, "{len}"),
            Err(status) => {
                let right = status.message.starts_with("the server has no memory for output 'S': ");
                assert!(!answered && right && status.code == Code::Unavailable, "{status:?}");
            }
        }
    }
}

#[test]
fn strings_without_memory_are_refused_by_the_name_of_their_output() {
    check(&[100_000], true);
    check(&[100_000, 100_000], true);
    let held = everything();
    check(&[100_000], false);
    check(&[100_000, 100_000], false);
    check(&[10], true);
    drop(held);
    check(&[100_000, 100_000], true);
}
