//! Does a request cost no copy if its tensors lie where they can be used?
//!
//! This is a file of its own, because the counters belong to the process.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};

use nerite_backend::conformance::context;
use nerite_backend::{Batch, Instance, InstanceSpec, Job, ModelVersion, NoMeter, Runtime};
use nerite_memory::{Access, Block, Buffer, Extent, Place, Reason, Slot, copied_bytes};
use nerite_ort::{OnnxRuntime, find_library};
use nerite_request::{AdmittedRequest, InferResponse, Recycled, Reply, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

type Seen = Arc<Mutex<Vec<Result<Recycled<InferResponse>, Status>>>>;

fn job(seen: &Seen, rows: i64, inputs: [Buffer; 2], slots: [Option<Slot>; 2]) -> Job {
    let seen = Arc::clone(seen);
    let tensor = |(i, data): (usize, Buffer)| Tensor {
        name: format!("INPUT{i}").into(),
        datatype: DataType::Int32,
        shape: Shape::from_slice(&[rows, 16]),
        data,
    };
    let request = AdmittedRequest {
        rows: rows as u32,
        inputs: inputs.into_iter().enumerate().map(tensor).collect(),
        wanted: slots
            .into_iter()
            .enumerate()
            .map(|(i, slot)| Wanted { name: format!("OUTPUT{i}").into(), slot })
            .collect(),
        ..AdmittedRequest::new(Reply::new(move |response| seen.lock().unwrap().push(response.into_content().unwrap())))
    };
    Job::new(request, ModelVersion::unmetered("simple").begin(), 1)
}

fn copied_while(act: impl FnOnce()) -> Vec<(&'static str, u64)> {
    let count = || Reason::ALL.iter().map(|reason| copied_bytes(*reason)).collect::<Vec<_>>();
    let before = count();
    act();
    let differences = Reason::ALL.iter().zip(before).zip(count());
    differences
        .map(|((reason, before), after)| (reason.name(), after - before))
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}

/// Memory that another process could write, as far as the runtime knows.
fn over(memory: &Arc<Block>, at: usize, len: usize) -> Slot {
    assert!(at + len <= memory.capacity());
    // SAFETY: within the block (asserted).
    let from = unsafe { memory.as_ptr().add(at) };
    let keep = Arc::<Block>::clone(memory);
    // SAFETY: `len` initialised bytes of a block that `keep` holds; as shared memory, other views of them may exist.
    unsafe { Slot::from_raw(from, len, Place::Host, Access::Shared, keep) }
}

fn region(len: usize) -> Buffer {
    over(&Arc::new(Block::new(len)), 0, len).filled().into_buffer()
}

fn run(instance: &mut dyn Instance, jobs: Vec<Job>) {
    instance.run(Batch { jobs: jobs.into(), meter: Arc::new(NoMeter) });
}

/// The only test of this file calls it, because the counters belong to the process.
fn indices_are_copied_from_where_a_client_may_change_them(runtime: &OnnxRuntime) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
    let config = nerite_config::ModelConfig {
        name: "pick".into(),
        backend: "onnxruntime".into(),
        default_model_filename: "pick.onnx".into(),
        max_batch_size: 4,
        ..Default::default()
    };
    let mut context = context(&folder, config);
    context.version_dir.clone_from(&context.model_dir);
    context.config = Arc::new(runtime.complete(&context).unwrap());
    let mut instance = runtime.load(&context).unwrap().instance(&InstanceSpec::default()).unwrap();
    let seen = Seen::default();
    for (data, expected) in [(region(4), vec![("indices", 4)]), (Slot::heap(4).filled().into_buffer(), vec![])] {
        let tensor = Tensor { name: "rows".into(), datatype: DataType::Int32, shape: Shape::from_slice(&[1, 1]), data };
        let into = Arc::clone(&seen);
        let request = AdmittedRequest {
            inputs: vec![tensor].into(),
            wanted: vec![Wanted { name: "picked".into(), slot: None }].into(),
            ..AdmittedRequest::new(Reply::new(move |response| {
                into.lock().unwrap().push(response.into_content().unwrap());
            }))
        };
        let jobs = vec![Job::new(request, ModelVersion::unmetered("pick").begin(), 1)];
        assert_eq!(copied_while(|| run(&mut *instance, jobs)), expected);
    }
    assert!(seen.lock().unwrap().iter().all(Result::is_ok));
}

