//! How do Triton's compiled backends run unchanged?
//!
//! ```text
//!   libtriton_x.so ──needs──► libtritonserver.so          the shared object that `image` makes: a jump for each function
//!      ▲     │                      │
//!      │     └── TRITONBACKEND_… ───┴──► calls ──► table ──► objects ──► Job, Responder, Slot …
//!      └──────── ModelInstanceExecute ── library ◄── model ◄── runtime ◄── the server
//! ```
//! A backend gets handles, which are numbers of entries in a table, so the use of a released handle is detected. The only addresses of the server
//! that it gets are those of texts, shapes and tensors. It reads an input in the client's memory, and writes an output to the client's place, without
//! a copy.
//!
//! ```
//! use std::path::Path;
//!
//! use nerite_backend::Runtime;
//! use nerite_cabi::{CompiledBackend, Options, backends_in};
//!
//! let options = Options { directory: "/opt/tritonserver/backends".into(), auto_complete: true, reports: None };
//! for (name, library) in backends_in(Path::new("/opt/tritonserver/backends")) {
//!     // The library is opened when the first model needs it.
//!     println!("{}", CompiledBackend::new(&name, &library, options.clone()).engine());
//! }
//! ```

mod abi;
mod answer;
mod calls;
mod crash;
mod fault;
mod find;
mod image;
mod library;
mod limits;
mod load_waits;
mod loaded;
mod log_callback;
mod model;
mod needed;
mod objects;
mod run_client;
mod run_waits;
mod runtime;
mod server_calls;
mod table;

pub use crash::name_aborting_backends;
pub use find::{backends_in, named_libraries_in};
pub use log_callback::log_to_program;
pub use objects::make_metrics_by;
pub use runtime::{CompiledBackend, MIN_COMPUTE_CAPABILITY, ModelLibraries, Options};
pub use server_calls::{LateReports, ServerCalls, ServerReports, Start, serve_in_process};
