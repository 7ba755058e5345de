//! What does an ONNX graph add to its configuration, and do the two agree?

mod agree;
mod complete;

pub use agree::{check_input_allowed, check_onnx, check_output_allowed};
pub use complete::{Completion, Note, complete_onnx, needs_graph};

use crate::proto::DataType;

/// An input or output as the graph declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSignature {
    /// Its name.
    pub name: String,
    /// Its datatype; `TypeInvalid` for one that no request can carry.
    pub data_type: DataType,
    /// All dimensions, the batch's too; -1 is any size; empty for a scalar.
    pub dims: Vec<i64>,
}

/// What a graph takes and gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphSignature {
    /// In the graph's order, without initialisers.
    pub inputs: Vec<TensorSignature>,
    /// Inputs with an initialiser: a request may give them, and need not.
    pub initializers: Vec<TensorSignature>,
    /// In the graph's order.
    pub outputs: Vec<TensorSignature>,
}

#[cfg(test)]
mod tests;
