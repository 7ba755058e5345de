//! Which requests are traced, and how do their traces get into a file or to a collector?
//!
//! ```text
//!   settings ─► Tracer ─► RequestTrace ─► notes, made where the request is ─┬► one thread ─► JSON in a file
//!   (clients)   (samples)                 (crates request, backend, …)      │  (Writer)
//!                                                                           └► one thread ─► spans, posted by HTTP
//!                                                                              (Exporter)
//! ```
//!
//! While nothing is traced, a request costs one relaxed load ([`Tracer::is_on`]). A separate thread writes or posts.
//! The traces that wait for it, and the notes of requests in flight, have at most [`TRACES_BYTES_MAX`] bytes. Traces
//! beyond that are dropped and counted. For spans, the settings limit how many wait ([`SpanConfig`]). While somebody
//! looks at recent requests ([`Tracer::look`]), some requests of each client are recorded for that as well, whatever
//! the settings are.
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
mod warnings;
mod writer;

pub use collector::collector_fault;
pub use counts::TraceCounts;
pub use recent::{RecentNote, RecentRequest};
pub use settings::{COLLECTOR_URL, SpanConfig, TraceConfig};
pub use tracer::{TRACES_BYTES_MAX, Tracer};
