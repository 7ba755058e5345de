//! What did the model's author ask for?
//!
//! ```text
//!  config.pbtxt ── text ──┐                     ┌── deduce    which backend?
//!                         ├─► ModelConfig ──────┼── normalise which defaults?
//!  load override ─ json ──┘        │            ├── complete  what does the graph add?
//!  config endpoint ◄──── json ─────┘            └── validate  is it consistent?
//! ```
//!
//! Everything here is a function over values: no file is opened and nothing is logged. The caller reads the repository and passes in what it found.
//!
//! ```
//! use nerite_config::{HostFacts, normalise, normalise_groups, parse_text, to_json, validate};
//!
//! let text = br#"backend: "python" max_batch_size: 8 dynamic_batching { }"#;
//! let config = parse_text("models/echo/config.pbtxt", text)?;
//! let config = normalise(config, "echo");
//! validate(&config)?;
//! let config = normalise_groups(config, &[], &HostFacts::cpu_only());
//! assert!(to_json(&config).contains(r#""preferred_batch_size":[8]"#));
//! # Ok::<(), nerite_config::ConfigError>(())
//! ```
#![forbid(unsafe_code)]

mod cost;
mod datatype;
mod deduce;
mod error;
mod host;
mod json;
mod latency;
mod limits;
mod listed;
mod normalise;
mod onnx;
mod padding;
mod parameters;
mod raw;
mod schema;
mod shape;
mod suggest;
mod text;
mod text_fields;
mod timeout;
mod validate;
mod versions;
mod view;

/// The messages of `proto/model_config.proto`, package `inference`.
#[allow(clippy::pedantic, missing_docs)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

pub use datatype::{config_data_type, tensor_data_type};
pub use deduce::{Entry, deduce_backend, no_model_file};
pub use error::{ConfigError, TextFault};
pub use host::{Gpu, HostFacts, MIN_COMPUTE_CAPABILITY};
pub use json::{from_json, to_json};
pub use limits::{ENSEMBLE_STEPS_MAX, INSTANCES_MAX};
pub use listed::listed;
pub use normalise::{normalise, normalise_groups};
pub use onnx::{
    Completion, GraphSignature, Note, TensorSignature, check_input_allowed, check_onnx, check_output_allowed,
    complete_onnx, needs_graph,
};
pub use padding::{BUCKETS_MAX, PaddedInput, Padding};
pub use proto::ModelConfig;
pub use raw::raw_input;
pub use schema::FILE_DESCRIPTOR_SET;
pub use suggest::{did_you_mean, nearest};
pub use text::parse_text;
pub use text_fields::{text_fields, texts_at};
pub use validate::{
    WARMUP_FOLDER, check_agents, check_directory_name, check_file_names, check_label_path, check_warmup_file,
    no_version_to_load, validate, validate_groups, validate_states, validate_tensors, validate_warmup,
    warmup_byte_size, warmup_failed,
};
pub use versions::VersionPolicy;
pub use view::TensorSpec;

/// Size of the encoded configuration in bytes. Its JSON is several times as large.
pub fn encoded_bytes(config: &ModelConfig) -> usize {
    prost::Message::encoded_len(config)
}
