//! Are the answers to ONNX's own operator tests right here?
//!
//! ```text
//! python tests/models/export_node_tests.py /tmp/nodes
//! cargo run -p nerite-ort --example ort_oracle /tmp/nodes
//! ```
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use std::path::PathBuf;

use nerite_backend::conformance::oracle::run_all;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("name the folder with the cases")?;
    let library = nerite_ort::find_library(None).ok_or("no ONNX Runtime on this host")?;
    let runtime = nerite_ort::OnnxRuntime::open(&library)?;
    let verdicts = run_all(&runtime, &folder)?;
    println!("{verdicts}");
    Ok(())
}
