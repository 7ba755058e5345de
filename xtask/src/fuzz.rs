//! How are the fuzz targets run with the pinned toolchain only?
//!
//! `cargo fuzz run TARGET` in `fuzz/` does the same with a nightly compiler and the address sanitizer. Here the stable compiler counts coverage,
//! which is all that libFuzzer needs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The flags with which rustc counts coverage for libFuzzer. `cargo fuzz --sanitizer none` passes the same.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Ccodegen-units=1";
/// The target is given explicitly, so that build scripts are built without those flags.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Shorter runs use targets with little optimisation, because building them takes longer than running them.
const OPTIMISED_S_MIN: u32 = 60;

/// Runs each target for this many seconds, from its seeds and the corpus of earlier runs.
pub fn run(root: &Path, seconds: &str) -> Result<(), String> {
    let length_s: u32 = seconds.parse().map_err(|_| format!("'{seconds}' is no number of seconds"))?;
    let (fuzz, target) = (root.join("fuzz"), root.join("target/fuzz"));
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--release", "--locked", "--target", TRIPLE]).current_dir(&fuzz);
    if length_s < OPTIMISED_S_MIN {
        build.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    }
    succeed(build.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", &target), "the fuzz targets")?;
    for name in names(&fuzz)? {
        let corpus = fuzz.join("corpus").join(&name);
        std::fs::create_dir_all(&corpus).map_err(|cause| format!("{}: {cause}", corpus.display()))?;
        println!("-- {name}");
        let mut command = Command::new(target.join(TRIPLE).join("release").join(&name));
        command.arg(format!("-max_total_time={seconds}")).args([
            "-rss_limit_mb=2048",
            "-verbosity=0",
            "-print_final_stats=1",
        ]);
        command.arg(format!("-artifact_prefix={}/", corpus.display()));
        succeed(command.arg(&corpus).arg(fuzz.join("seeds").join(&name)), &name)?;
    }
    Ok(())
}

fn succeed(command: &mut Command, about: &str) -> Result<(), String> {
    let status = command.status().map_err(|cause| format!("{about}: {cause}"))?;
    if status.success() { Ok(()) } else { Err(format!("{about}: {status}")) }
}

/// The targets, by name.
fn names(fuzz: &Path) -> Result<Vec<String>, String> {
    let folder = fuzz.join("fuzz_targets");
    let entries = std::fs::read_dir(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let sources = paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let mut names: Vec<String> =
        sources.filter_map(|path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}
