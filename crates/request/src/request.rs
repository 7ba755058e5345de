//! What does a model get to work on?

use nerite_memory::Slot;
use nerite_tensor::{Name, Tensor};
use smallvec::SmallVec;

use crate::{Cancel, Parameters, Reply, Sequence};

/// A request whose tensors are memory, not yet checked against its model: what one part of the server asks of another.
#[derive(Debug)]
pub struct Request {
    /// The asker's own name for the request; may be empty.
    pub id: Name,
    /// Input tensors, in the asker's order.
    pub inputs: Inputs,
    /// Outputs wanted; empty for all.
    pub wanted: Vec<Wanted>,
    /// Priority, 0 for the model's default.
    pub priority: u64,
    /// Longest time in the queue in µs, 0 for the model's default. Of some models it bounds the run as well.
    pub timeout_us: u64,
    /// The sequence it belongs to.
    pub sequence: Sequence,
    /// Parameters for the model.
    pub parameters: Parameters,
    /// Set when nobody wants the answer any more.
    pub cancel: Cancel,
    /// The way back.
    pub reply: Reply,
}

/// An admitted request: everything was checked against the model, and names have become memory.
#[derive(Debug)]
pub struct AdmittedRequest {
    /// The client's own name for the request; may be empty.
    pub id: Name,
    /// Rows in it: the batch dimension, 1 for models without one.
    pub rows: u32,
    /// Input tensors, in the client's order.
    pub inputs: Inputs,
    /// Outputs wanted, each at most once; never empty: "all" was spelled out at admission.
    pub wanted: WantedOutputs,
    /// Priority, 0 for the model's default.
    pub priority: u64,
    /// Longest time in the queue in µs, 0 for the model's default. Of some models it bounds the run as well.
    pub timeout_us: u64,
    /// The sequence it belongs to.
    pub sequence: Sequence,
    /// Parameters for the model.
    pub parameters: Parameters,
    /// Set when the client went away.
    pub cancel: Cancel,
    /// The way back.
    pub reply: Reply,
}

/// The tensors that go into a model. One of them takes no memory for the list.
pub type Inputs = SmallVec<[Tensor; 1]>;

/// The outputs that a request wants. Most often there is one, for which no memory is taken.
pub type WantedOutputs = SmallVec<[Wanted; 1]>;

/// One output wanted, and where.
#[derive(Debug)]
pub struct Wanted {
    /// The model's name for it.
    pub name: Name,
    /// The client's own memory for it; `None` when the bytes travel in the response.
    pub slot: Option<Slot>,
}

impl Request {
    /// A request for these outputs, or all, of the answers to which nothing else is special.
    pub fn new(inputs: impl Into<Inputs>, wanted: Vec<Wanted>, reply: Reply) -> Request {
        Request {
            id: Name::default(),
            inputs: inputs.into(),
            wanted,
            priority: 0,
            timeout_us: 0,
            sequence: Sequence::default(),
            parameters: Parameters::new(),
            cancel: Cancel::new(),
            reply,
        }
    }
}
