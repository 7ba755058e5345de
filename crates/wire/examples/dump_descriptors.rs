//! Which names, numbers and types does the gRPC schema have?
//!
//! Writes its descriptors to `target/descriptors.bin`, or to the path given.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let default = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/descriptors.bin"));
    let path = env::args_os().nth(1).map_or_else(default, PathBuf::from);
    fs::write(path, nerite_wire::proto::FILE_DESCRIPTOR_SET)
}
