//! How is gRPC spoken?
//!
//! ```text
//!   listener ─ connection ─ dispatch ─┬─ unary   decode, call api, encode
//!   TCP, Unix   HTTP/2       which?   ├─ infer   the same, without copying tensors
//!                           allowed?  └─ stream  many requests and answers, in order unless the model is decoupled
//! ```
//!
//! gRPC is implemented here directly over HTTP/2. The usual library decodes each message from one contiguous buffer, which would copy every tensor
//! once when it is received and once when it is sent.
//!
//! The example needs a server, so it is only compiled:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use nerite_api::Api;
//! use nerite_grpc::{Handle, Options, serve};
//! use nerite_listen::{Endpoint, Rules, bind};
//!
//! async fn start(api: Api, rules: Rules) -> Result<Handle, Box<dyn std::error::Error>> {
//!     let listener = bind(&Endpoint::unix(Path::new("/run/nerite/grpc.sock")))?;
//!     Ok(serve(api, Options::default(), rules, vec![listener])?)
//! }
//! ```
#![forbid(unsafe_code)]

mod answer;
mod begun;
mod body;
mod call;
mod charging;
mod compress;
mod deadline;
mod dispatch;
mod execute;
mod failure;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod infer;
mod infer_request;
pub mod limits;
mod message_format;
mod options;
mod serve;
mod stream;
mod unary;

pub use options::{CompressionLevel, Options};
pub use serve::{Handle, serve};
