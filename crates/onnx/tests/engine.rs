//! Does the embedded engine keep the contract, and refuse graphs that it would compute wrongly?
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use nerite_backend::conformance::{self, Case, Fixture, check_runtime, completed, context, graph_context};
use nerite_backend::{Instance, InstanceSpec, LoadContext, Runtime};
use nerite_config::ModelConfig;
use nerite_memory::{Buffer, Number, Slot};
use nerite_onnx::Embedded;
use nerite_request::{Code, InferResponse, Recycled, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

/// As in the server. Without it, a shortage of memory ends the process.
#[global_allocator]
static HEAP: nerite_memory::Heap = nerite_memory::Heap;

/// A graph of tests/models. Its configuration is completed from the graph.
fn loading(graph: &str, rows_max: i32) -> LoadContext {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let mut context = graph_context(&folder, graph);
    Arc::make_mut(&mut context.config).max_batch_size = rows_max;
    completed(&Embedded, context).unwrap()
}

fn tensor<T: Number>(name: &str, datatype: DataType, shape: &[i64], values: &[T]) -> Tensor {
    let data = Buffer::from_numbers(values.to_vec());
    Tensor { name: name.into(), datatype, shape: Shape::from_slice(shape), data }
}

fn floats(name: &str, values: &[f32]) -> Tensor {
    tensor(name, DataType::Fp32, &[values.len() as i64], values)
}

fn longs(name: &str, values: &[i64]) -> Tensor {
    tensor(name, DataType::Int64, &[values.len() as i64], values)
}

fn doubles(name: &str, values: &[f64]) -> Tensor {
    tensor(name, DataType::Fp64, &[values.len() as i64], values)
}

fn infer(
    graph: &str,
    inputs: Vec<Tensor>,
    output: &str,
    slot: Option<Slot>,
) -> Result<Recycled<InferResponse>, Status> {
    let model = Embedded.load(&loading(graph, 0)).unwrap();
    let mut instance = model.instance(&InstanceSpec::default()).unwrap();
    infer_on(&mut *instance, inputs, output, slot)
}

fn infer_on(
    instance: &mut dyn Instance,
    inputs: Vec<Tensor>,
    output: &str,
    slot: Option<Slot>,
) -> Result<Recycled<InferResponse>, Status> {
    let wanted = vec![Wanted { name: output.into(), slot }];
    conformance::infer(inputs, wanted, |batch| instance.run(batch))
}

#[track_caller]
fn check(graph: &str, inputs: &[Tensor], output: &Tensor) {
    for slot in [None, Some(Slot::heap(output.data.len())), Some(Slot::heap(output.data.len() + 13))] {
        let response = infer(graph, inputs.to_vec(), &output.name, slot).unwrap();
        let [only] = &response.outputs[..] else { panic!("{} outputs", response.outputs.len()) };
        assert_eq!((&only.name, only.datatype, &only.shape), (&output.name, output.datatype, &output.shape));
        assert_eq!(only.data.private_bytes(), output.data.private_bytes());
    }
}

#[track_caller]
fn check_refused(graph: &str, inputs: Vec<Tensor>, parts: &[&str]) {
    let error = infer(graph, inputs, "y", None).unwrap_err();
    assert_eq!(error.code, Code::InvalidArg, "{error}");
    check_contains(&error, parts);
}

#[track_caller]
fn check_unloadable(graph: &str, parts: &[&str]) {
    let error = Embedded.load(&loading(graph, 0)).err().unwrap();
    assert_eq!(error.code, Code::Unsupported, "{error}");
    check_contains(&error, parts);
}

#[track_caller]
fn check_contains(error: &Status, parts: &[&str]) {
    for part in parts.iter().chain(&["install ONNX Runtime", "--onnxruntime-library"]) {
        assert!(error.message.contains(part), "'{error}' does not say '{part}'");
    }
}

fn simple_case(rows: i64, seed: i32) -> Case {
    let count = rows as usize * 16;
    let (a, b): (Vec<i32>, Vec<i32>) = (0..count as i32).map(|i| (seed + i, seed * i)).unzip();
    let of = |name: &str, values: &[i32]| tensor(name, DataType::Int32, &[rows, 16], values);
    let sum: Vec<i32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    let difference: Vec<i32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
    Case {
        inputs: vec![of("INPUT0", &a), of("INPUT1", &b)],
        outputs: vec![of("OUTPUT0", &sum), of("OUTPUT1", &difference)],
    }
}

#[test]
fn simple_keeps_the_contract() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models/simple");
    let text = std::fs::read(folder.join("config.pbtxt")).unwrap();
    let config = nerite_config::parse_text("simple/config.pbtxt", &text).unwrap();
    let fixture = Fixture {
        context: context(&folder, config),
        cases: vec![simple_case(1, 3), simple_case(4, 5), simple_case(1, 7)],
        faulty: None,
    };
    check_runtime(&Embedded, &fixture);
}

