//! What does a person see of the server in a browser?
//!
//! ```text
//!   metrics port ─► guard ─┬─ assets    the page: HTML, CSS, JavaScript
//!                  which   ├─ models, memory, traces    what only the page asks
//!                  site?   └─ http ─► api               calls of the protocol, below /ui/api/v2
//! ```
//!
//! The page is one more client: what its user may see and do, `api` decides by the connection's peer. This crate decides which web sites may speak
//! for that user ([`Hosts`]), and whose calls are taken at this port at all ([`Callers`]).
//!
//! ```
//! use nerite_page::{Callers, Hosts};
//! use nerite_request::Peer;
//!
//! let hosts = Hosts::new(["models.example"], None);
//! assert!(hosts.knows("models.example:8002") && hosts.knows("127.0.0.1:8002") && hosts.knows("localhost"));
//! // A name that anybody may let point here is not known: that is how DNS rebinding works.
//! assert!(!hosts.knows("evil.example:8002"));
//! assert!(Callers::Operator.admit(&Peer::own()));
//! assert!(!Callers::Host.admit(&Peer::Address([192, 0, 2, 1].into())));
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
mod route;
mod traces;

pub use callers::Callers;
pub use guard::Hosts;
pub use page::{Options, Page};
