//! How is the guard library for models' processes built into this crate?
//!
//! As the bytes of a shared library, which a second cargo builds from `crates/guard`, for the target of the server. It is the same code that guards
//! the server. If it cannot be built, the bytes are empty and the build continues. Models' processes then map no memory of clients.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

const SOURCES: [&str; 3] = ["build.rs", "../guard/Cargo.toml", "../guard/src"];

/// Variables that the second cargo must not inherit: flags (for example of a sanitizer) that a library in another process must not have, wrappers
/// that check and do not compile, and directories that are locked or shared. Profile settings of the user must not make the library larger. Empty
/// values override a configuration file.
const ENVIRONMENT: [(&str, &str); 13] = [
    ("CARGO_ENCODED_RUSTFLAGS", ""),
    ("RUSTC_WRAPPER", ""),
    ("RUSTC_WORKSPACE_WRAPPER", ""),
    ("CARGO_INCREMENTAL", "0"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "false"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s"),
    ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false"),
    // A panic must not unwind; see crates/guard/src/alone.rs.
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_RPATH", "false"),
    ("CARGO_PROFILE_RELEASE_STRIP", "symbols"),
];

fn main() -> Result<(), Box<dyn Error>> {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    let out = env::var("OUT_DIR")?;
    let library = if env::var_os("CARGO_CFG_MIRI").is_some() {
        // Under Miri no process loads the library, and its compiler is an interpreter.
        Vec::new()
    } else {
        // The first cargo has fetched all dependencies, so the network is only used if the offline build fails.
        build(&out, &["--offline"]).or_else(|_| build(&out, &[])).unwrap_or_else(|cause| {
            println!(
                "cargo::warning=Python models will map no memory of clients, since their guard was not built: {cause}"
            );
            // This file never exists, so the next build tries again.
            println!("cargo::rerun-if-changed=guard-that-was-not-built");
            Vec::new()
        })
    };
    fs::write(Path::new(&out).join("guard_library"), library)?;
    Ok(())
}

fn build(out: &str, more: &[&str]) -> Result<Vec<u8>, Box<dyn Error>> {
    let target = env::var("TARGET")?;
    // A separate directory, because the first cargo holds the lock of its own one.
    let directory = Path::new(out).join("guard");
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo.args(["rustc", "--quiet", "--locked", "--release", "--lib", "--crate-type=cdylib"]);
    cargo.args(["--manifest-path=../guard/Cargo.toml", "--target", &target, "--target-dir"]).arg(&directory).args(more);
    cargo.args(["--", "--cfg=nerite_guard_library"]);
    cargo.envs(ENVIRONMENT).env("CARGO_BUILD_BUILD_DIR", &directory).env_remove("CARGO_MAKEFLAGS");
    let output = cargo.output()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let cause = stderr.lines().find(|line| line.starts_with("error"));
        return Err(cause.unwrap_or("cargo failed and said nothing").into());
    }
    let library = fs::read(directory.join(target).join("release/libnerite_guard.so"))?;
    // It is rebuilt in two seconds. Ten megabytes in the directory of each profile would be wasted.
    fs::remove_dir_all(&directory)?;
    Ok(library)
}
