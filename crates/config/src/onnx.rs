//! How does an ONNX graph complete its configuration, and do the two agree?

mod agree;
mod complete;

pub use agree::{check_input_allowed, check_onnx, check_output_allowed};
pub use complete::{Completion, Note, complete_onnx, needs_graph};

use crate::proto::DataType;

/// An input or output in the graph's declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSignature {
    /// Its name.
    pub name: String,
    /// Its datatype. `TypeInvalid` for a datatype that no request can carry.
    pub data_type: DataType,
    /// All dimensions, including the batch's. -1 means any size. Empty for a scalar.
    pub dims: Vec<i64>,
}

/// The inputs and outputs of a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphSignature {
    /// Inputs without an initialiser, in the graph's order.
    pub inputs: Vec<TensorSignature>,
    /// Inputs with an initialiser. They are optional in a request.
    pub initializers: Vec<TensorSignature>,
    /// Outputs, in the graph's order.
    pub outputs: Vec<TensorSignature>,
}

#[cfg(test)]
mod tests;
