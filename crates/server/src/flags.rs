//! What may an operator write behind `nerite serve`?

mod parse;
mod table;
mod values;

pub use parse::{Given, ParseError, parse, usage};
pub use table::Honour;
pub use values::{BadValue, Values, bad, bool_of};
