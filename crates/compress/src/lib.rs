//! How are messages compressed and inflated without harm to other clients?
//!
//! ```text
//!   message ─ small ─► one step on the thread that serves the connection ─► done
//!           └ else ──► Lane (a connection's share) ─► permit ─► one step on a worker thread ─┐
//!                                                       ▲                                   │
//!                                                       └── not done: to the end of the queue ◄─┘
//! ```
//!
//! Both protocols use the same code and the same limits. Work is divided into steps of a few milliseconds. Each step needs a permit of a semaphore,
//! which has few and is fair, so connections take turns. The future that waits for the work owns it: when a client disconnects, the current step is
//! the last one, and all memory of the work is freed.
//!
//! ```
//! use bytes::Bytes;
//! use nerite_compress::{Encoding, Lane, Level, compress};
//! use nerite_memory::GrowableBuffer;
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! let zeros = [Bytes::from_static(&[0; 1000])];
//! let packed = GrowableBuffer::with_capacity(64)?;
//! let packed = runtime.block_on(compress(zeros, Encoding::Gzip, Level::fast(), packed, &Lane::new()))?.finish();
//! assert!(packed.len() < 100);
//! assert_eq!(packed.private_bytes().map(Encoding::of_body), Some(Encoding::Gzip));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod compress;
mod encoding;
mod inflate;
pub mod limits;
mod steps;

pub use compress::{CompressError, compress};
pub use encoding::{Encoding, Level};
pub use inflate::{InflateError, Sink, compressed_bytes_max, inflate};
pub use steps::Lane;
