//! How does the guard of the children come into this crate?
//!
//! As the bytes of a shared library, which a second cargo makes of `crates/guard`: the very code that guards the server, for the
//! machine that the server is for. Where that cannot be had, the bytes are none and the build goes on: children then map no
//! memory of clients.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

const SOURCES: [&str; 3] = ["build.rs", "../guard/Cargo.toml", "../guard/src"];

/// What the second cargo must not learn from the first: flags (of a sanitizer, say) that a library in a foreign process cannot
/// have, wrappers that check instead of compiling, and directories that are locked or shared. Nor do settings of the
/// user's make it larger. Empty values switch off what a configuration file says.
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
    // A panic has nobody to unwind to; see crates/guard/src/alone.rs.
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
        // Loaded into no process there, and the compiler of that build is an interpreter's.
        Vec::new()
    } else {
        // What it needs has been fetched by the first cargo, so the network is asked only where that is somehow not so.
        build(&out, &["--offline"]).or_else(|_| build(&out, &[])).unwrap_or_else(|cause| {
            println!(
                "cargo::warning=Python models will map no memory of clients, since their guard was not built: {cause}"
            );
            // A file that never is, so that the next build tries again.
            println!("cargo::rerun-if-changed=guard-that-was-not-built");
            Vec::new()
        })
    };
    fs::write(Path::new(&out).join("guard_library"), library)?;
    Ok(())
}

fn build(out: &str, more: &[&str]) -> Result<Vec<u8>, Box<dyn Error>> {
    let target = env::var("TARGET")?;
    // Its own: the first cargo holds the lock of the one that is used now.
    let directory = Path::new(out).join("guard");
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo.args(["rustc", "--quiet", "--locked", "--release", "--lib", "--crate-type=cdylib"]);
    cargo.args(["--manifest-path=../guard/Cargo.toml", "--target", &target, "--target-dir"]).arg(&directory).args(more);
    cargo.args(["--", "--cfg=nerite_guard_library"]);
    cargo.envs(ENVIRONMENT).env("CARGO_BUILD_BUILD_DIR", &directory).env_remove("CARGO_MAKEFLAGS");
    let output = cargo.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let cause = said.lines().find(|line| line.starts_with("error"));
        return Err(cause.unwrap_or("cargo failed and said nothing").into());
    }
    let library = fs::read(directory.join(target).join("release/libnerite_guard.so"))?;
    // Two seconds make it anew; kept in each profile's directory it would be ten megabytes each.
    fs::remove_dir_all(&directory)?;
    Ok(library)
}
