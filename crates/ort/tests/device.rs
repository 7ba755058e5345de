//! Does each kind of tensor get to an instance on a device and back as it should?
//!
//! ONNX Runtime of this host computes. A stand-in for its CUDA provider, over the stand-in driver, is in front of it.
//! Neither is CUDA.
#![expect(clippy::print_stdout, reason = "a test that skips itself says so")]
#![allow(clippy::unwrap_used)]

#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use nerite_backend::conformance::{self, completed, graph_context};
use nerite_backend::{Instance, InstanceSpec, LoadContext, Runtime, Staged};
use nerite_config::proto::ModelInstanceGroup;
use nerite_config::proto::model_instance_group::Kind;
use nerite_cuda::{DeviceMemory, Driver};
use nerite_memory::{Buffer, Extent, HeapStaging, Reason, Slot, copied_bytes};
use nerite_ort::{OnnxRuntime, find_library};
use nerite_request::{InferResponse, Recycled, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor, strings};

/// Copies are counted for the whole process, so only one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());
const DEVICE: u32 = 1;

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn runtime() -> Option<OnnxRuntime> {
    let Some(real) = find_library(None) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return None;
    };
    Some(OnnxRuntime::open(stand_in::provider(&real)).unwrap_or_else(|e| panic!("{e}")))
}

/// A graph of crates/onnx/tests/models with one instance, on the device.
fn loading(runtime: &OnnxRuntime, graph: &str) -> LoadContext {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
    let group = ModelInstanceGroup {
        name: graph.into(),
        kind: Kind::Gpu as i32,
        count: 1,
        gpus: vec![DEVICE as i32],
        ..ModelInstanceGroup::default()
    };
    let mut context = graph_context(&folder, graph);
    Arc::make_mut(&mut context.config).instance_group = vec![group];
    completed(runtime, context).unwrap()
}

fn tensor(name: &str, datatype: DataType, shape: &[i64], data: impl Into<Buffer>) -> Tensor {
    Tensor { name: name.into(), datatype, shape: Shape::from_slice(shape), data: data.into() }
}

fn floats(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
    tensor(name, DataType::Fp32, shape, Buffer::from_numbers(values.to_vec()))
}

fn on_device(len: usize) -> Arc<DeviceMemory> {
    let driver = Driver::open(Some(stand_in::library())).unwrap();
    DeviceMemory::allocate(&driver.device(DEVICE).unwrap(), len).unwrap()
}

fn to_device(tensor: Tensor) -> Tensor {
    let (memory, all) = (on_device(tensor.data.len()), Extent::whole(tensor.data.len()));
    memory.slot(all).fill_from(0, &tensor.data, Reason::Model).unwrap();
    Tensor { data: memory.buffer(all), ..tensor }
}

fn to_host(data: &Buffer) -> Vec<u8> {
    let mut home = Slot::heap(data.len());
    home.fill_from(0, data, Reason::Model).unwrap();
    home.filled().into_buffer().private_bytes().unwrap().to_vec()
}

/// Asks twice with everything on the device. Checks the outputs, and the bytes that cross each time.
#[track_caller]
fn check(graph: &str, inputs: &[Tensor], outputs: &[Tensor], crossed: [u64; 2]) {
    let _alone = alone();
    let Some(runtime) = runtime() else { return };
    let model = runtime.load(&loading(&runtime, graph)).unwrap();
    let spec = InstanceSpec { device: Some(DEVICE), ..InstanceSpec::default() };
    let access = model.takes_device_memory(&spec);
    let mut instance = Staged::over(model.instance(&spec).unwrap(), Arc::new(HeapStaging), access);
    for crossed in crossed {
        let before = copied_bytes(Reason::CrossDevice);
        let response = infer(&mut instance, inputs, outputs).unwrap();
        assert_eq!(copied_bytes(Reason::CrossDevice) - before, crossed, "{graph}");
        for (output, expected) in response.outputs.iter().zip(outputs) {
            assert_eq!((&output.name, &output.shape, output.placed), (&expected.name, &expected.shape, true));
            assert_eq!(to_host(&output.data), to_host(&expected.data), "{} of {graph}", output.name);
        }
    }
}

