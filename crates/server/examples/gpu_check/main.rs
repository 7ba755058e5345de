//! Does nerite work with the GPU of this machine?
//!
//! `cargo xtask gpu-check` builds the server and runs this. It lends device memory of its own to a server in a process of its
//! own, as any client would, and prints what it saw. Without a GPU it says so and ends with 2; 1 means that a check failed.

#![forbid(unsafe_code)]

mod bandwidth;
mod checks;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use nerite_cuda::Driver;

use checks::{Plan, Row};

const REGISTRATIONS: usize = 10_000;
const COPY_BYTES: usize = 256 << 20;

fn main() -> ExitCode {
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
    let plan = Plan { driver, library, nerite: nerite(), registrations: REGISTRATIONS, copy_bytes: COPY_BYTES };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let rows = match runtime {
        Ok(runtime) => runtime.block_on(checks::run(&plan)),
        Err(error) => vec![Row { name: "the check itself", seen: Err(format!("no threads: {error}")) }],
    };
    let failed = rows.iter().filter(|row| row.seen.is_err()).count();
    println!("\n| check | result | seen |\n|---|---|---|");
    for Row { name, seen } in &rows {
        let (result, text) = match seen {
            Ok(text) => ("passed", text),
            Err(text) => ("FAILED", text),
        };
        println!("| {name} | {result} | {text} |");
    }
    println!("\n{} checks, {failed} failed", rows.len());
    ExitCode::from(u8::from(failed > 0))
}

/// The server of the same build: examples lie in a folder beside it.
fn nerite() -> PathBuf {
    let folder = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.parent()?.to_owned()));
    folder.unwrap_or_default().join("nerite")
}
