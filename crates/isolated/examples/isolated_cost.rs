//! What does it cost to run a model in a process of its own?
//!
//! ```text
//! cargo run --release -p nerite-isolated --example isolated_cost [seconds for each row]
//! ```
//! Prints the median and the 99th percentile of a request from one client's region to another, of 64 bytes, 4 MiB and
//! 64 MiB, and its processor time in server and child together: once within the server, and once isolated. The graph
//! returns its input, which is one copy by the engine. It uses ONNX Runtime where that is found, else the embedded
//! engine.
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_backend::conformance::{context, infer};
use nerite_backend::{Instance, InstanceSpec, LoadContext, Runtime};
use nerite_config::ModelConfig;
use nerite_isolated::{Isolated, work};
use nerite_ort::{OnnxRuntime, find_library};
use nerite_request::Wanted;
use nerite_shm::{Options, OwnedRegion, Registry};
use nerite_tensor::{DataType, Shape, Tensor};

type Anything = Box<dyn std::error::Error>;

/// The same as the engine's. After this a worker thread waits.
const PATIENCE: Duration = Duration::from_micros(250);
const SIZES: [(usize, &str); 3] = [(64, "64 B"), (4 << 20, "4 MiB"), (64 << 20, "64 MiB")];
const WORKER: &str = "--worker";
/// Ticks of the system's clock in a second, as in `/proc/<pid>/stat`.
const TICKS: f64 = 100.0;

fn main() -> Result<ExitCode, Anything> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == WORKER) {
        return Ok(work(|_| engine()));
    }
    let seconds = words.first().map_or(Ok(3.0), |text| text.parse())?;
    let inner = engine()?;
    println!("{}\n", inner.engine());
    let start = Arc::new(|_: &str| {
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORKER);
        command
    });
    let runtime = Isolated::over(inner, start);
    println!("| region to region | within the server: p50 | p99 | CPU | isolated: p50 | p99 | CPU | p50 more |");
    println!("|---|---|---|---|---|---|---|---|");
    for (size, name) in SIZES {
        let [within, isolated] = ["false", "true"].map(|word| measure(&runtime, word, size, seconds));
        let (within, isolated) = (within?, isolated?);
        let more = isolated.p50_us - within.p50_us;
        println!("| {name} | {within} | {isolated} | {more:.1} µs |");
    }
    Ok(ExitCode::SUCCESS)
}

fn engine() -> Result<Arc<dyn Runtime>, String> {
    match find_library(None) {
        Some(library) => Ok(Arc::new(OnnxRuntime::open(&library).map_err(|error| error.to_string())?)),
        None => Ok(Arc::new(nerite_onnx::Embedded)),
    }
}

struct Row {
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} µs | {:.1} µs | {:.1} µs", self.p50_us, self.p99_us, self.cpu_us)
    }
}

fn measure(runtime: &Isolated, isolated: &str, size: usize, seconds: f64) -> Result<Row, Anything> {
    let loading = loading(runtime, isolated)?;
    let spec = InstanceSpec { name: "echo_0".into(), ..InstanceSpec::default() };
    let mut instance = runtime.load(&loading)?.instance(&spec)?;
    let key = format!("/nerite-isolated-cost-{}", std::process::id());
    let _mine = OwnedRegion::create(&key, 2 * size.max(4096))?;
    let registry = Registry::new(Options::default());
    registry.register_system("r", &key, 0, 2 * size.max(4096) as u64)?;
    for _ in 0..20 {
        once(&mut *instance, &registry, size)?;
    }
    let (mut times, cpu, began) = (Vec::new(), cpu_us()?, Instant::now());
    while began.elapsed().as_secs_f64() < seconds {
        times.push(once(&mut *instance, &registry, size)?.as_secs_f64() * 1e6);
    }
    let cpu_us = (self::cpu_us()? - cpu) / times.len() as f64;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    Ok(Row { p50_us: at(0.5), p99_us: at(0.99), cpu_us })
}

/// As the engine does it: on this thread if the run is quick, else on a thread that waits (here the same one).
fn once(instance: &mut dyn Instance, registry: &Registry, size: usize) -> Result<Duration, Anything> {
    let data = registry.locate("r", 0, size as u64)?.into_buffer();
    let shape = Shape::from_slice(&[size as i64 / 4]);
    let inputs = vec![Tensor { name: "x".into(), datatype: DataType::Fp32, shape, data }];
    let slot = registry.locate("r", size.max(4096) as u64, size as u64)?.into_slot();
    let wanted = vec![Wanted { name: "y".into(), slot: Some(slot) }];
    let began = Instant::now();
    let response = infer(inputs, wanted, |batch| {
        if !instance.begin(batch, PATIENCE) {
            instance.finish();
        }
    });
    let took = began.elapsed();
    response?;
    Ok(took)
}

fn loading(runtime: &Isolated, isolated: &str) -> Result<LoadContext, Anything> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
    let text = format!(
        "name: 'echo' backend: 'onnxruntime' default_model_filename: 'echo_fp32.onnx'
         parameters {{ key: 'isolated' value {{ string_value: '{isolated}' }} }}"
    );
    let config: ModelConfig = nerite_config::parse_text("c", text.as_bytes())?;
    let mut context = context(&folder, config);
    context.version_dir.clone_from(&context.model_dir);
    context.settings.insert("default-max-batch-size".into(), "0".into());
    let config = runtime.complete(&context)?;
    Ok(LoadContext { config: Arc::new(config), ..context })
}

/// Processor time of this process and its children so far.
fn cpu_us() -> Result<f64, Anything> {
    let mut stats = vec![std::fs::read_to_string("/proc/self/stat")?];
    for task in std::fs::read_dir("/proc/self/task")? {
        let children = std::fs::read_to_string(task?.path().join("children"))?;
        let of = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        stats.extend(children.split_whitespace().filter_map(of));
    }
    let ticks = |stat: &String| {
        let after = stat.rsplit(") ").next().unwrap_or_default();
        after.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>()
    };
    Ok(stats.iter().map(ticks).sum::<f64>() * 1e6 / TICKS)
}
