//! Where can an output lie so that it becomes an input of another model without a copy?

use std::any::Any;
use std::sync::Arc;

use nerite_memory::{Buffer, Slot};

/// Memory that the process of an instance maps for the inputs of its model.
pub trait InputMemory: Any + Send + Sync {
    /// Memory for an output of `bytes` bytes that the server writes. `None` if too much input memory is in use. Then the output is written elsewhere, and
    /// copied later.
    fn slot(&self, bytes: usize) -> Option<Slot>;

    /// Whether an output lies in memory that the instance's process may map. Then the process reads the output there.
    fn can_read(&self, output: &Buffer) -> bool;

    /// Memory for an output that this instance and the `others` read, and the server too if `read_here` is true. If one of them writes to its input, the
    /// others do not see the change. `None` if no such memory exists. Then all readers but one need copies.
    fn joint(self: Arc<Self>, _others: &[Arc<dyn InputMemory>], _read_here: bool) -> Option<Arc<dyn InputMemory>> {
        None
    }
}
