//! What does each chore consist of?

/// One command of a chore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    /// What it finds out.
    pub about: &'static str,
    /// The program and its words. `cargo` is the one that runs this, `xtask` this program.
    pub words: Vec<&'static str>,
}

fn errand(about: &'static str, words: &'static str) -> Errand {
    Errand { about, words: words.split(' ').collect() }
}

/// All tests: what the README names.
pub fn test() -> Vec<Errand> {
    vec![
        // First, because it brings the ONNX Runtime that the Rust tests use, too.
        errand("the Python environment of the tests", "python3 tests/setup_venv.py"),
        errand("Rust tests", "cargo test --workspace --locked"),
        errand("what the client has behind features", "cargo test -p nerite-client --all-features --locked"),
        errand(
            "shared memory in many orders of threads",
            "cargo test --locked --manifest-path tests/interleavings/Cargo.toml --target-dir target/interleavings",
        ),
        errand("the server as users get it", "cargo build --release --locked"),
        errand("the server against its clients", ".venv/bin/python -m pytest tests/ -n 2 --dist loadfile"),
        errand("the Python package", ".venv/bin/python -m pytest python/tests -n 2 --dist loadfile"),
    ]
}

/// All that must pass before a change is taken, quickest first.
pub fn ci() -> Vec<Errand> {
    let mut errands = vec![
        errand("formatting", "cargo fmt --all --check"),
        errand("house style", "xtask tidy"),
        errand("sources and licences of all packages", "xtask deny"),
        errand("lints", "cargo clippy --workspace --all-targets --locked -- -D warnings"),
        errand(
            "lints of what the client has behind features",
            "cargo clippy -p nerite-client --all-targets --all-features --locked -- -D warnings",
        ),
    ];
    errands.extend(test());
    errands.push(errand("fuzzing, briefly", "xtask fuzz 5"));
    errands
}
