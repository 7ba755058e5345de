//! What comes back from a model?

use nerite_memory::Buffer;
use nerite_tensor::{DataType, Name, Shape};

use crate::{LeaseNotice, Parameters, Status};

/// One response to a request: tensors or an error. Decoupled models send many; the last one is marked.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// Name of the model that answered.
    pub model: Name,
    /// Version of the model that answered.
    pub version: Name,
    /// The request's own id.
    pub id: Name,
    /// Parameters the model added.
    pub parameters: Parameters,
    /// Output tensors in the order the model made them.
    pub outputs: Vec<Output>,
    /// Those outputs whose place the server chose, for the client to be told where they lie.
    pub lease_notices: Vec<LeaseNotice>,
    /// Why there is no result.
    pub error: Option<Status>,
    /// Whether no further response follows.
    pub last: bool,
    /// Whether this is only the news that nothing follows.
    pub empty: bool,
}

/// One output tensor.
#[derive(Clone, Debug)]
pub struct Output {
    /// The model's name for it.
    pub name: Name,
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    /// Its bytes, wherever they are.
    pub data: Buffer,
    /// Whether the bytes already lie where the client will look (a region of its own), so that none are sent.
    pub placed: bool,
}

impl Response {
    /// Bytes that are to be sent with it and that its client chose the number of: tensors, and the request's id.
    pub fn inline_bytes(&self) -> usize {
        let tensors = self.outputs.iter().filter(|output| !output.placed).map(|output| output.data.len());
        tensors.sum::<usize>() + self.id.len()
    }

    /// A last response that says why there is no result.
    pub fn failed(id: impl Into<Name>, error: Status) -> Response {
        Response { id: id.into(), error: Some(error), last: true, ..Response::default() }
    }
}