#[test]
fn a_graph_that_refuses_some_rows_keeps_the_contract() {
    let rows = |values: &[i32]| vec![tensor("rows", DataType::Int32, &[values.len() as i64, 1], values)];
    let case = |values: &[i32], picked: &[f32]| Case {
        inputs: rows(values),
        outputs: vec![tensor("picked", DataType::Fp32, &[values.len() as i64, 1, 2], picked)],
    };
    let fixture = Fixture {
        context: loading("pick", 8),
        cases: vec![case(&[3], &[7., 8.]), case(&[0, 2], &[1., 2., 5., 6.])],
        faulty: Some(rows(&[4])),
    };
    check_runtime(&Embedded, &fixture);
}

#[test]
fn a_division_without_a_result_fails_its_request_alone() {
    let of = |name: &str, value: i32| tensor(name, DataType::Int32, &[1, 1], &[value]);
    for (graph, results) in [("quotients", [-3, 4, i32::MIN]), ("remainders", [1, 0, 0])] {
        for faulty in [(7, 0), (i32::MIN, -1)] {
            let case = |at: usize| Case {
                inputs: vec![of("a", [-7, 8, i32::MIN][at]), of("b", [2, 2, 1][at])],
                outputs: vec![of("y", results[at])],
            };
            let fixture = Fixture {
                context: loading(graph, 8),
                cases: vec![case(0), case(1), case(2)],
                faulty: Some(vec![of("a", faulty.0), of("b", faulty.1)]),
            };
            check_runtime(&Embedded, &fixture);
        }
    }
}

#[test]
fn what_fits_32_bits_comes_back_as_it_went() {
    check("echo_fp32", &[floats("x", &[1.5, f32::NAN, -0.0])], &floats("y", &[1.5, f32::NAN, -0.0]));
    check("echo_int64", &[longs("x", &[i64::from(i32::MIN), 0, 7])], &longs("y", &[i64::from(i32::MIN), 0, 7]));
    check("echo_fp64", &[doubles("x", &[0.5, f64::from(-1e30f32)])], &doubles("y", &[0.5, f64::from(-1e30f32)]));
    check(
        "echo_int8",
        &[tensor("x", DataType::Int8, &[2], &[-128i8, 5])],
        &tensor("y", DataType::Int8, &[2], &[-128i8, 5]),
    );
    check(
        "echo_uint8",
        &[tensor("x", DataType::Uint8, &[2], &[255u8, 5])],
        &tensor("y", DataType::Uint8, &[2], &[255u8, 5]),
    );
    // Any byte but 0 is true, and the result for true is 1.
    check(
        "echo_bool",
        &[tensor("x", DataType::Bool, &[3], &[0u8, 1, 2])],
        &tensor("y", DataType::Bool, &[3], &[0u8, 1, 1]),
    );
    check("not", &[tensor("x", DataType::Bool, &[3], &[0u8, 1, 2])], &tensor("y", DataType::Bool, &[3], &[1u8, 0, 0]));
    check("scalar", &[floats("x", &[2.5])], &floats("y", &[-2.5]));
    check("echo_fp32", &[floats("x", &[])], &floats("y", &[]));
}

#[test]
fn values_beyond_32_bits_are_refused() {
    check_refused("echo_int64", vec![longs("x", &[1, 1 << 31])], &["input 'x' holds 2147483648", "INT64 in 32 bits"]);
    check_refused("echo_fp64", vec![doubles("x", &[0.1])], &["input 'x' holds 0.1", "FP64 as FP32"]);
    check_refused("echo_fp64", vec![doubles("x", &[1e300])], &["FP64 as FP32"]);
    check_refused("echo_fp64", vec![doubles("x", &[1e-320])], &["FP64 as FP32"]);
}

#[test]
fn graphs_that_32_bits_would_falsify_are_refused() {
    check_unloadable("int64_power", &["operator Pow ('pow_y') computes on INT64 values", "overflow"]);
    check_unloadable("int64_constant", &["the INT64 constant 'big' holds 1099511627776"]);
    check_unloadable("float_to_int64", &["operator Cast ('cast_y') rounds to INT64"]);
    check_unloadable("float_to_bool", &["operator Cast ('cast_y') makes truth values of numbers"]);
    check_unloadable("fp64_add", &["operator Add ('add_sum') computes in FP64"]);
    check_unloadable("fp64_constant", &["the FP64 constant 'tenth' holds 0.1"]);
    check_unloadable("through_fp16", &["operator Cast ('cast_half') rounds to FP16"]);
}

