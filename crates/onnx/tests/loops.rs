//! Are loops computed as written, and does a run with a loop end with its client?
#![allow(clippy::unwrap_used)]
#![expect(clippy::disallowed_methods, reason = "tests wait on their own threads")]

use std::path::Path;
use std::time::Duration;

use nerite_backend::Instance;
use nerite_backend::conformance::{completed_instance, graph_context, infer_cancellable};
use nerite_memory::{Buffer, Number};
use nerite_onnx::Embedded;
use nerite_request::{Cancel, Code, InferResponse, Recycled, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

#[global_allocator]
static HEAP: nerite_memory::Heap = nerite_memory::Heap;

/// Rounds that take hours.
const ENDLESS: i64 = (1 << 31) - 1;

fn instance(graph: &str) -> Box<dyn Instance> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    completed_instance(&Embedded, graph_context(&folder, graph)).unwrap()
}

fn tensor<T: Number>(name: &str, datatype: DataType, shape: &[i64], values: Vec<T>) -> Tensor {
    let data = Buffer::from_numbers(values);
    Tensor { name: name.into(), datatype, shape: Shape::from_slice(shape), data }
}

/// `None` if there is no answer after ten seconds.
fn run(
    instance: &mut dyn Instance,
    inputs: Vec<Tensor>,
    wanted: &[&str],
    cancel: &Cancel,
) -> Option<Result<Recycled<InferResponse>, Status>> {
    let wanted = wanted.iter().map(|name| Wanted { name: (*name).into(), slot: None }).collect();
    infer_cancellable(instance, inputs, wanted, cancel)
}

fn rounds(count: i64) -> Vec<Tensor> {
    vec![tensor("x", DataType::Fp32, &[2], vec![1.0f32, 2.0]), tensor("rounds", DataType::Int64, &[], vec![count])]
}

fn numbers(answer: &InferResponse, name: &str) -> (Vec<i64>, Vec<f32>) {
    let output = answer.outputs.iter().find(|output| *output.name == *name).unwrap();
    (output.shape.to_vec(), output.data.numbers::<f32>().unwrap().to_vec())
}

#[test]
fn a_run_ends_when_its_client_goes_and_the_instance_serves_the_next() {
    let mut instance = instance("rounds");
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let going = scope.spawn(|| run(&mut *instance, rounds(ENDLESS), &["y"], &cancel));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!going.is_finished(), "it runs for hours");
        cancel.cancel();
        assert_eq!(going.join().unwrap().unwrap().unwrap_err().code, Code::Cancelled);
    });
    let cancel = Cancel::new();
    let after = run(&mut *instance, rounds(3), &["y"], &cancel).unwrap().unwrap();
    cancel.cancel();
    assert_eq!(numbers(&after, "y"), (vec![2], vec![4.0, 8.0]));
    let none = run(&mut *instance, rounds(0), &["y"], &Cancel::new()).unwrap().unwrap();
    assert_eq!(numbers(&none, "y"), (vec![2], vec![1.0, 2.0]));
}

/// The numbers are those of ONNX Runtime.
#[test]
fn loops_in_loops_and_branches_are_computed_as_written() {
    let mut instance = instance("nested_rounds");
    for (pick, expect) in [(true, [-39.0, -60.0]), (false, [-37.0, -58.0])] {
        let inputs = rounds(2).into_iter().chain([tensor("pick", DataType::Bool, &[], vec![u8::from(pick)])]);
        let answer = run(&mut *instance, inputs.collect(), &["list", "y"], &Cancel::new()).unwrap().unwrap();
        assert_eq!(numbers(&answer, "y"), (vec![2], expect.to_vec()));
        assert_eq!(numbers(&answer, "list"), (vec![2, 2], vec![9.0, 14.0, 37.0, 58.0]));
    }
    let inputs = rounds(ENDLESS).into_iter().chain([tensor("pick", DataType::Bool, &[], vec![0u8])]).collect();
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let going = scope.spawn(|| run(&mut *instance, inputs, &["y"], &cancel));
        std::thread::sleep(Duration::from_millis(100));
        cancel.cancel();
        assert_eq!(going.join().unwrap().unwrap().unwrap_err().code, Code::Cancelled);
    });
}

#[track_caller]
fn check(graph: &str, count: i64, wanted: &[&str], expect: &[(&str, &[i64], &[f32])]) {
    let mut instance = instance(graph);
    let answer = run(&mut *instance, rounds(count), wanted, &Cancel::new());
    let answer = answer.expect("no answer in time").unwrap();
    assert_eq!(answer.outputs.len(), wanted.len());
    for (name, shape, values) in expect {
        assert_eq!(numbers(&answer, name), (shape.to_vec(), values.to_vec()), "{name}");
    }
}

/// After no rounds there is no list, and endless rounds have no end.
#[test]
fn only_loops_run_that_a_wanted_output_is_computed_from() {
    check("chosen_rounds", 0, &["y"], &[("y", &[2], &[1.0, 2.0])]);
    check("chosen_rounds", ENDLESS, &["beside"], &[("beside", &[2], &[1.0, 2.0])]);
    check("chosen_rounds", 1, &["after", "beside"], &[("after", &[1, 2], &[1.0, 2.0]), ("beside", &[2], &[1.0, 2.0])]);
    check(
        "chosen_rounds",
        2,
        &["list", "y"],
        &[("list", &[2, 2], &[-1.0, -2.0, -1.0, -2.0]), ("y", &[2], &[3.0, 6.0])],
    );
}

#[test]
fn loops_share_large_weights_that_are_an_output_as_well() {
    let mut instance = instance("shared_rounds");
    let weights: Vec<f32> = (0..300).map(|number| number as f32).collect();
    let inputs = || {
        let x = tensor("x", DataType::Fp32, &[300], vec![0.5f32; 300]);
        vec![x, tensor("rounds", DataType::Int64, &[], vec![2i64])]
    };
    for wanted in [&["y", "w"][..], &["w"], &["y"], &["y", "w"]] {
        let answer = run(&mut *instance, inputs(), wanted, &Cancel::new()).unwrap().unwrap();
        for name in wanted {
            let expect = weights.iter().map(|number| if *name == "w" { *number } else { 6.0 * number + 0.5 });
            assert_eq!(numbers(&answer, name), (vec![300], expect.collect()), "{wanted:?}");
        }
    }
}

#[test]
fn equal_constants_can_be_outputs() {
    let mut instance = instance("equal_rounds");
    let answer = run(&mut *instance, rounds(1), &["y", "three", "drei"], &Cancel::new()).unwrap().unwrap();
    assert_eq!(numbers(&answer, "y"), (vec![2], vec![2.0, 4.0]));
    for output in answer.outputs.iter().skip(1) {
        assert_eq!(output.data.numbers::<i64>().unwrap().to_vec(), vec![3], "{}", output.name);
    }
}

#[test]
fn names_mean_what_the_graph_says() {
    check("named_rounds", 2, &["y"], &[("y", &[2], &[11.0, 22.0])]);
    check("hiding_rounds", 2, &["y"], &[("y", &[2], &[202.0, 203.0])]);
}

#[test]
fn a_loop_may_be_written_after_what_reads_its_result() {
    check("disordered_rounds", 2, &["y"], &[("y", &[2], &[-3.0, -6.0])]);
}
