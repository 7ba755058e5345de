//! How are requests over HTTP answered?
//!
//! ```text
//!   listen ─ serve ─ dispatch ─┬─ calls/infer     receive ─► wire ─► api ─► wire ─► reply
//!   TCP, Unix   hyper  route    └─ calls/*         read, call api, write
//! ```
//!
//! One service handles HTTP/1.1 over TCP and Unix sockets. Paths are few and fixed, so the router is a match. The body of an inference is copied
//! once: from the pieces that the socket delivered to one block, whose binary part begins on a 64-byte boundary. A body that arrived in one piece is
//! not copied if its binary part is aligned already, or short. Binary outputs are sent from where the model left them.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::os::unix::net::UnixStream;
//!
//! use nerite_api::Api;
//! use nerite_http::{Options, serve};
//! use nerite_listen::{ConnectionLimits, ConnectionRules, Endpoint, Peers, TimeLimits, bind};
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # let _within = runtime.enter();
//! let folder = tempfile::tempdir()?; // a model repository without models
//! let api = Api::for_tests(folder.path())?;
//! let rules = ConnectionRules { peers: Peers::new(ConnectionLimits::for_descriptors(64)), times: TimeLimits::default() };
//! let socket = folder.path().join("http.sock");
//! let handle = serve(api, Options::default(), rules, vec![bind(&Endpoint::unix(&socket))?])?;
//!
//! let mut client = UnixStream::connect(&socket)?;
//! client.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: nerite\r\nconnection: close\r\n\r\n")?;
//! let mut answer = String::new();
//! client.read_to_string(&mut answer)?;
//! assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
//! runtime.block_on(handle.stop());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod calls;
mod dispatch;
mod encoding;
mod error_text;
mod events;
#[doc(hidden)]
pub mod fuzzing;
mod identifier;
mod incoming;
pub mod limits;
mod load_report;
mod passed_on;
mod receive;
mod reply;
mod route;
mod serve;
mod unread;

pub use passed_on::{answer, answer_unread};
pub use serve::{Handle, Options, serve};
