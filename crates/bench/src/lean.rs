//! What does a request cost, to the caller and to the server?
//!
//! ```text
//!   worker ─ prebuilt bytes ─► server ─► answer, read and dropped      closed loop: one request under way per worker
//!     └── time of each ──► percentiles      /proc/<pid>/stat before and after ──► CPU per request
//! ```
//!
//! The load generator shares the machine with the server, so it does as little as it can: requests are bytes made
//! once, sockets are blocking, HTTP/2 frames are written and read by hand, answers are not parsed.

mod args;
mod baseline;
mod error;
mod load;
mod payload;
mod report;

use std::process::ExitCode;

use self::args::{Command, USAGE};

pub(crate) fn main() -> ExitCode {
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
