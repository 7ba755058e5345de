//! Which clients may do what, and how much, by the tokens of a file?
//!
//! ```text
//!   file ─► rules ─► Table of Tokens ◄─ secret ─ Authorization: Bearer …
//!                          │
//!                          └─► scopes, models, buckets, counts
//! ```
//!
//! ```
//! use nerite_access::{Scope, Tokens};
//!
//! let text = "[[token]]\nname = \"ci\"\nsecret = \"a secret\"\nscopes = [\"infer\"]\n";
//! let tokens = Tokens::from_text(text).expect("a token");
//! let token = tokens.find(Some(b"Bearer a secret")).expect("known");
//! assert_eq!(token.name(), "ci");
//! assert!(token.has_any(&[Scope::Infer]) && !token.has_any(&[Scope::Control]));
//! ```
#![forbid(unsafe_code)]

mod anonymous_peers;
mod bookings;
mod bucket;
pub mod limits;
mod pattern;
mod rules;
mod scope;
mod secret;
mod token;
mod tokens;

pub use bookings::Booking;
pub use rules::RulesError;
pub use scope::Scope;
pub use token::{Counts, OverQuota, Quota, Token};
pub use tokens::{Counters, FileError, Tokens, Unknown};
