//! How does a bare binary run ONNX models?
//!
//! With the engine `rten`, compiled in. It serves the backend `onnxruntime` where no ONNX Runtime is found.
//!
//! The engine knows four kinds of number: FP32, INT32, INT8 and UINT8. It keeps INT64 and BOOL as INT32, FP64 and FP16 as
//! FP32. That is right for most models, whose INT64 are indices and shapes, and silently wrong for some. So nothing of it
//! is left to luck: `audit` refuses graphs that compute what 32 bits would falsify, and `convert` refuses values that
//! do not fit. Both say what to do about it.
//!
//! ```
//! use nerite_backend::Runtime;
//! use nerite_onnx::Embedded;
//!
//! assert_eq!(Embedded.name(), "onnxruntime"); // what `config.pbtxt` says, whichever engine serves it
//! assert!(Embedded.engine().starts_with("rten "));
//! assert!(Embedded.offers_gpus().is_err());
//! ```
#![forbid(unsafe_code)]

mod audit;
mod convert;
mod copies;
mod defaults;
mod graph;
mod instance;
mod loaded;
mod rewrite;
mod runner;
mod runtime;

pub use runtime::Embedded;
