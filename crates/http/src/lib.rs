//! How is HTTP spoken?
//!
//! ```text
//!   listen ─ serve ─ dispatch ─┬─ calls/infer     receive ─► wire ─► api ─► wire ─► reply
//!   TCP, Unix   hyper  route    └─ calls/*         read, ask, write
//! ```
//!
//! One service handles HTTP/1.1 over TCP and Unix sockets. Paths are few and fixed, so the router is a match. The body of an inference is copied
//! once: from the pieces that the socket delivered to one block, whose binary part begins on a 64-byte boundary. A body that arrived in one piece is
//! not copied. Binary outputs are sent from where the model left them.
//!
//! A server is needed around it, so the example is compiled and not run:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use nerite_api::Api;
//! use nerite_http::{Handle, Options, serve};
//! use nerite_listen::{Endpoint, Rules, bind};
//!
//! async fn start(api: Api, rules: Rules) -> Result<Handle, Box<dyn std::error::Error>> {
//!     let listener = bind(&Endpoint::unix(Path::new("/run/nerite/http.sock")))?;
//!     Ok(serve(api, Options::default(), rules, vec![listener])?)
//! }
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

pub use passed_on::answer;
pub use serve::{Handle, Options, serve};
