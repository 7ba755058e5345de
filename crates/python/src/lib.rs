//! How do models that are Python classes run?
//!
//! ```text
//!   Python ──load──► PythonModel ──instance──► ProcessInstance ── channel ──► child: the user's python3, the stub, the model
//!     Interpreter, Launch, ProcessLauncher, Template    (crate `process`)
//! ```
//!
//! Each instance has its own process, with the user's own interpreter. This crate chooses the interpreter, starts it with the stub, and explains its
//! failures. Crate `process` has the rules for all models in processes of their own. `docs/python-process.md` describes the packets. The other end of the
//! channel is `python/nerite/model`.
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

mod backend;
mod backend_class;
mod device_memory;
mod guard_library;
mod interpreter;
mod launch;
mod limits;
mod model;
mod runtime;
mod settings;
mod stub;
mod template;
mod terminal;

pub use backend::PythonBackend;
pub use backend_class::{BACKEND_CLASS, python_backends_in};
pub use interpreter::{NoPython, PythonFound, check_interpreter, find_python};
pub use nerite_process::PRINTED_TARGET;
pub use runtime::Python;
pub use terminal::{TerminalRun, TerminalRunError, run_in_terminal};
