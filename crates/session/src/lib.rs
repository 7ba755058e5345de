//! How does a program on this host borrow shared memory from the server?
//!
//! ```text
//!   listener ── peer allowed? ──► session, one task ──► call ──► api ──► answer ──► outbox ──► socket
//!   Unix socket   its uid          one packet, one message                 from any thread, at once if it can
//! ```
//! A session is a connected socket. Everything that the client borrows, registers and requests belongs to the session, and is dropped with it,
//! however the client ends. `docs/session.md` describes the protocol. The task of a session runs quick requests itself. The thread that has computed an
//! answer also sends it. So with a quick model no thread is woken between the client's packet and the answer.
//!
//! ```
//! use std::path::Path;
//!
//! use nerite_session::{FoundDirectory, check_directory};
//!
//! let directory = Path::new("/tmp/nerite-1000");
//! let mine = FoundDirectory { uid: 1000, mode: 0o700, is_directory: true };
//! assert_eq!(check_directory(directory, mine, 1000), Ok(()));
//! let open = FoundDirectory { uid: 1000, mode: 0o755, is_directory: true };
//! assert!(check_directory(directory, open, 1000).is_err_and(|cure| cure.contains("chmod 0700")));
//! ```
#![forbid(unsafe_code)]

mod answer;
mod call;
mod gathered;
mod in_flight;
mod inference;
mod inspector;
pub mod limits;
mod listen;
mod model_wait;
mod operator;
mod outbox;
mod peer;
mod prepared;
mod prepared_table;
mod responses;
mod serve;
mod session;
mod session_socket;
mod session_table;
mod socket;
mod waiting;
mod watch;

pub use inspector::Inspector;
pub use listen::{BindError, FoundDirectory, Listener, Location, check_directory, default_path};
pub use serve::{Handle, Options, serve, serve_at};
pub use session_socket::{Opened, log_failures};
