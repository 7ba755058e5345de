//! What does a model answer?

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

use nerite_memory::Buffer;
use nerite_tensor::{DataType, Name, Shape};
use smallvec::SmallVec;

use crate::recycled::{FreeList, clear_list};
use crate::{LeaseNotice, Parameter, Parameters, Recycle, Recycled, ResponsePermit, Status};

thread_local! {
    static FREE: FreeList<InferResponse> = const { RefCell::new(Vec::new()) };
}

/// The bytes of a number in a message, or of what is written around a text.
const HEAD_FIELD_BYTES: usize = 8;

/// One response to a request. Most models send one; decoupled models send as many as they like.
#[derive(Clone, Debug)]
pub enum Response {
    /// Tensors; more responses follow.
    Part(Recycled<InferResponse>),
    /// Tensors, and nothing after them.
    Final(Recycled<InferResponse>),
    /// Nothing follows what was sent before.
    End,
    /// An error in the place of tensors.
    Failed {
        /// Why there are no tensors.
        error: Status,
        /// Whether more responses follow nevertheless.
        more: bool,
        /// Whether no queue accepted the request. Then the client gets the error in the same form as for a model that does not exist.
        refused: bool,
        /// As in [`InferResponse`].
        permit: Option<Arc<ResponsePermit>>,
    },
}

/// The content of a response: tensors, the model that made them, and the id of the request.
#[derive(Clone, Debug, Default)]
pub struct InferResponse {
    /// Name of the model that answered.
    pub model: Name,
    /// Version of the model that answered.
    pub version: Name,
    /// The request's own id.
    pub id: Name,
    /// Parameters the model added.
    pub parameters: Parameters,
    /// Output tensors in the order the model made them.
    pub outputs: Outputs,
    /// The notices of outputs whose memory the server chose. They tell the client where the outputs are.
    pub lease_notices: Vec<LeaseNotice>,
    /// Its permit in the window of its request, while it waits for the client.
    pub permit: Option<Arc<ResponsePermit>>,
}

/// The outputs of a response. A list of one or two needs no allocation.
pub type Outputs = SmallVec<[Output; 2]>;

/// One output tensor.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its index in the model's configuration. Outputs that the server added come after those.
    pub index: usize,
    /// The model's name for it.
    pub name: Name,
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    /// Its bytes, wherever they are.
    pub data: Buffer,
    /// Whether the bytes already lie in memory that the client named, so that the response carries no bytes of this output.
    pub placed: bool,
}

impl Response {
    /// An error in the place of a response; more responses follow.
    pub fn failed_part(error: Status) -> Response {
        Response::Failed { error, more: true, refused: false, permit: None }
    }

    /// A last response that says why there is no result.
    pub fn failed(error: Status) -> Response {
        Response::Failed { error, more: false, refused: false, permit: None }
    }

    /// The only response to a request that no queue accepted.
    pub fn refused(error: Status) -> Response {
        Response::Failed { error, more: false, refused: true, permit: None }
    }

    /// Whether no further response follows.
    pub fn is_last(&self) -> bool {
        match self {
            Response::Part(_) => false,
            Response::Final(_) | Response::End => true,
            Response::Failed { more, .. } => !more,
        }
    }

    /// Its tensors or its error; `None` for an end, which has neither.
    pub fn into_content(self) -> Option<Result<Recycled<InferResponse>, Status>> {
        match self {
            Response::Part(tensors) | Response::Final(tensors) => Some(Ok(tensors)),
            Response::Failed { error, .. } => Some(Err(error)),
            Response::End => None,
        }
    }

    /// Takes the permit out, for a caller that keeps a part of the response.
    pub fn take_permit(&mut self) -> Option<Arc<ResponsePermit>> {
        match self {
            Response::Part(tensors) | Response::Final(tensors) => tensors.permit.take(),
            Response::Failed { permit, .. } => permit.take(),
            Response::End => None,
        }
    }

    /// As [`InferResponse::inline_bytes`].
    pub fn inline_bytes(&self) -> usize {
        match self {
            Response::Part(tensors) | Response::Final(tensors) => tensors.inline_bytes(),
            Response::End | Response::Failed { .. } => 0,
        }
    }

    /// Bytes of its outputs, wherever they lie.
    pub fn output_bytes(&self) -> usize {
        match self {
            Response::Part(tensors) | Response::Final(tensors) => {
                tensors.outputs.iter().map(|output| output.data.len()).sum()
            }
            Response::End | Response::Failed { .. } => 0,
        }
    }
}

impl InferResponse {
    /// The parts of the message whose size a client or model chooses, in bytes: tensors, and the request's id.
    pub fn inline_bytes(&self) -> usize {
        self.tensor_bytes() + self.id.len()
    }

    /// The bytes of the tensors in the message.
    pub fn tensor_bytes(&self) -> usize {
        self.outputs.iter().filter(|output| !output.placed).map(|output| output.data.len()).sum()
    }

    /// About the bytes of everything else in the message: the request's id, names, parameters and dimensions.
    pub fn head_bytes(&self) -> usize {
        let texts = self.id.len() + self.model.len() + self.version.len();
        let parameters = self.parameters.iter().map(|(key, value)| match value {
            Parameter::String(text) => key.len() + text.len() + HEAD_FIELD_BYTES,
            Parameter::Bool(_) | Parameter::Int(_) | Parameter::Double(_) => key.len() + HEAD_FIELD_BYTES,
        });
        let output = |output: &Output| output.name.len() + (1 + output.shape.len()) * HEAD_FIELD_BYTES;
        texts + parameters.sum::<usize>() + self.outputs.iter().map(output).sum::<usize>()
    }
}

impl Recycle for InferResponse {
    fn clear(&mut self) {
        let InferResponse { model, version, id, parameters, outputs, lease_notices, permit } = self;
        for name in [model, version, id] {
            *name = Name::default();
        }
        *parameters = Parameters::new();
        clear_list(outputs);
        *lease_notices = Vec::new();
        *permit = None;
    }

    fn free_list() -> &'static LocalKey<FreeList<InferResponse>> {
        &FREE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expected: [usize; 2], change: impl FnOnce(&mut InferResponse)) {
        let mut response =
            InferResponse { id: "id".into(), model: "m".into(), version: "1".into(), ..InferResponse::default() };
        change(&mut response);
        assert_eq!([response.head_bytes(), response.tensor_bytes()], expected);
        assert_eq!(response.inline_bytes(), expected[1] + 2);
    }

    fn output(placed: bool) -> Output {
        let (shape, data) = (Shape::from_slice(&[2, 5]), Buffer::from(vec![0u8; 10]));
        Output { index: 0, name: "OUT".into(), datatype: DataType::Uint8, shape, data, placed }
    }

    #[test]
    fn all_parts_of_a_message_are_counted() {
        check([4, 0], |_| {});
        check([4 + 1 + 8, 0], |one| one.parameters.insert("k", Parameter::Int(1)));
        check([4 + 1 + 5 + 8, 0], |one| one.parameters.insert("k", Parameter::String("value".into())));
        check([4 + 3 + 3 * 8, 10], |one| one.outputs.push(output(false)));
        check([4 + 3 + 3 * 8, 0], |one| one.outputs.push(output(true)));
    }
}
