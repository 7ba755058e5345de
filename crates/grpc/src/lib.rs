//! How are gRPC calls answered?
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
//! ```
//! use std::io::{Read, Write};
//! use std::os::unix::net::UnixStream;
//!
//! use nerite_api::Api;
//! use nerite_grpc::{Options, serve};
//! use nerite_listen::{ConnectionLimits, ConnectionRules, Endpoint, Peers, TimeLimits, bind};
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # let _within = runtime.enter();
//! let folder = tempfile::tempdir()?; // a model repository without models
//! let api = Api::for_tests(folder.path())?;
//! let rules = ConnectionRules { peers: Peers::new(ConnectionLimits::for_descriptors(64)), times: TimeLimits::default() };
//! let socket = folder.path().join("grpc.sock");
//! let handle = serve(api, Options::default(), rules, vec![bind(&Endpoint::unix(&socket))?])?;
//!
//! // Each side of an HTTP/2 connection sends its settings first.
//! const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
//! let mut client = UnixStream::connect(&socket)?;
//! client.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &EMPTY_SETTINGS[..]].concat())?;
//! let mut frame = [0; 9];
//! client.read_exact(&mut frame)?;
//! assert_eq!(frame[3], EMPTY_SETTINGS[3], "the type of the frame");
//! runtime.block_on(handle.stop());
//! # Ok::<(), Box<dyn std::error::Error>>(())
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
mod reused_future;
mod serve;
mod stream;
mod unary;

pub use options::{CompressionLevel, Options};
pub use serve::{Handle, serve};
