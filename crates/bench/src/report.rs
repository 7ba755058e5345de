//! How are options and results written as text?

pub(crate) mod console;
pub(crate) mod csv;
pub(crate) mod export;
pub(crate) mod json;
mod number;
pub(crate) mod sweeps;
