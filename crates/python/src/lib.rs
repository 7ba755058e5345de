//! How do models that are Python classes run?
//!
//! ```text
//!   Python ──load──► PythonModel ──instance──► PythonInstance ── channel ──► child: the user's python3, the stub, the model
//!                                              plan, answer       side  ◄── log lines, questions of any thread
//! ```
//!
//! One process per instance, in the user's own interpreter. Tensors do not travel: the process maps the client's own memory
//! ([`nerite_memory::Share`]) and reads and writes there; what no client's memory holds lies in blocks that both map. A process that
//! dies takes its requests with it and nothing else: the next request starts it anew. The wire between the two is described in
//! `docs/python.md`; the other end of it is `python/nerite/model`.
#![forbid(unsafe_code)]

mod answer;
mod blocks;
mod body;
mod channel;
mod child;
mod guard_library;
mod instance;
mod interpreter;
mod keeper;
mod limits;
mod model;
mod plan;
mod runtime;
mod settings;
mod shares;
mod spawn;
mod stub;

pub use interpreter::{NoPython, PythonFound, find_python};
pub use runtime::Python;
