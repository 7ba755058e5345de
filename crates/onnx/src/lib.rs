//! How does the server run ONNX models without any library on the host?
//!
//! The engine `rten` is compiled in. It serves the backend `onnxruntime` if no ONNX Runtime is found.
//!
//! The engine has four types of numbers: FP32, INT32, INT8 and UINT8. It keeps INT64 and BOOL as INT32, and FP64 and
//! FP16 as FP32. That is right for most models, whose INT64 are indices and shapes, and would be silently wrong for
//! some. So `audit` refuses graphs whose results would be wrong in 32 bits, and `convert` refuses values that do not
//! fit. The errors of both say what to do.
//!
//! ```
//! use nerite_backend::Runtime;
//! use nerite_onnx::Embedded;
//!
//! assert_eq!(Embedded.name(), "onnxruntime"); // what `config.pbtxt` says, whichever engine serves it
//! assert!(Embedded.engine().starts_with("rten "));
//! assert!(Embedded.offers_gpus().is_err());
//! ```
#![deny(unsafe_code)]

mod audit;
mod conditions;
mod convert;
mod copies;
mod cut;
mod defaults;
mod engine;
mod feed;
mod graph;
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu", not(miri)))]
mod hypot;
mod instance;
mod loaded;
mod losses;
mod pace;
mod pieces;
mod program;
mod rewrite;
mod runner;
mod runtime;
mod spares;
mod staged;
mod stages;
mod weights;

pub use runtime::Embedded;
