//! How do tests come by a driver on a host without a GPU?
//!
//! They compile `stand_in_driver.c`, which has the driver's symbols over host memory and is no CUDA, and open it in place of
//! the real one: by path in this process, by `NERITE_CUDA_LIBRARY` in a server that they start. `stand_in_nvml.c` is NVML to the same
//! devices; a server finds it by `LD_LIBRARY_PATH`.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What the stand-in counts, in the order of its struct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub contexts: i64,
    pub allocations: i64,
    pub imports: i64,
    pub pinned: i64,
    pub locked: i64,
    pub streams: i64,
    pub to_device: i64,
    pub to_host: i64,
    pub within: i64,
    pub pinned_to_device: i64,
    pub pinned_to_host: i64,
}

impl Counts {
    /// What has to be given back: contexts, allocations, imports, pinned blocks, locked ranges, streams.
    pub fn held(&self) -> [i64; 6] {
        [self.contexts, self.allocations, self.imports, self.pinned, self.locked, self.streams]
    }
}

/// The compiled library. Compiled once per test program.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| compile("../cuda/tests/stand_in/stand_in_driver.c", "libstand_in_driver.so", &[]))
}

/// The ONNX Runtime at `real`, and in front of it what claims to be its CUDA provider, over the stand-in driver. Compiled once
/// per test program.
pub fn provider(real: &Path) -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let define = |name: &str, path: &Path| format!("-D{name}=\"{}\"", path.display());
    LIBRARY.get_or_init(|| {
        let defined = [define("REAL", real), define("DRIVER", library())];
        compile("../ort/tests/stand_in/stand_in_provider.c", "libstand_in_onnxruntime.so", &defined)
    })
}

/// The stand-in for NVML, in a file of this name. `defined` says which of its functions fail or hang: see `stand_in_nvml.c`.
pub fn nvml(file: &str, defined: &[&str]) -> PathBuf {
    let defined: Vec<String> = defined.iter().map(|one| format!("-D{one}")).collect();
    compile("../cuda/tests/stand_in/stand_in_nvml.c", file, &defined)
}

/// Compiles `source` to a library of this name; other programs never meet it half-written.
fn compile(source: &str, name: &str, defined: &[String]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let fresh = library.with_extension(format!("{}.so", std::process::id()));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]).args(defined);
    let status =
        command.arg("-o").arg(&fresh).arg(&source).status().unwrap_or_else(|e| panic!("{}: {e}", compiler.display()));
    assert!(status.success(), "{} does not compile", source.display());
    std::fs::rename(&fresh, &library).unwrap();
    library
}

/// What a process counted that was started with `STAND_IN_COUNTS` set to this file; zeros before it opened the driver.
pub fn counts(file: &Path) -> Counts {
    let bytes = std::fs::read(file).unwrap_or_default();
    let mut numbers = bytes.chunks_exact(8).map(|chunk| i64::from_le_bytes(chunk.try_into().unwrap()));
    let mut next = || numbers.next().unwrap_or(0);
    Counts {
        contexts: next(),
        allocations: next(),
        imports: next(),
        pinned: next(),
        locked: next(),
        streams: next(),
        to_device: next(),
        to_host: next(),
        within: next(),
        pinned_to_device: next(),
        pinned_to_host: next(),
    }
}
