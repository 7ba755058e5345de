//! Does nerite work with the GPU of this machine?
//!
//! `cargo xtask gpu-check` builds the server and runs this. It lends device memory of its own to a server in a process of its
//! own, as any client would, and prints what it saw. Without a GPU it says so and ends with 2; 1 means that a check failed.
//! `--onnxruntime-library` names an ONNX Runtime with the CUDA provider, for the checks of models on the GPU.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example prints what it found")]
#![forbid(unsafe_code)]

mod bandwidth;
mod checks;
mod metrics;
mod onnx;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use nerite_cuda::Driver;

use checks::{Plan, Row};

const REGISTRATIONS: usize = 10_000;
const COPY_BYTES: usize = 256 << 20;

const USAGE: &str = "usage: cargo xtask gpu-check [--onnxruntime-library PATH]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let onnxruntime = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--onnxruntime-library", path] => Some(PathBuf::from(path)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let library = std::env::var_os("NERITE_CUDA_LIBRARY").filter(|path| !path.is_empty()).map(PathBuf::from);
    let driver = match Driver::open(library.as_deref()) {
        Ok(driver) => driver,
        Err(absent) => {
            eprintln!("gpu-check: nothing was checked, because this machine reaches no GPU: {absent}");
            return ExitCode::from(2);
        }
    };
    for device in driver.devices() {
        println!(
            "device {}: {}, {} MiB, {}",
            device.ordinal(),
            device.name(),
            device.total_bytes() >> 20,
            device.uuid()
        );
    }
    let (nvml, nerite) = (None, nerite());
    let plan =
        Plan { driver, library, nvml, onnxruntime, nerite, registrations: REGISTRATIONS, copy_bytes: COPY_BYTES };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let rows = match runtime {
        Ok(runtime) => runtime.block_on(checks::run(&plan)),
        Err(error) => {
            vec![Row { name: "the check itself", seen: Err(format!("no threads: {error}")), skipped: false }]
        }
    };
    print(&rows);
    let failed = rows.iter().filter(|row| row.seen.is_err()).count();
    let skipped = rows.iter().filter(|row| row.skipped).count();
    println!("\n{} checks, {failed} failed, {skipped} skipped", rows.len());
    ExitCode::from(u8::from(failed > 0))
}

fn print(rows: &[Row]) {
    println!("\n| check | result | seen |\n|---|---|---|");
    for Row { name, seen, skipped } in rows {
        let (result, text) = match seen {
            Ok(text) if *skipped => ("skipped", text),
            Ok(text) => ("passed", text),
            Err(text) => ("FAILED", text),
        };
        println!("| {name} | {result} | {text} |");
    }
}

/// The server of the same build: examples lie in a folder beside it.
fn nerite() -> PathBuf {
    let folder = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.parent()?.to_owned()));
    folder.unwrap_or_default().join("nerite")
}
