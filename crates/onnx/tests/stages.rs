//! Does a long run of a graph without loops end with its client?
#![allow(clippy::unwrap_used)]
#![expect(clippy::disallowed_methods, reason = "tests wait on their own threads")]

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nerite_backend::Instance;
use nerite_backend::conformance::{completed_instance, graph_context, infer_cancellable};
use nerite_memory::{Buffer, allocations, exempt_this_thread};
use nerite_onnx::Embedded;
use nerite_request::{Cancel, Code, InferResponse, Recycled, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

#[global_allocator]
static HEAP: nerite_memory::CountingHeap = nerite_memory::CountingHeap;

/// A matrix of so many rows keeps the engine busy for many seconds.
const LONG: usize = 1024;
/// A run that takes less time may be too short for several stages.
const KNOWN: Duration = Duration::from_millis(200);
/// Between two looks at a run.
const PAUSE: Duration = Duration::from_millis(1);

/// Only the engine's threads are counted, and those of one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    exempt_this_thread();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The model `powers`, which multiplies a matrix with itself two hundred times.
fn powers() -> Box<dyn Instance> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    completed_instance(&Embedded, graph_context(&folder, "powers")).unwrap()
}

/// A matrix that changes the places of two numbers, so an even power of it changes none. The model gives the 202nd.
fn swapping(side: usize) -> Vec<f32> {
    let other = |row: usize| if row < 2 { 1 - row } else { row };
    (0..side * side).map(|at| f32::from(u8::from(other(at / side) == at % side))).collect()
}

fn infer(instance: &mut dyn Instance, side: usize, cancel: &Cancel) -> Result<Recycled<InferResponse>, Status> {
    let (shape, data) = (Shape::from_slice(&[side as i64; 2]), Buffer::from_numbers(swapping(side)));
    let x = Tensor { name: "x".into(), datatype: DataType::Fp32, shape, data };
    let wanted = vec![Wanted { name: "y".into(), slot: None }];
    infer_cancellable(instance, vec![x], wanted, cancel).expect("it ends in ten seconds")
}

/// Checks the answer, and returns how often the engine allocated for it. It does so in each stage.
#[track_caller]
fn check_answers(instance: &mut dyn Instance, side: usize) -> usize {
    let before = allocations();
    let answer = infer(instance, side, &Cancel::new()).unwrap();
    let [y] = &answer.outputs[..] else { panic!("one output") };
    let expect: Vec<f32> = (0..side * side).map(|at| f32::from(u8::from(at / side == at % side))).collect();
    assert_eq!(y.data.numbers::<f32>().unwrap(), expect);
    allocations() - before
}

/// Checks that a run ends early if its client goes once the engine has allocated so often.
#[track_caller]
fn check_ends(instance: &mut dyn Instance, side: usize, allocated: usize) {
    let (cancel, before) = (Cancel::new(), allocations());
    std::thread::scope(|scope| {
        let going = scope.spawn(|| {
            exempt_this_thread();
            infer(&mut *instance, side, &cancel)
        });
        while allocations() - before < allocated && !going.is_finished() {
            std::thread::sleep(PAUSE);
        }
        cancel.cancel();
        assert_eq!(going.join().unwrap().unwrap_err().code, Code::Cancelled);
    });
}

#[test]
#[ignore = "alone: saturates both processors; must end in 10 s"]
fn a_long_run_without_loops_ends_when_its_client_goes() {
    let _alone = alone();
    let mut instance = powers();
    // The first run of a class has all stages, as each run of the long matrix.
    let all = check_answers(&mut *instance, 3);
    for side in [2, 3, 8] {
        check_answers(&mut *instance, side);
    }
    for _ in 0..2 {
        check_ends(&mut *instance, LONG, all / 8);
        check_answers(&mut *instance, 3);
    }
}

/// The first run shows the times of all stages, and the second joins them.
#[test]
#[ignore = "alone: saturates both processors; compares measured run times"]
fn a_run_of_known_length_ends_when_its_client_goes() {
    let _alone = alone();
    let long_run = |side: usize| {
        let mut instance = powers();
        // On a busy machine one run may take long for another reason.
        let times = [(); 2].map(|()| {
            let begun = Instant::now();
            check_answers(&mut *instance, side);
            begun.elapsed()
        });
        times.iter().all(|time| *time >= KNOWN).then_some((side, instance))
    };
    let (side, mut instance) =
        (6..12).map(|power| 1 << power).find_map(long_run).expect("the largest takes trillions of operations");
    for _ in 0..2 {
        let joined = check_answers(&mut *instance, side);
        check_ends(&mut *instance, side, joined / 8);
    }
}
