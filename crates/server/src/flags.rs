//! What may an operator write behind `nerite serve`?

mod origin;
#[cfg(test)]
mod page;
mod parse;
mod refusal;
mod table;
mod values;

pub use origin::Origin;
pub use parse::{Given, ParseError, parse};
pub use refusal::Command;
pub use table::{FLAGS, Flag, Honour, SAME, Takes};
pub use values::{BadValue, Values, bad, bool_of, sides};
