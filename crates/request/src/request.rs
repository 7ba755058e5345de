//! What does a model get?

use nerite_memory::Slot;
use nerite_tensor::Name;
use smallvec::SmallVec;

use crate::{Cancel, Inputs, Parameters, Reply, Sequence};

/// A request whose tensors are memory, but are not checked against its model. One part of the server sends it to another.
#[derive(Debug)]
pub struct Request {
    /// The sender's own name for the request; may be empty.
    pub id: Name,
    /// Input tensors, in the sender's order.
    pub inputs: Inputs,
    /// Outputs wanted; empty for all.
    pub wanted: Vec<Wanted>,
    /// Priority, 0 for the model's default.
    pub priority: u64,
    /// Longest time in the queue in µs, 0 for the model's default. For some models it limits the run as well.
    pub timeout_us: u64,
    /// The sequence it belongs to.
    pub sequence: Sequence,
    /// Parameters for the model.
    pub parameters: Parameters,
    /// Set when the answer is not needed any more.
    pub cancel: Cancel,
    /// Takes the responses.
    pub reply: Reply,
}

/// An admitted request: everything was checked against the model, and names were replaced by memory.
#[derive(Debug)]
pub struct AdmittedRequest {
    /// The client's own name for the request; may be empty.
    pub id: Name,
    /// Rows in it: the batch dimension, 1 for models without one.
    pub rows: u32,
    /// Input tensors, in the order of the model's configuration.
    pub inputs: Inputs,
    /// Outputs wanted, each at most once, and at least one: "all" was replaced by their names.
    pub wanted: WantedOutputs,
    /// Priority, 0 for the model's default.
    pub priority: u64,
    /// Longest time in the queue in µs, 0 for the model's default. For some models it limits the run as well.
    pub timeout_us: u64,
    /// The sequence it belongs to.
    pub sequence: Sequence,
    /// Parameters for the model.
    pub parameters: Parameters,
    /// Set when the client went away.
    pub cancel: Cancel,
    /// Takes the responses.
    pub reply: Reply,
}

/// The outputs that a request wants. A list of one or two needs no allocation.
pub type WantedOutputs = SmallVec<[Wanted; 2]>;

/// One output wanted, and the memory for it.
#[derive(Debug)]
pub struct Wanted {
    /// The model's name for it.
    pub name: Name,
    /// The client's own memory for it; `None` when the bytes travel in the response.
    pub slot: Option<Slot>,
}

impl Request {
    /// A request for these outputs, or for all if there are none; everything else has its default.
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
