//! Which commands does each task run?

/// One command of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it checks.
    pub about: &'static str,
    /// The program and its arguments. `cargo` is the cargo that runs this program, `xtask` is this program.
    pub words: Vec<&'static str>,
    /// Whether it runs in parallel with those before it. It must not need their results.
    pub is_parallel: bool,
}

fn step(about: &'static str, words: &'static str) -> Step {
    // The last half of a release build uses one core only, so it runs in parallel.
    Step { about, words: words.split(' ').collect(), is_parallel: words == RELEASE.1 }
}

// Commands of several suites. The environment comes first, because it installs the ONNX Runtime for the Rust tests too.
const ENVIRONMENT: (&str, &str) = ("the Python environment of the tests", "python3 tests/setup_venv.py");
const RUST_TESTS: (&str, &str) = ("Rust tests", "cargo test --workspace --locked");
// The tests of the server use them too. These are the packages and targets of the Rust tests. Then cargo chooses the same features, and compiles no crate
// a second time.
const LIBRARIES: (&str, &str) =
    ("the libraries for programs and backends", "cargo build --workspace --lib --tests --examples --locked");
const RELEASE: (&str, &str) = ("the server as users get it", "cargo build --release --locked");

/// Some tests of each area of the server: two minutes once the server is built.
pub fn test_quick() -> Vec<Step> {
    let clients = "the server against its clients, the quick suite";
    let pytest = ".venv/bin/python -m pytest tests/ --suite quick -n 2 --dist loadfile";
    [ENVIRONMENT, RELEASE, (clients, pytest)].map(|(about, words)| step(about, words)).into()
}

/// Most tests: ten minutes for those of the server, and the Rust tests.
pub fn test_full() -> Vec<Step> {
    let clients = "the server against its clients, the full suite";
    let pytest = ".venv/bin/python -m pytest tests/ --suite full -n 2 --dist loadfile";
    [ENVIRONMENT, RUST_TESTS, LIBRARIES, RELEASE, (clients, pytest)].map(|(about, words)| step(about, words)).into()
}

/// All tests: what the README names.
pub fn test() -> Vec<Step> {
    let [environment, rust, libraries, release] =
        [ENVIRONMENT, RUST_TESTS, LIBRARIES, RELEASE].map(|(about, words)| step(about, words));
    vec![
        environment,
        rust,
        step(
            "shared memory in many orders of threads",
            "cargo test --locked --manifest-path tests/interleavings/Cargo.toml --target-dir target/interleavings",
        ),
        libraries,
        release,
        step("the server against its clients", ".venv/bin/python -m pytest tests/ -n 4 --dist loadfile --durations=40"),
        step("the Python package", ".venv/bin/python -m pytest python/tests -n 2 --dist loadfile"),
    ]
}

/// All that must pass before a change is taken, quickest first.
pub fn ci() -> Vec<Step> {
    let mut steps = vec![
        step("formatting", "cargo fmt --all --check"),
        step("house style", "xtask tidy"),
        step("sources and licences of all packages", "xtask deny"),
        step("lints", "cargo clippy --workspace --all-targets --locked -- -D warnings"),
    ];
    steps.push(step(
        "the reference of the Rust client",
        "cargo rustdoc -p nerite-client --all-features --locked -- -D warnings",
    ));
    steps.push(step("all crates for aarch64", "xtask aarch64 if-possible"));
    steps.extend(test());
    steps.push(step("fuzzing, briefly", "xtask fuzz 5"));
    steps.push(step("unsafe code under Miri, where it is installed", "xtask miri if-possible"));
    steps
}
