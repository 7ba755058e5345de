//! How does one request become one response?
//!
//! ```text
//!   Engine ─ catalog (read without a lock) ─► Served ─► Pool ─► Instance
//!      └── load, unload: threads of its own, decisions by `nerite_repository`
//! ```
//! The only home of threads and clocks below the front ends.
#![forbid(unsafe_code)]

mod catalog;
mod engine;
mod limits;
mod load;
mod pool;
mod quickness;
mod runtimes;
mod semaphore;
mod served;
mod stats;
mod timer;
mod unsupported;

pub use engine::{Engine, Options};
pub use load::Loader;
pub use nerite_repository::Labels;
pub use runtimes::Runtimes;
pub use served::Served;
