//! What does a request cost, to the caller and to the server?
//!
//! ```text
//!   words ─ options ─► Options ─┬─ model, data, plan, memory ─► requests
//!                               └─ search ─► levels ─ profile ─► windows ─ load ─► server
//!                                                       │ statistics, cost
//!                                                       └─► Results ─► console, CSV, JSON, page
//! ```
//!
//! The program `nerite bench`, which works as NVIDIA's perf_analyzer does, with the same options and reports:
//!
//! ```
//! let words = ["--help".to_owned()];
//! assert_eq!(nerite_bench::main(&words), std::process::ExitCode::SUCCESS);
//! assert!(nerite_bench::usage().contains("--concurrency-range START:END:STEP"));
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program prints")]
#![forbid(unsafe_code)]

mod break_even;
mod caller;
mod cost;
mod dataset;
mod interrupt;
mod live;
mod load;
mod machine;
mod measured;
mod memory;
mod metrics;
mod model;
mod options;
mod page;
mod pareto;
mod plan;
mod plots;
mod profile;
mod random;
mod report;
mod results;
mod run;
#[cfg(test)]
mod samples;
mod search;
mod stability;
mod statistics;
mod sweep;
mod wire;

use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use interrupt::stop_signal;
pub use measured::{Measured, measure};
use run::Failure;

/// The guard of a mutex. What a thread that panicked left there is still sound: all of it are counts.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `nerite bench --help` prints before the options.
const USAGE: &str = "\
Usage: nerite bench -m MODEL [options]

Measures a model of a running server: throughput, latency, and the processor time of both sides. It works with every server that speaks Triton's protocols.
Options of perf_analyzer that are not listed here are accepted where they have a meaning.
";

/// The text of `nerite bench --help`.
pub fn usage() -> String {
    format!("{USAGE}{}\n  {:<36}  print this\n", options::usage(), "-h, --help")
}

/// The long options of the usage, for completions.
pub fn options() -> Vec<String> {
    options::long_names()
}

/// `nerite bench`; `words` are those after the word `bench`. The exit code is 0, 2 if a measurement was not stable, 3 if the command line is not understood,
/// and 99 for other failures, as of perf_analyzer.
pub fn main(words: &[String]) -> ExitCode {
    let options = match options::parse(words) {
        Ok(None) => {
            print!("{}", usage());
            return ExitCode::SUCCESS;
        }
        Ok(Some(options)) => options,
        Err(reason) => {
            eprintln!("nerite bench: {reason}");
            return ExitCode::from(3);
        }
    };
    match run::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Unstable) => {
            eprintln!("Failed to obtain stable measurement.");
            ExitCode::from(2)
        }
        Err(Failure::Failed(reason)) => {
            eprintln!("nerite bench: {reason}");
            ExitCode::from(99)
        }
    }
}
