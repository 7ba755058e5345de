//! If models share one pool of threads, does a division without a result fail only its own run?
//!
//! A process has one environment of ONNX Runtime, and the first model makes its pool. So this test is not among those
//! of other settings.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nerite_backend::Instance;
use nerite_backend::conformance::{completed_instance, graph_context, infer};
use nerite_guard::DIVISIONS_TRAP;
use nerite_memory::{Buffer, Number};
use nerite_ort::{OnnxRuntime, find_library};
use nerite_request::Wanted;
use nerite_tensor::{DataType, Shape, Tensor};

fn instance(runtime: &OnnxRuntime, graph: &str) -> Box<dyn Instance> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
    let mut context = graph_context(&folder, graph);
    for (key, value) in [("intra_op_thread_count", "3"), ("enable-global-threadpool", "1")] {
        context.settings.insert(key.into(), value.into());
    }
    completed_instance(runtime, context).unwrap()
}

fn tensor<T: Number>(name: &str, datatype: DataType, shape: &[i64], values: Vec<T>) -> Tensor {
    Tensor { name: name.into(), datatype, shape: Shape::from_slice(shape), data: Buffer::from_numbers(values) }
}

/// Threads of pools of this process.
fn pool_threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "onnxruntime").count()
}

#[test]
#[ignore = "alone: counts threads of a pool; saturates both processors"]
fn a_model_that_may_divide_has_threads_of_its_own_and_fails_no_run_of_another() {
    let Some(path) = find_library(None) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return;
    };
    let runtime = OnnxRuntime::open(&path).unwrap_or_else(|e| panic!("{e}"));
    let _first = instance(&runtime, SAFE);
    let common = pool_threads();
    assert!(common > 0, "the common pool has threads");
    let _second = instance(&runtime, SAFE);
    assert_eq!(pool_threads(), common, "a graph that divides no integers uses the common pool");
    let (mut faulty, mut right) = (instance(&runtime, "remainders"), instance(&runtime, "remainders"));
    assert!(pool_threads() > common, "a graph that may divide has threads of its own");
    // Enough elements that the pool's threads divide too, not only the caller.
    let count = 1 << 18;
    let request = |divisor: i32| {
        let of = |name: &str, value: i32| tensor(name, DataType::Int32, &[count as i64, 1], vec![value; count]);
        vec![of("a", i32::MIN), of("b", divisor)]
    };
    let wanted = || vec![Wanted { name: "y".into(), slot: None }];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let answer = infer(request(-1), wanted(), |batch| faulty.run(batch));
                assert_eq!(answer.is_err(), DIVISIONS_TRAP);
            }
        });
        let tries = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..50 {
                let answer = infer(request(7), wanted(), |batch| right.run(batch)).unwrap();
                let remainders = answer.outputs[0].data.numbers::<i32>().unwrap();
                assert!(remainders.iter().all(|remainder| *remainder == i32::MIN.rem_euclid(7)));
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        tries.unwrap();
    });
}

/// A graph of operators that divide no integers.
const SAFE: &str = "echo_fp32";
