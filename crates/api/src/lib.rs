//! What may a client ask?
//!
//! Every front end asks here, and only here: a check, a limit, an access rule or an error text exists once. Region names end
//! here, and an error becomes a [`Status`] here.
#![forbid(unsafe_code)]

mod access;
mod api;
pub mod codes;

pub use access::{Category, Protocol, Restriction};
pub use api::Api;
pub use nerite_request::{Code, Status};
