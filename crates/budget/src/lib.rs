//! How much may each client make the server hold?
//!
//! ```text
//!   Charge ─► Account ─► peer ─► all        each with a low and a high mark
//!   a body    a connection   a user     the server
//! ```
//!
//! Everything that a connection makes the server hold is charged to its [`Account`] and released when the [`Charge`] is dropped.
//! Past the low mark of a connection, of its peer or of the server, those who hold more than their share are not read on.
//! What they hold stays; one of them at a time may go on, so that what is half there can be completed. Past the high mark, or
//! when nothing moved for a while, the costliest connection of the costliest peer is ended ([`Shed`]).
//!
//! The decisions are pure functions in [`marks`]; accounts and budgets carry them out.
//!
//! ```
//! use nerite_budget::{Budgets, Limits};
//!
//! let budgets = Budgets::new(Limits::new(1 << 30, None, None, None));
//! let account = budgets.open("user 1000"); // one for each connection
//! let before = account.held(); // an open connection costs something, too
//! let charge = account.charge(4096);
//! assert_eq!(account.held() - before, 4096);
//! drop(charge);
//! assert_eq!(account.held(), before);
//! ```
#![forbid(unsafe_code)]

mod account;
mod book;
mod budgets;
pub mod limits;
pub mod marks;
mod scope;
mod waiters;

pub use account::{Account, Charge, ReadPermit, Turn, paid};
pub use budgets::{Budgets, Counts};
pub use marks::{Limits, Marks, OverBudget, Shed, ShedReason};

#[cfg(test)]
mod tests;
