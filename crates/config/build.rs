//! How does the schema of config.pbtxt become Rust types?

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/model_config.proto");
    let descriptors = protox::compile(["model_config.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("model_config.bin"), descriptors.encode_to_vec())?;
    prost_build::Config::new()
        // BTreeMap keeps the keys of maps in order, so a configuration has only one encoding.
        .btree_map(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
