//! What may an operator write behind `nerite serve`?

mod parse;
mod refusal;
mod table;
mod values;

pub use parse::{Given, parse};
pub use refusal::Command;
pub use table::Honour;
pub use values::{BadValue, Values, bad, bool_of};
