//! If this host has ONNX Runtime, does it keep the contract and every byte?
#![expect(clippy::print_stdout, reason = "a test that skips itself says so")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_backend::conformance::{self, Case, Fixture, check_runtime, completed, context, graph_context};
use nerite_backend::{InstanceSpec, LoadContext, Runtime};
use nerite_guard::DIVISIONS_TRAP;
use nerite_memory::{Buffer, Slot};
use nerite_ort::{OnnxRuntime, OpenError, find_library};
use nerite_request::{Code, InferResponse, Recycled, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor, strings};

fn runtime() -> Option<OnnxRuntime> {
    let Some(path) = find_library(None) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return None;
    };
    Some(OnnxRuntime::open(&path).unwrap_or_else(|e| panic!("{e}")))
}

/// Both ways to run a session: a plain call, and one with a wait for the device after each run, as on GPUs.
fn runtimes() -> Vec<OnnxRuntime> {
    let fenced = runtime().map(OnnxRuntime::waiting_for_device);
    runtime().into_iter().chain(fenced).collect()
}

/// A graph of crates/onnx/tests/models. Its configuration is completed from the graph.
fn loading(runtime: &OnnxRuntime, graph: &str, rows_max: i32) -> LoadContext {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
    let mut context = graph_context(&folder, graph);
    Arc::make_mut(&mut context.config).max_batch_size = rows_max;
    // More than one on every host.
    context.settings.insert("intra_op_thread_count".into(), "3".into());
    completed(runtime, context).unwrap()
}

fn tensor(name: &str, datatype: DataType, shape: &[i64], data: impl Into<Buffer>) -> Tensor {
    Tensor { name: name.into(), datatype, shape: Shape::from_slice(shape), data: data.into() }
}

fn floats(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
    tensor(name, DataType::Fp32, shape, Buffer::from_numbers(values.to_vec()))
}

fn texts(name: &str, shape: &[i64], elements: &[&[u8]]) -> Tensor {
    let mut bytes = Vec::new();
    for element in elements {
        strings::push(&mut bytes, element).unwrap();
    }
    tensor(name, DataType::Bytes, shape, bytes)
}

/// Loads a graph and asks it once. Some of the wanted outputs have memory of the given size.
fn infer(
    runtime: &OnnxRuntime,
    graph: &str,
    inputs: Vec<Tensor>,
    wanted: &[(&str, Option<usize>)],
) -> Result<Recycled<InferResponse>, Status> {
    let model = runtime.load(&loading(runtime, graph, 0)).unwrap();
    let mut instance = model.instance(&InstanceSpec::default()).unwrap();
    let wanted = wanted.iter().map(|(name, len)| Wanted { name: (*name).into(), slot: len.map(Slot::heap) }).collect();
    conformance::infer(inputs, wanted, |batch| {
        instance.run(batch);
        // The session is dropped first: what it made must outlive it.
        drop((instance, model));
    })
}

#[track_caller]
fn check(graph: &str, inputs: Vec<Tensor>, wanted: &[(&str, Option<usize>)], outputs: &[Tensor]) {
    for runtime in runtimes() {
        let response = infer(&runtime, graph, inputs.clone(), wanted).unwrap();
        assert_eq!(response.outputs.len(), outputs.len());
        for (output, expected) in response.outputs.iter().zip(outputs) {
            assert_eq!((&output.name, &output.shape), (&expected.name, &expected.shape));
            assert_eq!(output.data.private_bytes(), expected.data.private_bytes(), "{}", output.name);
        }
    }
}

fn simple_case(rows: i64, seed: i32) -> Case {
    let count = rows as usize * 16;
    let (a, b): (Vec<i32>, Vec<i32>) = (0..count as i32).map(|i| (seed + i, seed * i)).unzip();
    let of = |name: &str, values: Vec<i32>| tensor(name, DataType::Int32, &[rows, 16], Buffer::from_numbers(values));
    let sum = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    let difference = a.iter().zip(&b).map(|(a, b)| a - b).collect();
    Case {
        inputs: vec![of("INPUT0", a), of("INPUT1", b)],
        outputs: vec![of("OUTPUT0", sum), of("OUTPUT1", difference)],
    }
}

