//! Does a long run of a graph without loops end with its client?
#![allow(clippy::unwrap_used)]
#![expect(clippy::disallowed_methods, reason = "tests wait on their own threads")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_backend::conformance::{ask_cancellable, context};
use nerite_backend::{Instance, InstanceSpec, LoadContext, Runtime};
use nerite_config::ModelConfig;
use nerite_memory::Buffer;
use nerite_onnx::Embedded;
use nerite_request::{Cancel, Code, InferResponse, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

#[global_allocator]
static HEAP: nerite_memory::Heap = nerite_memory::Heap;

/// A matrix of so many rows keeps the engine busy for many seconds.
const LONG: usize = 1024;
/// And one of so many for long enough to be ended, and not for so long that a test could not wait for its end.
const KNOWN: usize = 256;

/// The model `powers`, which multiplies a matrix with itself two hundred times.
fn powers() -> Box<dyn Instance> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let config = ModelConfig {
        name: "powers".into(),
        backend: "onnxruntime".into(),
        default_model_filename: "powers.onnx".into(),
        ..ModelConfig::default()
    };
    let mut context = context(&folder, config);
    context.version_dir.clone_from(&context.model_dir);
    context.settings.insert("default-max-batch-size".into(), "0".into());
    let config = Embedded.complete(&context).unwrap();
    let context = LoadContext { config: Arc::new(config), ..context };
    Embedded.load(&context).unwrap().instance(&InstanceSpec::default()).unwrap()
}

/// A matrix that changes the places of two numbers, so an even power of it changes none. The model gives the 202nd.
fn swapping(side: usize) -> Vec<f32> {
    let other = |row: usize| if row < 2 { 1 - row } else { row };
    (0..side * side).map(|at| f32::from(u8::from(other(at / side) == at % side))).collect()
}

fn ask(instance: &mut dyn Instance, side: usize, cancel: &Cancel) -> Result<InferResponse, Status> {
    let (shape, data) = (Shape::from_slice(&[side as i64; 2]), Buffer::from_numbers(swapping(side)));
    let x = Tensor { name: "x".into(), datatype: DataType::Fp32, shape, data };
    let wanted = vec![Wanted { name: "y".into(), slot: None }];
    ask_cancellable(instance, vec![x], wanted, cancel).expect("it ends in ten seconds")
}

#[track_caller]
fn check_answers(instance: &mut dyn Instance, side: usize) {
    let answer = ask(instance, side, &Cancel::new()).unwrap();
    let [y] = &answer.outputs[..] else { panic!("one output") };
    let expect: Vec<f32> = (0..side * side).map(|at| f32::from(u8::from(at / side == at % side))).collect();
    assert_eq!(y.data.numbers::<f32>().unwrap(), expect);
}

#[test]
fn a_long_run_without_loops_ends_when_its_client_goes() {
    let mut instance = powers();
    for side in [3, 2, 3, 8] {
        check_answers(&mut *instance, side);
    }
    for _ in 0..2 {
        check_ends(&mut *instance, LONG, Duration::from_millis(300));
        check_answers(&mut *instance, 3);
    }
}

/// Checks that a run ends early if its client goes after `patience`.
#[track_caller]
fn check_ends(instance: &mut dyn Instance, side: usize, patience: Duration) {
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let going = scope.spawn(|| ask(&mut *instance, side, &cancel));
        std::thread::sleep(patience);
        assert!(!going.is_finished(), "it takes longer");
        cancel.cancel();
        assert_eq!(going.join().unwrap().unwrap_err().code, Code::Cancelled);
    });
}

/// The first run shows the times of all stages, and the second joins them.
#[test]
fn a_run_of_known_length_ends_when_its_client_goes() {
    let mut instance = powers();
    for _ in 0..2 {
        let begun = Instant::now();
        check_answers(&mut *instance, KNOWN);
        let patience = begun.elapsed() / 8;
        let begun = Instant::now();
        check_ends(&mut *instance, KNOWN, patience);
        assert!(
            begun.elapsed() < 4 * patience,
            "it ended {:?} after its start, and its client went after {patience:?}",
            begun.elapsed()
        );
    }
}
