//! Where can an output lie so that it becomes an input of another model without a copy?

use std::any::Any;

use nerite_memory::Slot;

/// Memory that the process of an instance maps for the inputs of its model.
pub trait InputMemory: Any + Send + Sync {
    /// Memory for an output of `bytes` bytes that the server writes. `None` if too much of it is in use. Then the output is
    /// written elsewhere, and copied later.
    fn slot(&self, bytes: usize) -> Option<Slot>;
}