#[test]
fn tensors_that_lie_right_are_not_copied() {
    let Some(library) = find_library(None) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return;
    };
    let open = || OnnxRuntime::open(&library).unwrap();
    // By a plain call, and with a wait for the device after it, as on GPUs.
    for runtime in [open(), open().waiting_for_device()] {
        nothing_is_copied_that_lies_right(&runtime);
        indices_are_copied_from_where_a_client_may_change_them(&runtime);
    }
}

fn nothing_is_copied_that_lies_right(runtime: &OnnxRuntime) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models/simple");
    let text = std::fs::read(folder.join("config.pbtxt")).unwrap();
    let context = context(&folder, nerite_config::parse_text("simple/config.pbtxt", &text).unwrap());
    let mut instance = runtime.load(&context).unwrap().instance(&InstanceSpec::default()).unwrap();
    let seen = Seen::default();
    let rows = |count: i32| Slot::heap(64 * count as usize).filled().into_buffer();
    let slot = || Some(Slot::heap(64));

    let placed = copied_while(|| run(&mut *instance, vec![job(&seen, 1, [rows(1), rows(1)], [slot(), slot()])]));
    assert_eq!(placed, [], "from memory to memory of the client's");
    let inline = copied_while(|| run(&mut *instance, vec![job(&seen, 2, [rows(2), rows(2)], [None, None])]));
    assert_eq!(inline, [], "from a message into a response");

    let shared = copied_while(|| run(&mut *instance, vec![job(&seen, 1, [region(64), region(64)], [slot(), slot()])]));
    assert_eq!(shared, [], "from a client's region: its numbers are only added");

    let whole = [rows(2), rows(2)];
    let part = |at: usize| [0, 1].map(|i| whole[i].slice(Extent::new(at, 64, 128).unwrap()));
    let jobs = vec![job(&seen, 1, part(0), [None, None]), job(&seen, 1, part(64), [None, None])];
    let batched = copied_while(|| run(&mut *instance, jobs));
    assert_eq!(batched, [], "a batch whose rows lie end to end, answered inline");

    // The second job's rows of each output follow those of the first one after this gap.
    for (gap, expected) in [(0, vec![]), (4, vec![("batch_scatter", 256)])] {
        let memory = Arc::new(Block::new(512));
        let slots = |at: usize| [at, 256 + at].map(|at| Some(over(&memory, at, 64)));
        let jobs = vec![job(&seen, 1, part(0), slots(0)), job(&seen, 1, part(64), slots(64 + gap))];
        let placed = copied_while(|| run(&mut *instance, jobs));
        assert_eq!(placed, expected, "{gap} bytes between the rows of an output");
    }

    let apart =
        || vec![job(&seen, 1, [rows(1), rows(1)], [None, None]), job(&seen, 1, [rows(1), rows(1)], [slot(), slot()])];
    let jobs = apart();
    let gathered = copied_while(|| run(&mut *instance, jobs));
    assert_eq!(gathered, [("batch_gather", 256), ("batch_scatter", 128)], "a batch from here and there");
    // The client wants an output in the memory of an input that the other output still needs. It is made elsewhere, and
    // is right.
    let memory = Arc::new(Block::new(128));
    let numbers: Vec<i32> = (0..32).collect();
    let mut whole = over(&memory, 0, 128);
    whole.write(0, Buffer::from_numbers(numbers).private_bytes().unwrap(), Reason::Model).unwrap();
    let inputs = [0, 64].map(|at| over(&memory, at, 64).filled().into_buffer());
    let slots = [0, 64].map(|at| Some(over(&memory, at, 64)));
    let beside = copied_while(|| run(&mut *instance, vec![job(&seen, 1, inputs, slots)]));
    assert_eq!(beside, [("output_placement", 128)], "outputs over their own inputs");
    let last = seen.lock().unwrap().pop().unwrap().unwrap();
    let values = |at: usize| last.outputs[at].data.cells::<i32>().unwrap().to_vec();
    assert_eq!(values(0), (0..16).map(|i| 2 * i + 16).collect::<Vec<_>>());
    assert_eq!(values(1), [-16; 16]);

    assert!(seen.lock().unwrap().iter().all(|response| response.as_ref().is_ok_and(|made| made.outputs.len() == 2)));
}