#[test]
fn a_request_for_more_memory_than_there_is_fails_alone() {
    for runtime in runtimes() {
        let model = runtime.load(&loading(&runtime, "outer", 0)).unwrap();
        let mut instance = model.instance(&InstanceSpec::default()).unwrap();
        let mut infer = |count: i64| {
            let x = floats("x", &[count], &vec![1.0; usize::try_from(count).unwrap()]);
            let wanted = vec![Wanted { name: "y".into(), slot: None }];
            conformance::infer(vec![x], wanted, |batch| instance.run(batch))
        };
        for _ in 0..20 {
            let error = infer(400_000).unwrap_err();
            assert_eq!(error.code, Code::InvalidArg, "{error}");
            for part in ["what the model computes", "asked for 640000000", "send a smaller request"] {
                assert!(error.message.contains(part), "{error}");
            }
            let [sum] = &infer(100).unwrap().outputs[..] else { panic!("no sum") };
            assert_eq!(sum.data.private_bytes(), Some(&10_000f32.to_le_bytes()[..]));
        }
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
    for runtime in runtimes() {
        check_runtime(&runtime, &fixture);
    }
}

#[test]
fn a_graph_that_refuses_some_rows_keeps_the_contract() {
    let Some(runtime) = runtime() else { return };
    let rows = |values: &[i32]| {
        vec![tensor("rows", DataType::Int32, &[values.len() as i64, 1], Buffer::from_numbers(values.to_vec()))]
    };
    let case = |values: &[i32], picked: &[f32]| Case {
        inputs: rows(values),
        outputs: vec![floats("picked", &[values.len() as i64, 1, 2], picked)],
    };
    let fixture = Fixture {
        context: loading(&runtime, "pick", 8),
        cases: vec![case(&[3], &[7., 8.]), case(&[0, 2], &[1., 2., 5., 6.])],
        faulty: Some(rows(&[4])),
    };
    for runtime in runtimes() {
        check_runtime(&runtime, &fixture);
    }
}

#[test]
fn strings_keep_the_contract_and_their_zero_bytes() {
    let Some(runtime) = runtime() else { return };
    let case = |rows: i64, elements: &[&[u8]]| Case {
        inputs: vec![texts("x", &[rows, 2], elements)],
        outputs: vec![texts("y", &[rows, 2], elements)],
    };
    let fixture = Fixture {
        context: loading(&runtime, "echo_rows_bytes", 8),
        cases: vec![
            case(1, &[b"a\0b", b""]),
            case(2, &[b"\0", b"\xff\xfe", b"long enough to leave the small string", b"x"]),
        ],
        faulty: Some(vec![tensor("x", DataType::Bytes, &[1, 2], b"\x01\0\0\0a\x09\0\0\0b".to_vec())]),
    };
    for runtime in runtimes() {
        check_runtime(&runtime, &fixture);
    }
}

#[test]
fn every_datatype_comes_back_as_it_went() {
    for datatype in DataType::ALL {
        let Some(size) = datatype.size() else { continue };
        let bytes: Vec<u8> = (0..size as u8 * 3).map(|i| if datatype == DataType::Bool { i & 1 } else { i }).collect();
        let graph = format!("echo_{}", datatype.name().to_lowercase());
        let of = |name: &str| tensor(name, datatype, &[3], bytes.clone());
        check(&graph, vec![of("x")], &[("y", None)], &[of("y")]);
    }
}

#[test]
fn an_output_of_unknown_size_is_made_by_the_library_and_found_in_its_place() {
    let input = || vec![floats("x", &[4], &[0., 5., 0., 6.])];
    let found = [tensor("found", DataType::Int64, &[1, 2], Buffer::from_numbers(vec![1i64, 3]))];
    check("find", input(), &[("found", None)], &found);
    check("find", input(), &[("found", Some(100))], &found);
    for runtime in runtimes() {
        let error = infer(&runtime, "find", input(), &[("found", Some(15))]).unwrap_err().message;
        assert!(error.contains("(15 bytes) should be at least 16 bytes"), "{error}");
    }
}

#[test]
fn a_wrongly_declared_shape_still_gives_the_right_result() {
    let input = |shape: &[i64]| {
        let of_shape = tensor("shape", DataType::Int64, &[shape.len() as i64], Buffer::from_numbers(shape.to_vec()));
        vec![floats("x", &[4], &[1., 2., 3., 4.]), of_shape]
    };
    // It is declared as [n, 2]: four rows of two.
    for shape in [&[2i64, 2][..], &[4], &[1, 2, 2]] {
        let expected = [floats("y", shape, &[1., 2., 3., 4.])];
        check("misdeclared", input(shape), &[("y", None)], &expected);
        for bytes in [16, 31, 32, 100] {
            check("misdeclared", input(shape), &[("y", Some(bytes))], &expected);
        }
    }
}

#[test]
fn what_passes_through_the_graph_outlives_the_request() {
    let outputs = [floats("x", &[2], &[1., 2.]), floats("y", &[2], &[-1., -2.])];
    let input = || vec![floats("x", &[2], &[1., 2.])];
    check("passed_through", input(), &[("x", None), ("y", None)], &outputs);
    check("passed_through", input(), &[("x", Some(8)), ("y", Some(8))], &outputs);
    let outputs = [floats("c", &[3], &[1., 2., 3.]), floats("y", &[2], &[-1., -2.])];
    check("constant", input(), &[("c", None), ("y", None)], &outputs);
    check("constant", input(), &[("c", Some(12)), ("y", None)], &outputs);
}

#[test]
fn one_element_is_a_scalar_to_the_graph() {
    check("scalar", vec![floats("x", &[1], &[2.5])], &[("y", None)], &[floats("y", &[1], &[-2.5])]);
}

fn integers(name: &str, values: &[i32]) -> Tensor {
    tensor(name, DataType::Int32, &[values.len() as i64, 1], Buffer::from_numbers(values.to_vec()))
}

const NO_RESULT: &str = "the model divided an integer by zero, or the smallest integer by -1, with these inputs";

/// The smallest integer by -1, in the last of these rows.
fn without_a_result(rows: usize) -> Vec<Tensor> {
    let (mut dividends, mut divisors) = (vec![7; rows], vec![2; rows]);
    (dividends[rows - 1], divisors[rows - 1]) = (i32::MIN, -1);
    vec![integers("a", &dividends), integers("b", &divisors)]
}

#[test]
fn a_division_without_a_result_fails_its_request_alone() {
    let Some(runtime) = runtime() else { return };
    for (graph, results) in [("quotients", [-3, 4, i32::MIN]), ("remainders", [1, 0, 0])] {
        let case = |at: usize| Case {
            inputs: vec![integers("a", &[[-7, 8, i32::MIN][at]]), integers("b", &[[2, 2, 1][at]])],
            outputs: vec![integers("y", &[results[at]])],
        };
        let fixture = Fixture {
            context: loading(&runtime, graph, 8),
            cases: vec![case(0), case(1), case(2)],
            faulty: DIVISIONS_TRAP.then(|| without_a_result(1)),
        };
        for runtime in runtimes() {
            check_runtime(&runtime, &fixture);
        }
    }
}

#[test]
fn a_division_on_a_thread_of_the_pool_or_in_a_branch_is_found() {
    for runtime in runtimes() {
        for places in [None, Some(4 << 20)] {
            let error = infer(&runtime, "remainders", without_a_result(1 << 20), &[("y", places)]).err();
            assert_eq!(error.is_some_and(|e| e.message.starts_with(NO_RESULT)), DIVISIONS_TRAP);
        }
        for divides in [true, false] {
            let mut inputs = without_a_result(1);
            inputs.push(tensor("which", DataType::Bool, &[1], vec![u8::from(divides)]));
            let error = infer(&runtime, "quotients_inside", inputs, &[("y", None)]).err();
            assert_eq!(error.is_some_and(|e| e.message.starts_with(NO_RESULT)), divides && DIVISIONS_TRAP);
        }
    }
}

#[test]
fn a_graph_that_divides_constants_so_is_not_loaded() {
    let Some(runtime) = runtime() else { return };
    let loaded = runtime.load(&loading(&runtime, "constant_quotient", 0));
    assert_eq!(loaded.is_err(), DIVISIONS_TRAP);
    if let Err(error) = loaded {
        assert!(error.message.contains("divides a constant integer by zero"), "{}", error.message);
    }
}

#[test]
fn what_the_library_does_not_survive_without_elements_gets_some() {
    check(
        "distinct",
        vec![floats("x", &[2, 3], &[1., 1., 0., 2., 2., 0.])],
        &[("y", None)],
        &[floats("y", &[2, 2], &[0., 1., 0., 2.])],
    );
    for runtime in runtimes() {
        let error = infer(&runtime, "distinct", vec![floats("x", &[2, 0], &[])], &[("y", None)]).unwrap_err().message;
        assert!(error.starts_with("input 'x' has no elements"), "{error}");
    }
}

#[test]
fn an_empty_tensor_is_a_tensor() {
    check("echo_fp32", vec![floats("x", &[0], &[])], &[("y", None)], &[floats("y", &[0], &[])]);
    check("echo_bytes", vec![texts("x", &[0], &[])], &[("y", None)], &[texts("y", &[0], &[])]);
}

#[test]
fn an_unaligned_input_is_copied_and_right() {
    let mut bytes = vec![0u8];
    bytes.extend([1.0f32, 2.0].iter().flat_map(|f| f.to_le_bytes()));
    let whole = Buffer::from(bytes);
    let input = whole.slice(nerite_memory::Extent::new(1, 8, 9).unwrap());
    check("echo_fp32", vec![tensor("x", DataType::Fp32, &[2], input)], &[("y", None)], &[floats("y", &[2], &[1., 2.])]);
}

#[test]
fn what_cannot_be_opened_or_loaded_says_why() {
    let Some(runtime) = runtime() else { return };
    let second = OnnxRuntime::open(Path::new("/elsewhere.so")).unwrap_err();
    assert!(matches!(second, OpenError::Second { .. }), "{second}");
    assert!(runtime.engine().starts_with("ONNX Runtime 1."), "{}", runtime.engine());
    let mut context = loading(&runtime, "pick", 8);
    let mut config = (*context.config).clone();
    config.default_model_filename = "nowhere.onnx".into();
    context.config = Arc::new(config);
    let error = runtime.load(&context).err().unwrap().message;
    assert!(error.starts_with("unable to find '") && error.ends_with("' for model instance 'pick_0_0'"), "{error}");
    let garbage = std::env::temp_dir().join(format!("nerite-ort-garbage-{}", std::process::id()));
    std::fs::create_dir_all(&garbage).unwrap();
    std::fs::write(garbage.join("nowhere.onnx"), b"not a model").unwrap();
    context.version_dir = PathBuf::from(&garbage);
    let error = runtime.load(&context).err().unwrap().message;
    assert!(error.starts_with("onnx runtime error 7: "), "{error}");
    std::fs::remove_dir_all(&garbage).unwrap();
}

#[test]
fn a_library_without_the_cuda_provider_offers_no_gpus() {
    let Some(runtime) = runtime() else { return };
    let Err(why) = runtime.offers_gpus() else {
        println!("skipped: this host's ONNX Runtime has the provider");
        return;
    };
    let cure = "' has no CUDA provider: install the one that has (pip install onnxruntime-gpu) or name its library with \
                --onnxruntime-library";
    assert!(why.starts_with("ONNX Runtime at '/") && why.ends_with(cure), "{why}");
    // If an instance is still made there, the library returns an error.
    let context = loading(&runtime, "pick", 8);
    let spec = InstanceSpec { device: Some(0), ..InstanceSpec::default() };
    let error = runtime.load(&context).unwrap().instance(&spec).err().unwrap().message;
    assert!(
        error.starts_with("unable to load model 'pick' on device 0, ONNX Runtime's CUDA provider does not start: "),
        "{error}"
    );
}

#[test]
fn an_input_with_an_initializer_may_be_left_out_or_replaced() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
    for runtime in runtimes() {
        conformance::check_initializers(&runtime, &folder, DIVISIONS_TRAP.then_some(NO_RESULT));
    }
}
