//! What does each message look like in bytes?
//!
//! Three renderings of the same structs of `nerite_request`: [`json`] for HTTP, [`proto`] for gRPC, [`prometheus`] for
//! metrics. Syntax is settled here, meaning in `api`.
//!
//! ```
//! use nerite_wire::json::{read_unload, write_error};
//!
//! assert_eq!(write_error("no such model"), br#"{"error":"no such model"}"#);
//! assert!(read_unload(br#"{"parameters":{"unload_dependents":true}}"#)?);
//! # Ok::<(), nerite_request::Status>(())
//! ```
#![forbid(unsafe_code)]

mod budget;
pub mod json;
pub mod prometheus;
pub mod proto;
