//! How do metrics reach Prometheus?
//!
//! A port of its own that knows one page. It answers from counters that the server keeps anyway, so a scrape costs the
//! models nothing.
#![forbid(unsafe_code)]

mod answer;
mod serve;

pub use serve::{Handle, serve};
