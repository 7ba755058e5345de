//! What does a request of each kind cost the server, and is it what docs/request-counts.md says?
//!
//! Each request begins when all threads of the server sleep, and ends when they sleep again. So no count depends on how fast the machine is, and nothing waits
//! for a time. `NERITE_WRITE_COUNTS=1 cargo test -p nerite-server --test request_counts` changes the page, and with `-- --ignored` its other columns.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod clients;
mod in_process;
mod kinds;
mod page;
mod processes;
mod threads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clients::Addresses;
use kinds::{Engine, make_repository};
use tempfile::TempDir;

#[global_allocator]
static HEAP: nerite_memory::CountingHeap = nerite_memory::CountingHeap;

/// Requests before the first round. After them, memory that is reused has its final size.
const WARM_UP: usize = 50;

/// What the flags of a server name.
struct Place {
    folder: TempDir,
    addresses: Addresses,
    words: Vec<String>,
}

impl Place {
    /// For a server with the models of these engines.
    fn new(engines: &[Engine], library: Option<&Path>) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let (addresses, models) = (Addresses::free(folder.path()), folder.path().join("models"));
        make_repository(&models, engines);
        let words = [
            // Each front thread keeps memory for requests of its own, so there is one.
            "--http-thread-count=1".to_owned(),
            "--log-info=false".to_owned(),
            "--allow-metrics=false".to_owned(),
            format!("--model-repository={}", models.display()),
            format!("--http-address={}", addresses.http.ip()),
            format!("--http-port={}", addresses.http.port()),
            format!("--grpc-address={}", addresses.grpc.ip()),
            format!("--grpc-port={}", addresses.grpc.port()),
            format!("--session-socket={}", addresses.session.display()),
            format!("--onnxruntime-library={}", library.unwrap_or(Path::new("none")).display()),
            format!("--backend-config=python,interpreter={}", python().display()),
        ];
        Place { folder, addresses, words: words.into() }
    }
}

/// The servers that have all engines of this host. A server has one engine for ONNX models.
fn servers() -> [(Vec<Engine>, Option<PathBuf>); 2] {
    let library = nerite_ort::find_library(None);
    let mut engines = vec![Engine::Identity];
    engines.extend(python().exists().then_some(Engine::Python));
    engines.extend(library.is_some().then_some(Engine::OnnxRuntime));
    [(engines, library), (vec![Engine::Embedded], None)]
}

/// The Python of the tests' environment, which has numpy.
fn python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python")
}

/// What most of these rounds cost, for each of the `requests` of a round. The rounds are repeated while that is not known, at most `repeats` times: a run that
/// another process held up, and many after it, cost more.
fn usual<const N: usize>(
    (requests, rounds, repeats): (usize, usize, usize),
    mut round: impl FnMut() -> [u64; N],
    is_known: impl Fn(&[f64]) -> bool,
) -> [f64; N] {
    let mut most_of = || {
        let mut found = BTreeMap::<[u64; N], usize>::new();
        (0..rounds).for_each(|_| *found.entry(round()).or_default() += 1);
        let (most, _) = found.iter().max_by_key(|(_, times)| **times).unwrap();
        most.map(|count| count as f64 / requests as f64)
    };
    let mut found = most_of();
    for _ in 1..repeats {
        if is_known(&found) {
            break;
        }
        found = most_of();
    }
    found
}
