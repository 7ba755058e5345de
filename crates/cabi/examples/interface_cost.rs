//! What does a run through the C interface cost beside one of the built-in identity?
//!
//! ```text
//! cargo run --release -p nerite-cabi --example interface_cost [requests of a round]
//! ```
//! Prints the processor time (user and system) of this thread for a request with one input and one output of 64 bytes:
//! for an identity in C (`benches/peer/identity.c`) and for the built-in one, in turns. No other thread is woken:
//! `benches/compiled.py` measures what waking a worker costs.
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

#[path = "../tests/support/requests.rs"]
mod requests;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nerite_backend::conformance::context;
use nerite_backend::identity::Identity;
use nerite_backend::{Instance, Meter, ModelVersion, NoMeter, Outbox, Runtime};
use nerite_cabi::{CompiledBackend, Options, backends_in};
use nerite_request::{AdmittedRequest, Reply};
use nerite_tensor::{Buffer, DataType, Shape, Tensor};
use requests::{batch, instance, request};

type Anything = Box<dyn std::error::Error>;

const ROUNDS: usize = 15;
const CONFIG: &[u8] = b"name: 'm' backend: 'peer' input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }] \
                        output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }]";

fn main() -> Result<(), Anything> {
    let requests: usize = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    let folder = std::env::temp_dir().join(format!("nerite-interface-cost-{}", std::process::id()));
    let found = compare(&folder, requests);
    std::fs::remove_dir_all(&folder)?;
    found
}

fn compare(folder: &Path, requests: usize) -> Result<(), Anything> {
    let library = folder.join("peer/libtriton_peer.so");
    std::fs::create_dir_all(folder.join("peer"))?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/peer/identity.c");
    let built = Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).status()?;
    if !built.success() {
        return Err(format!("{source} is not compiled").into());
    }
    let (name, path) = backends_in(folder).pop().ok_or("the backend is not found")?;
    let compiled = CompiledBackend::new(
        &name,
        &path,
        Options { directory: folder.to_owned(), auto_complete: false, reports: None },
    );
    let config = nerite_config::parse_text("", CONFIG)?;
    let context = context(folder, config);
    let mut in_c = instance(&*compiled.load(&context)?, 0, None)?;
    let mut built_in = instance(&*Identity.load(&context)?, 0, None)?;
    let (mut times_in_c, mut times_built_in) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        times_built_in.push(round(&mut *built_in, requests)?);
        times_in_c.push(round(&mut *in_c, requests)?);
    }
    let (in_c, built_in) = (median(times_in_c), median(times_built_in));
    println!(
        "built in {built_in:.2} us, in C {in_c:.2} us: {:+.2} us, {:.2} times (making and answering the request included)",
        in_c - built_in,
        in_c / built_in
    );
    Ok(())
}

/// Microseconds of processor time for a request.
fn round(instance: &mut dyn Instance, requests: usize) -> Result<f64, Anything> {
    let meter: Arc<dyn Meter> = Arc::new(NoMeter);
    let before = processor_time()?;
    for _ in 0..requests {
        let batch = batch(vector(), &ModelVersion::unmetered("m"), &meter);
        let ((), mut outbox) = Outbox::around(|| instance.run(batch));
        while let Some(response) = outbox.take_next() {
            response.deliver();
        }
    }
    Ok(processor_time()?.saturating_sub(before).as_secs_f64() * 1e6 / requests as f64)
}

/// A request with 64 bytes of input.
fn vector() -> AdmittedRequest {
    let data = Buffer::from_numbers(vec![1f32; 16]);
    let input = Tensor { name: "INPUT0".into(), datatype: DataType::Fp32, shape: Shape::from_slice(&[16]), data };
    request([input], ["OUTPUT0"], Reply::new(drop))
}

/// User and system time of this thread. The fields of `/proc/thread-self/schedstat` begin with its nanoseconds on a processor.
fn processor_time() -> Result<Duration, Anything> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ns = text.split_whitespace().next().ok_or("schedstat is empty")?;
    Ok(Duration::from_nanos(ns.parse()?))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
