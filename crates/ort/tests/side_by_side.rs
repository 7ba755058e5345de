//! Do the instances of a model share a session, and does each have its own results and end by itself?
#![expect(clippy::print_stdout, reason = "a test that skips itself says so")]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nerite_backend::conformance::{context, infer, infer_cancellable};
use nerite_backend::{Instance, InstanceSpec, LoadContext, Model, Runtime};
use nerite_config::ModelConfig;
use nerite_guard::DIVISIONS_TRAP;
use nerite_memory::{Buffer, Number};
use nerite_ort::{OnnxRuntime, find_library};
use nerite_request::{Cancel, Code, InferResponse, Recycled, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

/// So many rounds take hours.
const ENDLESS: i64 = 1 << 40;

/// Two instances of a graph of crates/onnx/tests/models, on several threads.
fn two_instances(graph: &str) -> Option<[Box<dyn Instance>; 2]> {
    let Some(path) = find_library(None) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return None;
    };
    let runtime = OnnxRuntime::open(&path).unwrap_or_else(|e| panic!("{e}"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
    let text = format!(
        "name: '{graph}' backend: 'onnxruntime' default_model_filename: '{graph}.onnx' instance_group {{ count: 2 }}"
    );
    let config: ModelConfig = nerite_config::parse_text("config.pbtxt", text.as_bytes()).unwrap();
    let mut context = context(&folder, config);
    context.version_dir.clone_from(&folder);
    context.settings.insert("default-max-batch-size".into(), "0".into());
    context.settings.insert("intra_op_thread_count".into(), "3".into());
    let context = LoadContext { config: Arc::new(runtime.complete(&context).unwrap()), ..context };
    let model: Arc<dyn Model> = runtime.load(&context).unwrap();
    let make = |index| model.instance(&InstanceSpec { index, ..InstanceSpec::default() }).unwrap();
    Some([make(0), make(1)])
}

fn tensor<T: Number>(name: &str, datatype: DataType, shape: &[i64], values: Vec<T>) -> Tensor {
    Tensor { name: name.into(), datatype, shape: Shape::from_slice(shape), data: Buffer::from_numbers(values) }
}

fn wanted(name: &str) -> Vec<Wanted> {
    vec![Wanted { name: name.into(), slot: None }]
}

#[test]
fn a_division_without_a_result_fails_no_run_beside_it() {
    let Some([mut faulty, mut right]) = two_instances("remainders") else { return };
    // Enough elements that the pool's threads divide too, not only the caller.
    let count = 1 << 18;
    let request = |divisor: i32| {
        let of = |name: &str, value: i32| tensor(name, DataType::Int32, &[count as i64, 1], vec![value; count]);
        vec![of("a", i32::MIN), of("b", divisor)]
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let answer = infer(request(-1), wanted("y"), |batch| faulty.run(batch));
                assert_eq!(answer.is_err(), DIVISIONS_TRAP);
            }
        });
        let tries = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..100 {
                let answer = infer(request(7), wanted("y"), |batch| right.run(batch)).unwrap();
                let remainders = answer.outputs[0].data.numbers::<i32>().unwrap();
                assert!(remainders.iter().all(|remainder| *remainder == i32::MIN.rem_euclid(7)));
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        tries.unwrap();
    });
}

/// Runs `rounds` and returns the answer, or `None` if there is none after ten seconds.
fn run(instance: &mut dyn Instance, rounds: i64, cancel: &Cancel) -> Option<Result<Recycled<InferResponse>, Status>> {
    let inputs = vec![
        tensor("x", DataType::Fp32, &[2], vec![1.0f32, 2.0]),
        tensor("rounds", DataType::Int64, &[1], vec![rounds]),
    ];
    infer_cancellable(instance, inputs, wanted("y"), cancel)
}

#[test]
fn a_run_ends_when_its_client_goes_and_those_beside_and_after_it_do_not() {
    let Some([mut left, mut beside]) = two_instances("rounds") else { return };
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let going = scope.spawn(|| run(&mut *left, ENDLESS, &cancel));
        for rounds in 1..500 {
            let answer = run(&mut *beside, rounds, &Cancel::new()).unwrap().unwrap();
            let expected = [1.0, 2.0].map(|x| x * (rounds + 1) as f32);
            assert_eq!(answer.outputs[0].data.numbers::<f32>().unwrap().to_vec(), expected);
        }
        assert!(!going.is_finished(), "it runs for hours");
        cancel.cancel();
        let ended = going.join().unwrap().unwrap().map(drop);
        assert_eq!(ended.unwrap_err().code, Code::Cancelled);
    });
    // The same instance runs again, even if the run before is cancelled late.
    let after = run(&mut *left, 3, &Cancel::new()).unwrap().unwrap();
    cancel.cancel();
    assert_eq!(after.outputs[0].data.numbers::<f32>().unwrap().to_vec(), [4.0, 8.0]);
}
