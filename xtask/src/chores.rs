//! What does each chore consist of?

/// One command of a chore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    /// What it finds out.
    pub about: &'static str,
    /// The program and its words. `cargo` is the one that runs this, `xtask` this program.
    pub words: Vec<&'static str>,
    /// Whether it runs beside those before it. It needs none of them.
    pub beside: bool,
}

fn errand(about: &'static str, words: &'static str) -> Errand {
    // The last half of the build of a release uses one core only.
    Errand { about, words: words.split(' ').collect(), beside: words == RELEASE.1 }
}

// What several suites have. The environment comes first: it brings the ONNX Runtime that the Rust tests use, too.
const ENVIRONMENT: (&str, &str) = ("the Python environment of the tests", "python3 tests/setup_venv.py");
const RUST_TESTS: (&str, &str) = ("Rust tests", "cargo test --workspace --locked");
const RELEASE: (&str, &str) = ("the server as users get it", "cargo build --release --locked");

/// Some tests of each area of the server: two minutes once the server is built.
pub fn test_quick() -> Vec<Errand> {
    let clients = "the server against its clients, the quick suite";
    let pytest = ".venv/bin/python -m pytest tests/ --suite quick -n 2 --dist loadfile";
    [ENVIRONMENT, RELEASE, (clients, pytest)].map(|(about, words)| errand(about, words)).into()
}

/// Most tests: ten minutes for those of the server, and the Rust tests.
pub fn test_full() -> Vec<Errand> {
    let clients = "the server against its clients, the full suite";
    let pytest = ".venv/bin/python -m pytest tests/ --suite full -n 2 --dist loadfile";
    [ENVIRONMENT, RUST_TESTS, RELEASE, (clients, pytest)].map(|(about, words)| errand(about, words)).into()
}

/// All tests: what the README names.
pub fn test() -> Vec<Errand> {
    let [environment, rust, release] = [ENVIRONMENT, RUST_TESTS, RELEASE].map(|(about, words)| errand(about, words));
    vec![
        environment,
        rust,
        errand("what the client has behind features", "cargo test -p nerite-client --all-features --locked"),
        errand(
            "shared memory in many orders of threads",
            "cargo test --locked --manifest-path tests/interleavings/Cargo.toml --target-dir target/interleavings",
        ),
        release,
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
