//! What do all parts of a run share, and why does a run have no results?

use std::sync::atomic::{AtomicBool, Ordering};

use nerite_memory::{NoMemory, check_memory};
use rten::RunOptions;

/// Why a run has no results.
#[derive(Debug)]
pub enum Fault {
    /// It was ended early.
    Stopped,
    /// It uses nearly as much memory as it may use.
    NoMemory(NoMemory),
    /// It failed.
    Failed(String),
}

/// What all pieces of a run have in common.
pub struct Conditions<'r> {
    /// The engine's options.
    pub options: &'r RunOptions,
    /// Whether the run is to end.
    pub is_over: &'r AtomicBool,
}

impl Conditions<'_> {
    /// An error if the run is to end, or uses nearly as much memory as it may use.
    pub fn check(&self) -> Result<(), Fault> {
        if self.is_over.load(Ordering::Relaxed) {
            return Err(Fault::Stopped);
        }
        check_memory(0).map_err(Fault::NoMemory)
    }
}
