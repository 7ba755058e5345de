//! What do the texts of a request's checks have in common?

use std::fmt;

use crate::Status;

/// `[request id: x] `, with which Triton begins the texts of these checks.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a>(pub &'a str);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[request id: {}] ", if self.0.is_empty() { "<id_unknown>" } else { self.0 })
    }
}

impl Prefix<'_> {
    /// An input that the request names twice.
    pub fn repeated_input(self, name: &str) -> Status {
        Status::invalid(format!("{self}input '{name}' already exists in request"))
    }

    /// An output that the request names twice.
    pub fn repeated_output(self, name: &str) -> Status {
        Status::invalid(format!("{self}output '{name}' already exists in request"))
    }
}
