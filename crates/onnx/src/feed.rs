//! What is an input of a run?

use nerite_tensor::{Tensor, element_count};
use rten::Value;

/// An input of a run.
pub struct Feed {
    /// Its index.
    pub index: usize,
    /// Its values, in the shape that the graph takes.
    pub tensor: Tensor,
    /// A copy of the values, if they lie in memory that others can write. `tensor` has no data then, because a lost thread must not keep a client's
    /// memory.
    pub copy: Option<Value>,
}

impl Feed {
    /// The number of its values.
    pub fn values(&self) -> u64 {
        element_count(&self.tensor.shape).unwrap_or(u64::MAX)
    }
}