#[test]
fn arithmetic_is_judged_by_where_its_numbers_come_from() {
    // Positions and counts of truth values are small. The top values themselves are the request's own.
    check("mask_positions", &[tensor("x", DataType::Bool, &[3], &[0u8, 1, 0])], &longs("y", &[1, 1, 2]));
    check("topk_values", &[longs("x", &[7, 9, 8])], &longs("y", &[2, 4]));
    check("topk_values", &[longs("x", &[7, 9, 8])], &longs("top", &[9, 8]));
}

#[test]
fn int64_arithmetic_is_served_as_far_as_32_bits_reach() {
    let half = 1i64 << 30;
    check(
        "int64_add",
        &[longs("a", &[half, 1]), longs("b", &[half - 1, -5])],
        &longs("sum", &[i64::from(i32::MAX), -4]),
    );
    let beyond = || vec![longs("a", &[half, 1]), longs("b", &[half, -5])];
    check_refused("int64_add", beyond(), &["operator Add ('add_sum') could reach 2147483648", "INT64 in 32 bits"]);
    check("int64_cumsum", &[longs("x", &[1, 1, 1])], &longs("y", &[1, 2, 3]));
    check_refused(
        "int64_cumsum",
        vec![longs("x", &[half, 0])],
        &["operator CumSum ('cumsum_y') could reach 2147483648"],
    );
    check("topk_sums", &[longs("x", &[7, 9, 8])], &longs("y", &[18, 16]));
    check_refused("topk_sums", vec![longs("x", &[half, 0])], &["operator Add ('add_y')"]);
    let which = |x: &[i64]| vec![tensor("which", DataType::Bool, &[1], &[1u8]), longs("x", x)];
    check("chosen", &which(&[3]), &longs("y", &[6]));
    check_refused("chosen", which(&[half]), &["operator Add ('add_wide') could reach"]);
}

#[test]
fn what_the_engine_gets_wrong_is_refused() {
    check_unloadable("sign", &["operator Sign ('sign_y') would be 1 for zero"]);
    check_unloadable("times_vector", &["operator MatMul ('matmul_y') multiplies by a vector"]);
}

#[test]
fn windows_have_their_default_shape_and_stride() {
    let x = [tensor("x", DataType::Fp32, &[1, 1, 2, 4], &[1.0f32, 2.0, 3.0, 4.0, 10.0, 20.0, 10.0, 20.0])];
    // Sums of four: 33, 35, 37.
    check("windows", &x, &tensor("y", DataType::Fp32, &[1, 1, 1, 2], &[35.0f32, 37.0]));
}

#[test]
fn of_equal_values_the_first_is_chosen_unless_the_model_wants_the_last() {
    let rows = [1.0f32, 3.0, 3.0, 1.0, 5.0, 5.0, 5.0, 5.0];
    let x = || [tensor("x", DataType::Fp32, &[2, 4], &rows)];
    check("first_of_equals", &x(), &longs("top", &[1, 0]));
    check("first_of_equals", &x(), &tensor("y", DataType::Int64, &[2, 1], &[0i64, 0]));
    check("last_of_equals", &x(), &longs("y", &[2, 3]));
}

#[test]
fn a_request_for_more_memory_than_there_is_fails_alone() {
    let model = Embedded.load(&loading("outer", 0)).unwrap();
    let mut instance = model.instance(&InstanceSpec::default()).unwrap();
    let mut infer = |count: usize| infer_on(&mut *instance, vec![floats("x", &vec![1.0; count])], "y", None);
    for _ in 0..64 {
        let error = infer(400_000).unwrap_err();
        assert_eq!(error.code, Code::InvalidArg, "{error}");
        for part in ["what the model computes", "asked for 640000000000 more", "send a smaller request"] {
            assert!(error.message.contains(part), "{error}");
        }
        let [sum] = &infer(100).unwrap().outputs[..] else { panic!("no sum") };
        assert_eq!(sum.data.private_bytes(), Some(&10_000f32.to_le_bytes()[..]));
    }
    // The stacks of lost threads stay in use, so only some may be lost.
    let error = infer(200_001).unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
    check_contains(
        &error,
        &["ran out of memory 64 times", "200001 values together, and may have 200000", "load the model again"],
    );
    assert!(infer(100).is_ok());
}

#[test]
fn what_the_engine_lacks_is_named() {
    check_unloadable("lacking", &["Det operator not supported"]);
    for lacking in ["fp16", "bf16", "uint16", "uint32", "uint64", "int16", "bytes"] {
        check_unloadable(
            &format!("echo_{lacking}"),
            &[&format!("input 'x' is {}, which it lacks", lacking.to_uppercase())],
        );
    }
}

