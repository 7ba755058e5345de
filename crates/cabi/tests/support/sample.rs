//! How do the tests of this crate build and use the sample backend?

use std::path::{Path, PathBuf};
use std::process::Command;

use nerite_cabi::{CompiledBackend, Options, backends_in};
use nerite_tensor::{Buffer, DataType, Shape, Tensor};

/// The backend of the conformance tests, compiled.
fn library(directory: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/backends/sample.c");
    let place = directory.join("sample");
    std::fs::create_dir_all(&place).unwrap();
    let library = place.join("libtriton_sample.so");
    let flags = ["-D_GNU_SOURCE", "-O1", "-fPIC", "-shared", "-lpthread"];
    let built = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&library).status().unwrap();
    assert!(built.success(), "{} is compiled", source.display());
    library
}

/// The backend, in a directory of backends.
pub fn backend(directory: &Path) -> CompiledBackend {
    library(directory);
    let (name, path) = backends_in(directory).pop().unwrap();
    CompiledBackend::new(&name, &path, Options { directory: directory.to_owned(), auto_complete: true, reports: None })
}

/// A tensor of one row.
pub fn floats(name: &str, numbers: &[f32]) -> Tensor {
    let shape = Shape::from_slice(&[1, numbers.len() as i64]);
    Tensor { name: name.into(), datatype: DataType::Fp32, shape, data: Buffer::from_numbers(numbers.to_vec()) }
}

/// The configuration of its model `m`.
pub fn config(text: &str) -> nerite_config::ModelConfig {
    let tensors = |side, stem| {
        format!(
            "{side} [{{ name: '{stem}' data_type: TYPE_FP32 dims: [-1] }}, {{ name: '{stem}1' data_type: TYPE_FP32 dims: [-1] }}] "
        )
    };
    let text = format!("name: 'm' backend: 'sample' {} {} {text}", tensors("input", "IN"), tensors("output", "OUT"));
    nerite_config::parse_text("", text.as_bytes()).unwrap()
}
