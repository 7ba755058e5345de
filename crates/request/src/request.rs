//! What does a model get?

use nerite_tensor::Name;

use crate::{Cancel, Inputs, Parameters, Reply, Sequence, SequenceOwner, Wanted, WantedOutputs};

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
    /// The client for whom the request is made.
    pub client: Client,
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
    /// Outputs wanted, each at most once. Never empty: a client's empty list, which means all outputs, was replaced by all outputs of the configuration.
    pub wanted: WantedOutputs,
    /// Priority, 0 for the model's default.
    pub priority: u64,
    /// Longest time in the queue in µs, 0 for the model's default. For some models it limits the run as well.
    pub timeout_us: u64,
    /// The sequence it belongs to.
    pub sequence: Sequence,
    /// Who sent it.
    pub client: Client,
    /// Parameters for the model.
    pub parameters: Parameters,
    /// Set when the client went away.
    pub cancel: Cancel,
    /// Takes the responses.
    pub reply: Reply,
}

/// The sender of a request, as numbers. A model's waiting requests are served fairly by peer and connection. The default is the server itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// The number of the peer.
    pub peer: u64,
    /// The number of the connection.
    pub flow: u64,
    /// The owner of its sequences.
    pub owner: SequenceOwner,
}

impl Client {
    /// The client of all these requests. If they have several clients, the result is the server itself, because work for all of them is charged to no single
    /// client. Several clients with one owner of sequences keep that owner.
    pub fn of_all(mut clients: impl Iterator<Item = Client>) -> Client {
        let first = clients.next().unwrap_or_default();
        clients.fold(first, |all, next| match next {
            next if next == all => all,
            next if next.owner == all.owner => Client { owner: all.owner, ..Client::default() },
            _ => Client::default(),
        })
    }
}

impl AdmittedRequest {
    /// A request without tensors that nobody can cancel. Everything but the reply has its default. Other requests are made from this one by struct update, so
    /// a new field needs a default only here.
    pub fn new(reply: Reply) -> AdmittedRequest {
        AdmittedRequest::cancelled_by(Cancel::new(), reply)
    }

    /// As [`AdmittedRequest::new`], but `cancel` cancels the request.
    #[inline]
    pub fn cancelled_by(cancel: Cancel, reply: Reply) -> AdmittedRequest {
        AdmittedRequest {
            id: Name::default(),
            rows: 1,
            inputs: Inputs::default(),
            wanted: WantedOutputs::default(),
            priority: 0,
            timeout_us: 0,
            sequence: Sequence::default(),
            client: Client::default(),
            parameters: Parameters::new(),
            cancel,
            reply,
        }
    }
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
            client: Client::default(),
            parameters: Parameters::new(),
            cancel: Cancel::new(),
            reply,
        }
    }
}
