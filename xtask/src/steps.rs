//! Which steps does each task of `cargo xtask test` have?

use crate::suite::Suite;

/// One step of a task.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What it checks.
    pub about: &'static str,
    pub work: Work,
    /// The steps that must have succeeded before it can run.
    pub needs: &'static [&'static str],
}

/// What a step does.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Runs a command, given by its words. `cargo` is the cargo that runs this program, `xtask` is this program.
    Command(&'static str),
    /// Fetches all crates that the lock files name.
    Fetch,
    /// Runs tests, and reads the result of each.
    Tests(Suite),
}

const fn step(about: &'static str, work: Work, needs: &'static [&'static str]) -> Step {
    Step { about, work, needs }
}

const fn python(folder: &'static str, suite: &'static str, workers: &'static str) -> Work {
    Work::Tests(Suite::Python { folder, suite, workers })
}

const CRATES: Step = step("crates", Work::Fetch, &[]);
const ENVIRONMENT: Step = step("Python environment", Work::Command("python3 tests/setup_venv.py"), &[]);
const RELEASE: Step = step("release build", Work::Command("cargo build --release --locked"), &["crates"]);
/// What the steps with the release build need.
const RELEASED: &[&str] = &["Python environment", "release build"];

/// Some tests of each area of the server: two minutes once the server is built.
pub const QUICK: &[Step] =
    &[CRATES, ENVIRONMENT, RELEASE, step("quick suite", python("tests", "quick", "2"), RELEASED)];

/// What must pass before a change is taken, quickest first.
pub const GATE: &[Step] = &[
    step("formatting", Work::Command("cargo fmt --all --check"), &[]),
    step("house style", Work::Command("xtask tidy"), &[]),
    CRATES,
    ENVIRONMENT,
    step("lints", Work::Command("cargo clippy --workspace --all-targets --locked -- -D warnings"), &["crates"]),
    // All that the tests of Rust and of Python need. The packages and the targets are those of the Rust tests, so cargo
    // chooses the same features and compiles each crate once.
    step("build", Work::Command("cargo build --workspace --lib --bins --tests --examples --locked"), &["crates"]),
    step("Rust tests", Work::Tests(Suite::Rust), &["build", "Python environment"]),
    step("documentation examples", Work::Tests(Suite::Documentation), &["build"]),
    step("python/tests", python("python/tests", "gate", "3"), &["build", "Python environment"]),
    step("tests", python("tests", "gate", "3"), &["build", "Python environment"]),
];

const REFERENCES: Step = step("Triton and PyTorch", Work::Command("python3 tests/setup_oracle.py"), &[]);
/// What the steps need that compare with them.
const COMPARED: &[&str] = &["Python environment", "release build", "Triton and PyTorch"];

/// Installs what the oracle suite compares with.
pub const ORACLE: &[Step] = &[REFERENCES];

/// The server, optimised, for tools that count what it does. Valgrind does not have the part of the kernel that system calls go through in other builds.
const COUNTED: Step = step(
    "build for counting",
    Work::Command(
        "cargo build --release --locked -p nerite-server --bin nerite --target-dir target/counted \
         --config build.rustflags=['--cfg=rustix_use_libc'] --config profile.release.lto=false --config profile.release.codegen-units=16",
    ),
    &["crates"],
);

/// What `cargo xtask peer` needs: the release build of the server and of the Rust client's example, the real Triton and NVIDIA's load generator.
pub const PEER: &[Step] = &[
    CRATES,
    ENVIRONMENT,
    step(
        "release build",
        Work::Command(
            "cargo build --release --locked --package nerite-server --package nerite-client --bin nerite --example session_latency",
        ),
        &["crates"],
    ),
    step("Triton", Work::Command("python3 tests/setup_oracle.py triton"), &[]),
    step("perf_analyzer", Work::Command("python3 tests/perf_analyzer/setup_perf.py"), &[]),
];

/// What runs after the gate where everything is to be tested.
pub const MORE: &[Step] = &[
    step("what registries have", Work::Command("tests/setup_all.sh"), &["Python environment"]),
    REFERENCES,
    RELEASE,
    step("TensorFlow's graphs", Work::Command("xtask tensorflow"), &["crates"]),
    step("aarch64", Work::Command("xtask aarch64"), &["crates"]),
    COUNTED,
    step("Rust tests, alone", Work::Tests(Suite::Ignored), &["build", "build for counting", "Python environment"]),
    step("python/tests, alone", python("python/tests", "alone", "0"), RELEASED),
    step("tests, alone", python("tests", "alone", "0"), RELEASED),
    step("long tests", python("tests", "long", "2"), RELEASED),
    step("python/tests, oracle", python("python/tests", "oracle", "2"), COMPARED),
    step("tests, oracle", python("tests", "oracle", "2"), COMPARED),
    step("packages", Work::Command("xtask deny"), &["crates"]),
    step(
        "Rust client's pages",
        Work::Command("cargo rustdoc -p nerite-client --all-features --locked -- -D warnings"),
        &["crates"],
    ),
    step(
        "interleavings",
        Work::Command(
            "cargo test --locked --manifest-path tests/interleavings/Cargo.toml --target-dir target/interleavings",
        ),
        &["crates"],
    ),
    step("fuzzing", Work::Command("xtask fuzz 5"), &["crates"]),
    step("Miri", Work::Command("xtask miri"), &["crates"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_needs_only_steps_before_it() {
        for steps in [QUICK.to_vec(), PEER.to_vec(), [GATE, MORE].concat()] {
            for (at, step) in steps.iter().enumerate() {
                for needed in step.needs {
                    assert!(steps[..at].iter().any(|before| before.about == *needed), "{}: {needed}", step.about);
                }
            }
        }
    }
}
