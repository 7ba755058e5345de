//! How do models that are Python classes run?
//!
//! ```text
//!   Python ──load──► PythonModel ──instance──► ProcessInstance ── channel ──► child: the user's python3, the stub, the model
//!     Interpreter, Launch, ProcessLauncher, Template    (crate `process`)
//! ```
//!
//! One process per instance, in the user's own interpreter: which one that is, what it is handed, and how its failures are told. What
//! holds for all models in processes of their own is in crate `process`. The wire is described in `docs/python.md`; the other end of it is
//! `python/nerite/model`.
//!
//! ```
//! use nerite_backend::Runtime;
//! use nerite_python::Python;
//!
//! let python = Python::default(); // no process is started before a model is loaded
//! assert_eq!(python.name(), "python");
//! python.end(); // removes the environments that were unpacked
//! ```
#![forbid(unsafe_code)]

mod guard_library;
mod interpreter;
mod launch;
mod limits;
mod model;
mod runtime;
mod settings;
mod stub;
mod template;

pub use interpreter::{NoPython, PythonFound, find_python};
pub use runtime::Python;
