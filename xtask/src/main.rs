//! Which tasks does the project have, in addition to building?
//!
//! ```text
//! cargo xtask tidy    does the source look as agreed?
//! cargo xtask deny    are sources and licences of all packages allowed?
//! cargo xtask test    the gate: formatting, tidy, lints, and the tests of Rust, of the Python package and of the server; `test quick` runs
//!                     some tests of the server, `test all` everything, with a report in target/report.md
//! cargo xtask oracle  installs Triton 2.51 and PyTorch, which tests compare with
//! cargo xtask peer    measures nerite beside Triton 2.51, and writes the tables and pictures of docs/results; `peer ROW ...` prints some rows
//!                     (`peer --help` lists them)
//! cargo xtask fuzz N  each fuzz target for N seconds, from its seeds
//! cargo xtask tensorflow  the backend of TensorFlow's frozen graphs, beside the release build of the server
//! cargo xtask miri    tests of unsafe code that Miri can interpret (needs a nightly toolchain)
//! cargo xtask aarch64  does everything compile for aarch64 too? (needs Rust's standard library and a C compiler for it); makes a program for tests of packages;
//!                      `aarch64 emulated` makes a server for tests that an emulator runs
//! cargo xtask release  the packages for users, of a tagged commit, in target/dist: tarball, wheels, Debian package, bill of materials, checksums;
//!                      with `--target aarch64-unknown-linux-gnu` for that machine, from another; `release --tag` tags a commit that passed `test all`
//! cargo xtask gpu-check  does the server work with the GPU of this machine?
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program prints")]
#![forbid(unsafe_code)]

mod aarch64;
mod capacity;
mod compile;
mod deny;
mod emulated;
mod fuzz;
mod gpu_check;
mod library;
mod miri;
mod output;
mod peer;
mod release;
mod results;
mod steps;
mod suite;
mod summary;
mod task;
mod tensorflow;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use compile::Machine;
use release::Source;
use summary::Limits;

const USAGE: &str = "usage: cargo xtask <tidy | deny | test [quick | all] | oracle | peer [ROW ...] | fuzz SECONDS | tensorflow | miri | aarch64 [emulated] | release [--tag | [--target TARGET] [--snapshot | --binary PATH]] | gpu-check [--onnxruntime-library PATH]>";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let root = root();
    let done = match words[..] {
        ["tidy"] => tidy::run(root),
        ["deny"] => deny::run(root),
        ["test"] => return task::run(root, steps::GATE, Limits::Gate),
        ["test", "quick"] => return task::run(root, steps::QUICK, Limits::Gate),
        ["test", "all"] => return task::run(root, &[steps::GATE, steps::MORE].concat(), Limits::None),
        ["oracle"] => return task::run(root, steps::ORACLE, Limits::Gate),
        ["peer", ref more @ ..] => match peer::run(root, more) {
            Ok(code) => return code,
            Err(reason) => Err(reason),
        },
        ["fuzz", seconds] => fuzz::run(root, seconds),
        ["tensorflow"] => tensorflow::run(root),
        ["miri"] => match miri::missing(root) {
            Some(missing) => return unavailable(&missing),
            None => miri::run(root),
        },
        ["aarch64"] => match aarch64::missing(root) {
            Some(missing) => return unavailable(&missing),
            None => aarch64::run(root),
        },
        ["aarch64", "emulated"] => emulated::run(root),
        ["release", "--target", target, ref more @ ..] => {
            Machine::of_target(target).and_then(|machine| released(root, more, machine))
        }
        ["release", "--tag"] => release::tag(root),
        ["release", ref more @ ..] => released(root, more, Machine::Here),
        ["gpu-check", ref more @ ..] => match gpu_check::run(root, more) {
            Ok(code) => return code,
            Err(reason) => Err(reason),
        },
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn unavailable(missing: &str) -> ExitCode {
    eprintln!("{missing}");
    ExitCode::from(task::UNAVAILABLE)
}

fn released(root: &Path, words: &[&str], machine: Machine) -> Result<(), String> {
    let source = match *words {
        [] => Source::Tag,
        ["--snapshot"] => Source::Snapshot,
        ["--binary", path] => Source::Binary(path),
        _ => return Err(USAGE.to_owned()),
    };
    release::run(root, source, machine)
}

/// The root of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in a folder of the workspace")
}
