//! How do requests and answers look as protobuf?
//!
//! ```text
//!   DATA frames ─ Gather ─► Chain ─ InferMessage::read ─► InferMessage ─ take_infer_request ─► InferRequest
//!                 pieces                 syntax, no tensor copied          meaning, tensors placed
//!
//!   Response ─ encode_unary | encode_stream ─► Chunks: head bytes, tensor, head bytes, tensor, …
//! ```
//!
//! Inference messages are read and written by hand, because their tensors must not be copied. All other messages use the generated types of [`messages`].

mod chain;
mod change;
mod choice;
mod contents;
mod encode;
mod expected;
mod gather;
mod infer;
mod infer_request;
mod inspect;
mod placement;
mod read;
mod report;
pub mod session;
mod weigh;

/// The messages of `proto/grpc_service.proto`, package `inference`.
#[allow(clippy::pedantic, missing_docs)]
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

/// The messages of `proto/health.proto`, package `grpc.health.v1`.
#[allow(clippy::pedantic, missing_docs)]
pub mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

/// The messages of `proto/otlp_trace.proto`, as a collector of traces reads and answers them.
#[allow(clippy::pedantic, missing_docs)]
pub mod otlp {
    include!(concat!(env!("OUT_DIR"), "/otlp.rs"));
}

/// The encoded `FileDescriptorSet` of all schemas, including that of model configurations.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/grpc_service.bin"));

pub use chain::{Chain, ChainReader};
pub use change::{check_load_parameters, check_repository, load_options, log_change, trace_change, unload_dependents};
pub use encode::{Chunks, PREFIX_BYTES, StreamStatus, encode_stream, encode_unary};
pub use expected::ExpectedResponse;
pub use gather::Gather;
pub use infer::InferMessage;
pub use infer_request::wrong_datatype;
pub use read::Malformed;

/// The largest message that is read or written, in bytes. gRPC stores the length in a signed 32-bit number.
pub const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;
