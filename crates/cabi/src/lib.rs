//! How do Triton's compiled backends run unchanged?
//!
//! ```text
//!   libtriton_x.so ──needs──► libtritonserver.so          the shared object that `image` makes: a jump for each function
//!      ▲     │                      │
//!      │     └── TRITONBACKEND_… ───┴──► calls ──► table ──► objects ──► Job, Responder, Slot …
//!      └──────── ModelInstanceExecute ── library ◄── model ◄── runtime ◄── the server
//! ```
//! A backend sees handles, which are numbers in a table: one that was released is recognised, and no address of the server's leaves it but those of
//! texts, shapes and tensors. An input is where its client left it, and an output is written where its client wants it, without a copy.
//!
//! ```
//! use std::path::Path;
//!
//! use nerite_backend::Runtime;
//! use nerite_cabi::{CompiledBackend, Options, backends_in};
//!
//! let options = Options { directory: "/opt/tritonserver/backends".into(), auto_complete: true };
//! for (name, library) in backends_in(Path::new("/opt/tritonserver/backends")) {
//!     // Nothing is opened before a model needs it.
//!     println!("{}", CompiledBackend::new(&name, &library, options.clone()).engine());
//! }
//! ```

mod abi;
mod answer;
mod calls;
mod fault;
mod find;
mod image;
mod library;
mod limits;
mod loaded;
mod model;
mod needed;
mod objects;
mod runtime;
mod table;

pub use find::backends_in;
pub use runtime::{CompiledBackend, ModelLibraries, Options};
