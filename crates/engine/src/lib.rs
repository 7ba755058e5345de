//! How does one request become one response?
//!
//! ```text
//!   Engine ─ catalog (read without a lock) ─► Served ─► Pool ─► Instance
//!      └── load, unload: threads of its own, decisions by `nerite_repository`
//! ```
//! The only home of threads and clocks below the front ends.
#![forbid(unsafe_code)]

mod limits;
mod pool;
mod served;
mod stats;

pub use served::{Labels, Served};
