//! How much may each client make the server hold?
//!
//! ```text
//!   Charge ─► Account ─► peer ─► all        each with a low and a high mark
//!   a body    a connection   a user     the server
//! ```
//!
//! Everything that a connection makes the server hold is charged to its [`Account`], and released when the [`Charge`] is dropped. A
//! connection, its peer and the whole server have a budget each. Above the low mark of a budget, the server stops reading from connections
//! that hold more than their share. One of them at a time is exempt, so that a body that arrived in part can be completed. Above the high mark,
//! or when no budget changed for a while, the connection that holds the most is ended ([`Shed`]): the largest of the peer that holds the most.
//!
//! What outlives the connection that made it is charged to the peer itself ([`PeerAccount`]), and refused beyond half of a budget.
//!
//! The decisions are pure functions in [`marks`]. Accounts and budgets carry them out.
//!
//! ```
//! use nerite_budget::{Budgets, Limits};
//!
//! let budgets = Budgets::new(Limits::new(1 << 30, None, None, None));
//! let account = budgets.open("user 1000"); // one for each connection
//! let before = account.held(); // an open connection is charged something, too
//! let charge = account.charge(4096);
//! assert_eq!(account.held() - before, 4096);
//! drop(charge);
//! assert_eq!(account.held(), before);
//! ```
#![forbid(unsafe_code)]

mod account;
mod budget;
mod budgets;
mod ledger;
pub mod limits;
pub mod marks;
mod retained;
mod waiters;

pub use account::{Account, Charge, ReadDecision, ReadPermit, paid};
pub use budgets::{Budgets, Counts};
pub use marks::{Limits, Marks, OverBudget, OverShare, Shed, ShedReason};
pub use retained::{PeerAccount, PeerCharge};

#[cfg(test)]
mod tests;
