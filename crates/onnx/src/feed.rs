//! What is an input of a run?

use nerite_tensor::Tensor;
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
