//! How does the lean load generator begin?
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program prints")]
#![forbid(unsafe_code)]

mod lean;

use std::process::ExitCode;

fn main() -> ExitCode {
    lean::main()
}
