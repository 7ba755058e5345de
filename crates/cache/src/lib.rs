//! Which responses were made before, and are kept for requests that ask the same?
//!
//! ```
//! use nerite_cache::{KeyWriter, ResponseCache};
//! use nerite_request::InferResponse;
//!
//! let key = |input: &str| {
//!     let mut key = KeyWriter::new(1); // the number of a loaded model version
//!     key.text(input);
//!     key.finish()
//! };
//! let cache = ResponseCache::new(1 << 20);
//! assert!(cache.find(&[key("a")]).is_none());
//! cache.keep(key("a"), &InferResponse { model: "m".into(), ..InferResponse::default() });
//! assert!(cache.find(&[key("a")]).is_some() && cache.find(&[key("b")]).is_none());
//! assert_eq!((cache.counts().hits, cache.counts().misses), (1, 2));
//! ```
#![forbid(unsafe_code)]

mod cache;
mod key;
mod limits;
mod lru;
mod stored;

pub use cache::{CacheCounts, Kept, ResponseCache};
pub use key::{Key, KeyWriter};
pub use lru::{Inserted, Lru};
pub use stored::Stored;
