//! What does a request cost, to the caller and to the server?
//!
//! ```text
//!   worker ─ prebuilt bytes ─► server ─► answer, read and dropped      closed loop: one request under way per worker
//!     └── time of each ──► percentiles      /proc/<pid>/stat before and after ──► CPU per request
//! ```
//!
//! The load generator shares the machine with the server, so it does as little as it can: requests are bytes made
//! once, sockets are blocking, HTTP/2 frames are written and read by hand, answers are not parsed.
#![forbid(unsafe_code)]

mod args;
mod baseline;
mod cpu;
mod grpc;
mod http;
mod load;
mod payload;
mod report;
mod socket;

use std::process::ExitCode;

use self::args::{Command, USAGE};

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    /// The command line is not understood.
    #[error("{0}\n\n{USAGE}")]
    Usage(String),
    /// A call that prepares the load failed.
    #[error("{0}")]
    Client(#[from] nerite_client::Error),
    /// The server cannot be reached, or its connection broke.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The server answered something else than a success.
    #[error("the server answered: {0}")]
    Refused(String),
    /// The server said yes, but its result is not there.
    #[error("the output region was not written")]
    NotWritten,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = Command::read(&args).and_then(|command| match command {
        Command::Help => {
            print!("{USAGE}");
            Ok(())
        }
        Command::Memcpy { bytes, json } => baseline::memcpy(&bytes, json),
        Command::PingPong { json } => baseline::ping_pong(json),
        Command::Echo { path } => baseline::echo(&path),
        Command::Load(plan) => load::run(&plan),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("nerite-bench: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// Names what was tried when the system refuses it.
fn tried(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> BenchError {
    let what = what.into();
    |reason| BenchError::System { what, reason }
}
