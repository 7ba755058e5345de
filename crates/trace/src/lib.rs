//! Which requests are traced, and how do their traces get into a file?
//!
//! ```text
//!   settings ─► Tracer ─► RequestTrace ─► notes, made where the request is ─► one thread ─► JSON in a file
//!   (clients)   (samples)                 (crates request, backend, …)        (Writer)
//! ```
//!
//! While nothing is traced a request costs one relaxed load ([`Tracer::is_on`]). The file is written by a thread of its own. What waits for
//! it, and what requests have noted so far, is bounded by [`TRACES_BYTES_MAX`] bytes in all; beyond that, traces are dropped and counted.
//!
//! ```
//! use nerite_trace::{TraceConfig, Tracer};
//!
//! let tracer = Tracer::new(TraceConfig::default());
//! assert!(!tracer.is_on());
//! assert_eq!(tracer.settings("")[0], ("trace_level".to_owned(), vec!["OFF".to_owned()]));
//! ```
#![forbid(unsafe_code)]

mod files;
mod lines;
mod number;
mod settings;
mod tracer;
mod writer;

pub use settings::TraceConfig;
pub use tracer::{TRACES_BYTES_MAX, Tracer};
pub use writer::TraceCounts;
