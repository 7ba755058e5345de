//! What does each message look like in bytes?
//!
//! The structs of `nerite_request` have three encodings: [`json`] for HTTP, [`proto`] for gRPC, and [`prometheus`] for metrics. This crate checks
//! syntax. The crate `api` checks what a message means.
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
mod short_answer;
