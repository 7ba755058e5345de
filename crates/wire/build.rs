//! How do the schemas become Rust types?

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const MODEL_CONFIG: &str = "model_config.proto";

fn main() -> Result<(), Box<dyn Error>> {
    // The schema of model configurations and its types belong to the crate `config`.
    let includes = ["proto", "../config/proto"];
    for folder in includes {
        println!("cargo::rerun-if-changed={folder}");
    }
    let descriptors = protox::compile(["grpc_service.proto", "health.proto"], includes)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("grpc_service.bin"), descriptors.encode_to_vec())?;
    let mut config = prost_build::Config::new();
    // BTreeMap keeps the keys of maps in order, so a message has only one encoding.
    config.bytes(["."]).btree_map(["."]);
    for file in descriptors.file.iter().filter(|file| file.name() == MODEL_CONFIG) {
        let messages = file.message_type.iter().map(|message| message.name().to_owned());
        let enums = file.enum_type.iter().map(|values| values.name().to_owned());
        for name in messages.chain(enums) {
            config.extern_path(format!(".inference.{name}"), format!("::nerite_config::proto::{name}"));
        }
    }
    config.compile_fds(descriptors)?;
    // The session protocol is not a gRPC service, so it is left out of the descriptors that reflection serves.
    let session = protox::compile(["session.proto"], ["proto"])?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]).btree_map(["."]);
    // Few calls have a trace context, so the others hold only a pointer.
    for call in ["Infer", "CallPrepared"] {
        config.boxed(format!(".nerite.session.v1.{call}.trace"));
    }
    config.compile_fds(session)?;
    // What a collector of traces reads is no service of this server either.
    let traces = protox::compile(["otlp_trace.proto"], ["proto"])?;
    prost_build::Config::new().compile_fds(traces)?;
    Ok(())
}
