//! What does a model answer?

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

use nerite_memory::Buffer;
use nerite_tensor::{DataType, Name, Shape};
use smallvec::SmallVec;

use crate::recycled::{FreeList, clear_list};
use crate::{LeaseNotice, Parameters, Recycle, Recycled, ResponsePermit, Status};

thread_local! {
    static FREE: FreeList<InferResponse> = const { RefCell::new(Vec::new()) };
}

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
        let tensors = self.outputs.iter().filter(|output| !output.placed).map(|output| output.data.len());
        tensors.sum::<usize>() + self.id.len()
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