#[test]
fn integers_that_count_and_point_are_served() {
    check("int64_pick", &[longs("rows", &[3, 0])], &floats("picked", &[4., 1.]));
    check("to_the_end", &[floats("x", &[1., 2., 3.])], &floats("y", &[2., 3.]));
    check("half_weights", &[floats("x", &[1.])], &floats("y", &[1.5]));
    let x = tensor("x", DataType::Fp32, &[1, 4], &[1f32, 2., 3., 4.]);
    check("shape_sums", &[x], &tensor("y", DataType::Fp32, &[2, 2], &[1f32, 2., 3., 4.]));
    check("find", &[floats("x", &[0., 5., 0., 6.])], &tensor("found", DataType::Int64, &[1, 2], &[1i64, 3]));
}

#[test]
fn what_passes_through_or_is_constant_is_an_output_too() {
    check("passed_through", &[floats("x", &[1., 2.])], &floats("x", &[1., 2.]));
    check("constant", &[floats("x", &[1., 2.])], &floats("c", &[1., 2., 3.]));
}

#[test]
fn a_file_that_is_no_model_is_an_error() {
    let folder = std::env::temp_dir().join(format!("nerite-onnx-garbage-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut context = loading("pick", 8);
    for content in [&b""[..], b"not a model", b"\x08\x08"] {
        std::fs::write(folder.join("pick.onnx"), content).unwrap();
        context.version_dir.clone_from(&folder);
        let error = Embedded.load(&context).err().unwrap();
        assert_eq!(error.code, Code::Internal, "{error}");
        assert!(error.message.contains("cannot be read"), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_configuration_is_completed_and_checked_by_the_graph() {
    let mut context = loading("pick", 0);
    let empty = ModelConfig {
        name: "pick".into(),
        backend: "onnxruntime".into(),
        default_model_filename: "pick.onnx".into(),
        ..ModelConfig::default()
    };
    context.config = Arc::new(empty);
    context.settings.remove("default-max-batch-size");
    let completed = Embedded.complete(&context).unwrap();
    assert_eq!(completed.max_batch_size, 4);
    assert!(completed.dynamic_batching().is_some());
    let specs = |specs: Vec<nerite_config::TensorSpec>| {
        specs.into_iter().map(|spec| (spec.name, spec.data_type, spec.dims)).collect::<Vec<_>>()
    };
    assert_eq!(specs(completed.inputs()), [("rows".into(), Some(DataType::Int32), vec![1])]);
    assert_eq!(specs(completed.outputs()), [("picked".into(), Some(DataType::Fp32), vec![1, 2])]);
    let mut wrong = completed;
    wrong.input[0].data_type = nerite_config::config_data_type(DataType::Fp32) as i32;
    context.config = Arc::new(wrong);
    let error = Embedded.load(&context).err().unwrap();
    assert_eq!(
        error.message,
        "unable to load model 'pick', configuration expects datatype TYPE_FP32 for input 'rows', model provides TYPE_INT32"
    );
    context.settings.insert("default-max-batch-size".into(), "many".into());
    context.config = Arc::new(ModelConfig { default_model_filename: "pick.onnx".into(), ..ModelConfig::default() });
    let error = Embedded.complete(&context).unwrap_err();
    assert_eq!(error.message, "the setting default-max-batch-size of backend onnxruntime is 'many', not a number");
}

#[test]
fn an_input_with_an_initializer_may_be_left_out_or_replaced() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    conformance::check_initializers(&Embedded, &folder, None);
}

#[test]
fn what_replaces_an_initializer_is_audited_as_an_input() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let text = "name: 'm' backend: 'onnxruntime' default_model_filename: 'replaceable_long.onnx' \
                input [{ name: 'x' data_type: TYPE_INT64 dims: -1 }, { name: 'w' data_type: TYPE_INT64 dims: 1 optional: true }] \
                output { name: 'y' data_type: TYPE_INT64 dims: -1 }";
    let mut context = context(&folder, nerite_config::parse_text("config.pbtxt", text.as_bytes()).unwrap());
    context.version_dir.clone_from(&folder);
    let mut instance = Embedded.load(&context).unwrap().instance(&InstanceSpec::default()).unwrap();
    let mut infer = |inputs: &[Tensor]| infer_on(&mut *instance, inputs.to_vec(), "y", None);
    let most = i64::from(i32::MAX);
    let sum = |response: Recycled<InferResponse>| response.outputs[0].data.numbers::<i64>().map(<[i64]>::to_vec);
    assert_eq!(infer(&[longs("x", &[most - 1000])]).map(sum).unwrap(), Some(vec![most]));
    // If a request leaves the input out, its default value counts, otherwise the request's value.
    check_contains(
        &infer(&[longs("x", &[most - 999])]).unwrap_err(),
        &["operator Add ('add_y') could reach 2147483648"],
    );
    assert_eq!(infer(&[longs("x", &[most - 999]), longs("w", &[999])]).map(sum).unwrap(), Some(vec![most]));
    check_contains(&infer(&[longs("x", &[1]), longs("w", &[most])]).unwrap_err(), &["could reach 2147483648"]);
}
