//! How does a program on this host share memory with the server without naming any?
//!
//! ```text
//!   listener ── peer allowed? ──► session, one task ──► call ──► api ──► answer ──► outbox ──► socket
//!   Unix socket   its uid          one packet, one message                 from any thread, at once if it can
//! ```
//!
//! A session is a connected socket. What the client borrows, registers and asks belongs to it and goes with it, however the
//! client ends. `docs/session.md` describes the protocol. The task of a session runs its requests where it is, and whoever
//! computed an answer sends it: a quick model costs no wake-up between the client's packet and the answer.
#![forbid(unsafe_code)]

mod call;
mod door;
mod inference;
pub mod limits;
mod listen;
mod operator;
mod outbox;
mod serve;
mod session;
mod session_table;
mod socket;
mod watch;

pub use door::log_failure;
pub use listen::{BindError, FoundDirectory, Listener, Location, check_directory, default_path};
pub use serve::{Handle, Options, serve, serve_later};
