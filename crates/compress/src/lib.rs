//! How are messages compressed and inflated without harm to other clients?
//!
//! ```text
//!   message ─ small ─► one step on the thread that serves the connection ─► done
//!           └ else ──► Lane (a connection's share) ─► place ─► one step on a worker thread ─┐
//!                                                       ▲                                  │
//!                                                       └── not done: to the end of the queue ◄┘
//! ```
//!
//! Both protocols use the same code and the same limits. Work is cut into steps of a few milliseconds. A step needs one of a few
//! places, and places are given in the order of asking, so connections take turns. Work belongs to the future that waits for it:
//! when a client goes away, the step that runs is the last one, and all memory of the work is freed.
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
mod turns;

pub use compress::{CompressError, compress};
pub use encoding::{Encoding, Level};
pub use inflate::{InflateError, Sink, compressed_bytes_max, inflate};
pub use turns::Lane;
