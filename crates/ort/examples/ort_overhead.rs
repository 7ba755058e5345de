//! What does a run through the contract cost in addition to the library's own run?
//!
//! ```text
//! cargo run --release -p nerite-ort --example ort_overhead [model directory] [runs] [settings, as key=value …]
//! ```
//! Prints wall and processor time per run, side by side: of ONNX Runtime called directly, and of an instance of the
//! runtime. Both have the same model, options and input, and write the output to the client's memory.
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nerite_backend::conformance::context;
use nerite_backend::{Batch, Instance, InstanceSpec, Job, LoadContext, ModelVersion, NoMeter, Runtime, now_ns};
use nerite_memory::{Buffer, Slot};
use nerite_ort::{OnnxRuntime, find_library};
use nerite_request::{AdmittedRequest, Reply, Response, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

type Anything = Box<dyn std::error::Error>;

fn main() -> Result<(), Anything> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directly_only = arguments.first().is_some_and(|first| first == "--directly");
    let mut rest = arguments.iter().skip(usize::from(directly_only));
    let folder = rest.next().map_or_else(|| PathBuf::from("examples/models/digits"), PathBuf::from);
    let runs: usize = rest.next().map_or(Ok(20_000), |text| text.parse())?;
    let text = std::fs::read(folder.join("config.pbtxt"))?;
    let mut context = context(&folder, nerite_config::parse_text("config.pbtxt", &text)?);
    for setting in rest {
        let (key, value) = setting.split_once('=').ok_or("settings are key=value")?;
        match key {
            "instances" => context.instances = value.parse()?,
            _ => drop(context.settings.insert(key.into(), value.into())),
        }
    }
    if directly_only { directly(&context, runs) } else { compare(&context, runs, &arguments) }
}

/// Uses a second process, because a process can have only one environment of the library.
fn compare(context: &LoadContext, runs: usize, arguments: &[String]) -> Result<(), Anything> {
    let begun = Instant::now();
    let library = find_library(None).ok_or("no ONNX Runtime on this host")?;
    let found = begun.elapsed();
    let runtime = OnnxRuntime::open(&library)?;
    let opened = begun.elapsed();
    let model = runtime.load(context)?;
    println!("{}: found {found:?}, open {opened:?}, loaded {:?} after the start", runtime.engine(), begun.elapsed());
    let mut instance = model.instance(&InstanceSpec::default())?;
    for _ in 0..3 {
        let arguments = std::iter::once("--directly").chain(arguments.iter().map(String::as_str));
        std::process::Command::new(std::env::current_exe()?).args(arguments).status()?;
        through_the_contract(&mut *instance, context, runs);
    }
    Ok(())
}

fn directly(context: &LoadContext, runs: usize) -> Result<(), Anything> {
    let begun = Instant::now();
    let environment = ort::init_from(find_library(None).ok_or("no library")?)?.with_telemetry(false).build()?;
    let made = begun.elapsed();
    let spinning = context.settings.get("session.intra_op.allow_spinning").map_or("0", String::as_str);
    let mut session = ort::session::Session::builder(&environment)?
        .with_intra_threads(nerite_backend::onnx::threads(context)?)?
        .with_config_entry("session.intra_op.allow_spinning", spinning)?
        .commit_from_file(nerite_backend::onnx::model_file(context)?)?;
    println!("          environment after {made:?}, session after {:?}", begun.elapsed());
    let input = input(context);
    let values = input.data.numbers::<f32>().ok_or("FP32 inputs only")?;
    let (name, shape) = (input.name.clone(), input.shape.to_vec());
    measure("directly", runs, || {
        let tensor =
            ort::value::TensorRef::from_array_view((shape.clone(), values)).expect("a shape of its own values");
        let outputs = session.run(ort::inputs![name.as_str() => tensor]).expect("a model that runs");
        std::hint::black_box(outputs);
    });
    Ok(())
}

fn through_the_contract(instance: &mut dyn Instance, context: &LoadContext, runs: usize) {
    let input = input(context);
    let output = context.config.output[0].name.clone();
    let failures = Arc::new(AtomicUsize::new(0));
    let version = ModelVersion::unmetered(&context.model);
    let meter = Arc::new(NoMeter);
    measure("instance", runs, || {
        let seen = Arc::clone(&failures);
        let request = AdmittedRequest {
            inputs: vec![input.clone()].into(),
            wanted: vec![Wanted { name: output.as_str().into(), slot: Some(Slot::heap(4096)) }].into(),
            ..AdmittedRequest::new(Reply::new(move |response| {
                seen.fetch_add(usize::from(!matches!(response, Response::Final(_))), Ordering::Relaxed);
            }))
        };
        let job = Job::new(request, version.begin(), now_ns());
        instance.run(Batch { jobs: vec![job].into(), meter: Arc::<NoMeter>::clone(&meter) });
    });
    assert_eq!(failures.load(Ordering::Relaxed), 0, "every run gives a result");
}

fn input(context: &LoadContext) -> Tensor {
    let spec = &context.config.inputs()[0];
    let shape: Shape = spec.shape(context.config.batches()).iter().map(|dim| (*dim).max(1)).collect();
    let count = shape.iter().product::<i64>() as usize;
    let data = Buffer::from_numbers((0..count).map(|i| (i % 16) as f32).collect::<Vec<_>>());
    Tensor { name: spec.name.as_str().into(), datatype: DataType::Fp32, shape, data }
}

fn measure(what: &str, runs: usize, mut run: impl FnMut()) {
    (0..runs / 10).for_each(|_| run());
    let (wall, processor) = (Instant::now(), processor_us());
    (0..runs).for_each(|_| run());
    let wall = wall.elapsed().as_secs_f64() * 1e6 / runs as f64;
    let processor = (processor_us() - processor) / runs as f64;
    println!("{what:>9}: {wall:8.2} µs wall, {processor:8.2} µs processor per run");
}

fn processor_us() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: every process has this clock, and `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
