//! What does a run on the embedded engine cost, through the contract and called directly?
//!
//! ```text
//! cargo run --release -p nerite-onnx --example onnx_overhead [model directory] [runs] [instances]
//! ```
//! Prints wall and processor time per run side by side: the same model, threads and input.
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nerite_backend::conformance::context;
use nerite_backend::{Batch, InstanceSpec, Job, LoadContext, ModelVersion, NoMeter, Runtime, now_ns};
use nerite_memory::{Buffer, Slot};
use nerite_onnx::Embedded;
use nerite_request::{AdmittedRequest, Reply, Response, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(|| PathBuf::from("examples/models/digits"), PathBuf::from);
    let runs: usize = arguments.next().map_or(Ok(20_000), |text| text.parse())?;
    let text = std::fs::read(folder.join("config.pbtxt"))?;
    let mut context = context(&folder, nerite_config::parse_text("config.pbtxt", &text)?);
    context.instances = arguments.next().map_or(Ok(2), |text| text.parse())?;
    for _ in 0..3 {
        directly(&context, runs)?;
        through_the_contract(&context, runs)?;
    }
    Ok(())
}

fn directly(context: &LoadContext, runs: usize) -> Result<(), Box<dyn std::error::Error>> {
    let model = rten::Model::load_file(nerite_backend::onnx::model_file(context)?)?;
    let pool = Arc::new(rten::ThreadPool::with_num_threads(nerite_backend::onnx::threads(context)?));
    let options = rten::RunOptions::default().with_thread_pool(Some(pool));
    let input = input(context);
    let dims: Vec<usize> = input.shape.iter().map(|dim| *dim as usize).collect();
    let values = input.data.numbers::<f32>().ok_or("FP32 inputs only")?;
    measure("directly", runs, || {
        let view = rten::ValueView::from_shape(&dims, values).expect("a shape of its own values");
        let output = model.run(vec![(model.input_ids()[0], view.into())], model.output_ids(), Some(options.clone()));
        drop(std::hint::black_box(output));
    });
    Ok(())
}

fn through_the_contract(context: &LoadContext, runs: usize) -> Result<(), Box<dyn std::error::Error>> {
    let begun = Instant::now();
    let model = Embedded.load(context)?;
    println!("loaded in {:?}", begun.elapsed());
    let mut instance = model.instance(&InstanceSpec::default())?;
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
    Ok(())
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
    let (wall, processor) = (Instant::now(), processor_ticks());
    (0..runs).for_each(|_| run());
    let wall = wall.elapsed().as_secs_f64() * 1e6 / runs as f64;
    // A tick is 10 ms on all systems where this runs.
    let processor = (processor_ticks() - processor) as f64 * 1e4 / runs as f64;
    println!("{what:>9}: {wall:8.2} µs wall, {processor:8.2} µs processor per run");
}

/// User and system time of this process, from its line in the process file system.
fn processor_ticks() -> u64 {
    let line = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = line.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}
