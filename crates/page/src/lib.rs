//! What does a person see of the server in a browser?
//!
//! ```text
//!   metrics port ─► guard ─┬─ assets    the page: HTML, CSS, JavaScript
//!                  which   ├─ models, memory, requests, traces    calls that only the page makes
//!                  site?   └─ http ─► api               calls of the protocol, below /ui/api/v2
//! ```
//!
//! The page is a client like others: `api` decides by the peer of its connection what its user may see and do. This crate decides which web sites may
//! send requests for that user (`guard`), and which clients may make calls at this port ([`Callers`]).
//!
//! ```
//! use nerite_page::Callers;
//! use nerite_request::Peer;
//!
//! assert!(Callers::Operator.admit(&Peer::own()));
//! assert!(!Callers::Host.admit(&Peer::of_address([192, 0, 2, 1].into())));
//! ```
#![forbid(unsafe_code)]

mod assets;
mod callers;
mod guard;
pub mod limits;
mod memory;
mod models;
mod page;
mod reply;
mod requests;
mod route;
mod traces;

pub use callers::Callers;
pub use page::{Options, Page};
