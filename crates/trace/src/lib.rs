//! Which requests are traced, and how do their traces get into a file or to a collector?
//!
//! ```text
//!   settings ─► Tracer ─► RequestTrace ─► notes, made where the request is ─┬► one thread ─► JSON in a file
//!   (clients)   (samples)                 (crates request, backend, …)      │  (Writer)
//!                                                                           └► one thread ─► spans, posted by HTTP
//!                                                                              (Exporter)
//! ```
//!
//! While nothing is traced a request costs one relaxed load ([`Tracer::is_on`]). A thread of its own writes or posts. What waits for
//! it, and what requests have noted so far, is bounded by [`TRACES_BYTES_MAX`] bytes in all; beyond that, traces are dropped and counted.
//! Of spans only as many wait as the settings say ([`SpanConfig`]). While somebody looks at recent requests ([`Tracer::look`]), some of each client are
//! noted for that as well, whatever the settings say.
//!
//! ```
//! use nerite_trace::{TraceConfig, Tracer};
//!
//! let tracer = Tracer::new(TraceConfig::default());
//! assert!(!tracer.is_on());
//! assert_eq!(tracer.settings("")[0], ("trace_level".to_owned(), vec!["OFF".to_owned()]));
//! ```
#![forbid(unsafe_code)]

mod collector;
mod complaints;
mod counts;
mod destination;
mod exporter;
mod files;
mod lines;
mod number;
mod queue;
mod recent;
mod settings;
mod spans;
mod tracer;
mod writer;

pub use counts::TraceCounts;
pub use recent::{RecentNote, RecentRequest};
pub use settings::{COLLECTOR_URL, SpanConfig, TraceConfig};
pub use tracer::{TRACES_BYTES_MAX, Tracer};