fn infer(
    instance: &mut dyn Instance,
    inputs: &[Tensor],
    outputs: &[Tensor],
) -> Result<Recycled<InferResponse>, Status> {
    // Larger than needed, like memory of clients that do not know the size.
    let place = |output: &Tensor| on_device(output.data.len() + 8).slot(Extent::whole(output.data.len() + 8));
    let wanted = outputs.iter().map(|out| Wanted { name: out.name.clone(), slot: Some(place(out)) }).collect();
    conformance::infer(inputs.iter().cloned().map(to_device).collect(), wanted, |batch| instance.run(batch))
}

#[test]
fn numbers_stay_on_the_device() {
    let of = |name| floats(name, &[3], &[1., 2., 3.]);
    check("echo_fp32", &[of("x")], &[of("y")], [0, 0]);
}

#[test]
fn indices_come_to_the_host_first() {
    let rows = tensor("rows", DataType::Int32, &[1, 1], Buffer::from_numbers(vec![3i32]));
    check("pick", &[rows], &[floats("picked", &[1, 1, 2], &[7., 8.])], [4, 4]);
}

#[test]
fn strings_go_by_the_host_both_ways() {
    let of = |name| {
        let mut bytes = Vec::new();
        strings::push(&mut bytes, b"a\0b").unwrap();
        strings::push(&mut bytes, b"").unwrap();
        tensor(name, DataType::Bytes, &[2], bytes)
    };
    check("echo_bytes", &[of("x")], &[of("y")], [22, 22]);
}

#[test]
fn an_output_of_unknown_size_is_made_on_the_host() {
    let found = tensor("found", DataType::Int64, &[1, 2], Buffer::from_numbers(vec![1i64, 3]));
    // The input is copied too: its nonzero numbers are counted first, and written according to that count.
    check("find", &[floats("x", &[4], &[0., 5., 0., 6.])], &[found], [16 + 16, 16 + 16]);
}

#[test]
fn an_output_of_another_size_than_declared_is_made_on_the_host_from_then_on() {
    let shape = tensor("shape", DataType::Int64, &[1], Buffer::from_numbers(vec![4i64]));
    let values = [1., 2., 3., 4.];
    // The shape is copied to the host first, and the output back.
    check("misdeclared", &[floats("x", &[4], &values), shape], &[floats("y", &[4], &values)], [8 + 16, 8 + 16]);
}

#[test]
fn what_passes_through_the_graph_goes_by_the_host() {
    let outputs = [floats("x", &[2], &[1., 2.]), floats("y", &[2], &[-1., -2.])];
    check("passed_through", &[floats("x", &[2], &[1., 2.])], &outputs, [8 + 8, 8 + 8]);
}

#[test]
fn what_the_library_refuses_fails_its_request_alone() {
    let _alone = alone();
    let Some(runtime) = runtime() else { return };
    let model = runtime.load(&loading(&runtime, "pick")).unwrap();
    let spec = InstanceSpec { device: Some(DEVICE), ..InstanceSpec::default() };
    let access = model.takes_device_memory(&spec);
    let mut instance = Staged::over(model.instance(&spec).unwrap(), Arc::new(HeapStaging), access);
    let rows = |row: i32| [tensor("rows", DataType::Int32, &[1, 1], Buffer::from_numbers(vec![row]))];
    let picked = |values: &[f32]| [floats("picked", &[1, 1, 2], values)];
    let error = infer(&mut instance, &rows(4), &picked(&[0., 0.])).unwrap_err().message;
    assert!(error.starts_with("onnx runtime error "), "{error}");
    let response = infer(&mut instance, &rows(2), &picked(&[5., 6.])).unwrap();
    assert_eq!(to_host(&response.outputs[0].data), to_host(&picked(&[5., 6.])[0].data));
}
