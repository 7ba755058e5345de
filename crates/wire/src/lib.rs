//! What does each message look like in bytes?
//!
//! Three renderings of the same structs of `nerite_request`: [`json`] for HTTP, [`proto`] for gRPC, [`prometheus`] for
//! metrics. Syntax is settled here, meaning in `api`.
#![forbid(unsafe_code)]

mod budget;
pub mod json;
pub mod prometheus;
pub mod proto;
