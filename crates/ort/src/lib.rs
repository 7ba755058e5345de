//! How does ONNX Runtime, found on this host, run models?
//!
//! ```text
//!   find_library ─► OnnxRuntime::open ─load─► one Session per instance ─► Run(inputs where the request left them,
//!     flag, environment,   (dlopen)                                            outputs where the client wants them)
//!     Python, system
//! ```
//! Nothing of ONNX Runtime is linked or shipped: the library is opened if it is found, and otherwise the embedded engine serves the models. Inputs
//! are passed by address. Outputs are computed into the memory of their destination if their size follows from the shapes that the model declares. An
//! instance on a GPU takes tensors of that device in the same way.
//!
//! ```
//! use nerite_backend::Runtime;
//! use nerite_ort::{OnnxRuntime, find_library};
//!
//! match find_library(None) {
//!     Some(library) => match OnnxRuntime::open(&library) {
//!         Ok(runtime) => println!("{}", runtime.engine()),
//!         Err(error) => println!("{error}"), // too old, or no ONNX Runtime at all
//!     },
//!     None => println!("the embedded engine serves ONNX models on this host"),
//! }
//! ```

mod allocator;
mod cuda;
mod fence;
mod fragile;
mod held_bytes;
mod library;
mod options;
mod provider;
mod runtime;
mod session;
mod session_share;
mod signature;
mod status;
mod strings;
mod telemetry;
mod traps;
mod value;

pub use library::{INSTALL, NOT_FOUND, find_library};
pub use runtime::{OnnxRuntime, OpenError};
pub use telemetry::disable_telemetry;
