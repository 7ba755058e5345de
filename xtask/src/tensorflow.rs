//! How is the backend of TensorFlow's graphs built, and where does the server find it?

use std::path::Path;
use std::process::Command;

/// The manifest of its separate workspace.
pub const MANIFEST: &str = "backends/tensorflow/Cargo.toml";
/// Its build directory.
const BUILD: &str = "target/tensorflow";
/// The library that the build makes.
const MADE: &str = "target/tensorflow/release/libtriton_tensorflow.so";
/// The path where the server looks for it.
const PLACE: &str = "target/release/backends/tensorflow/libtriton_tensorflow.so";

/// Builds it, and copies it beside the release build of the server.
pub fn run(root: &Path) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--locked", "--manifest-path", MANIFEST, "--target-dir", BUILD])
        .current_dir(root);
    let status = cargo.status().map_err(|cause| format!("cargo build: {cause}"))?;
    if !status.success() {
        return Err(format!("cargo build --manifest-path {MANIFEST}: {status}"));
    }
    let (made, place) = (root.join(MADE), root.join(PLACE));
    let folder = place.parent().unwrap_or(root);
    std::fs::create_dir_all(folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    // A running server may have the old file mapped, so the file is replaced and not overwritten.
    let new = place.with_extension("new");
    std::fs::copy(&made, &new).map_err(|cause| format!("{} to {}: {cause}", made.display(), new.display()))?;
    std::fs::rename(&new, &place).map_err(|cause| format!("{}: {cause}", place.display()))?;
    println!("{}", place.display());
    Ok(())
}
