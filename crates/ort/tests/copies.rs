//! Does a request whose tensors lie right cost no copy at all?
//!
//! A file of its own, because the counters are the process's.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};

use nerite_backend::conformance::context;
use nerite_backend::{Batch, Instance, InstanceSpec, Job, NoMeter, Runtime};
use nerite_memory::{Buffer, Extent, Reason, Slot, copied_bytes};
use nerite_ort::{OnnxRuntime, find_library};
use nerite_request::{Cancel, Parameters, Reply, Request, Response, Sequence, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

type Seen = Arc<Mutex<Vec<Response>>>;

fn job(seen: &Seen, rows: i64, inputs: [Buffer; 2], slots: [Option<Slot>; 2]) -> Job {
    let seen = Arc::clone(seen);
    let tensor = |(i, data): (usize, Buffer)| Tensor {
        name: format!("INPUT{i}"),
        datatype: DataType::Int32,
        shape: Shape::from_slice(&[rows, 16]),
        data,
    };
    let request = Request {
        id: String::new(),
        rows: rows as u32,
        inputs: inputs.into_iter().enumerate().map(tensor).collect(),
        wanted: slots.into_iter().enumerate().map(|(i, slot)| Wanted { name: format!("OUTPUT{i}"), slot }).collect(),
        priority: 0,
        timeout_us: 0,
        sequence: Sequence::default(),
        parameters: Parameters::new(),
        cancel: Cancel::new(),
        reply: Reply::new("", move |response| seen.lock().unwrap().push(response)),
    };
    Job::new(request, "simple".into(), "1".into(), 1)
}

fn copied_while(act: impl FnOnce()) -> Vec<(&'static str, u64)> {
    let count = || Reason::ALL.iter().map(|reason| copied_bytes(*reason)).collect::<Vec<_>>();
    let before = count();
    act();
    let differences = Reason::ALL.iter().zip(before).zip(count());
    differences.map(|((reason, before), after)| (reason.name(), after - before)).filter(|(_, bytes)| *bytes > 0).collect()
}

fn run(instance: &mut dyn Instance, jobs: Vec<Job>) {
    instance.run(Batch { jobs, meter: Arc::new(NoMeter) });
}

#[test]
fn tensors_that_lie_right_are_not_copied() {
    let Some(library) = find_library(None) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return;
    };
    let runtime = OnnxRuntime::open(&library).unwrap();
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

    let whole = [rows(2), rows(2)];
    let part = |at: usize| [0, 1].map(|i| whole[i].slice(Extent::new(at, 64, 128).unwrap()));
    let jobs = vec![job(&seen, 1, part(0), [None, None]), job(&seen, 1, part(64), [None, None])];
    let batched = copied_while(|| run(&mut *instance, jobs));
    assert_eq!(batched, [], "a batch whose rows lie end to end, answered inline");

    let apart = || vec![job(&seen, 1, [rows(1), rows(1)], [None, None]), job(&seen, 1, [rows(1), rows(1)], [slot(), slot()])];
    let jobs = apart();
    let gathered = copied_while(|| run(&mut *instance, jobs));
    assert_eq!(gathered, [("batch_gather", 256), ("batch_scatter", 128)], "a batch from here and there");
    assert!(seen.lock().unwrap().iter().all(|response| response.error.is_none() && response.outputs.len() == 2));
}
