//! How is the outcome of a call told?

use std::os::fd::OwnedFd;

use nerite_api::codes;
use nerite_request::Status;
use nerite_wire::proto::session::{encode_answer, v1};
use v1::server_message::Answer;

use crate::socket::Packet;

/// gRPC's number for a state that does not allow the call: the prepared inference is stale or unknown, and nothing was run.
pub(crate) const FAILED_PRECONDITION: u32 = 9;
/// gRPC's number for a caller who may not.
pub(crate) const PERMISSION_DENIED: u32 = 7;
/// gRPC's number for too many of something.
pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;

/// What a call brings about.
pub(crate) enum CallOutcome {
    /// One answer, with the descriptors it speaks of.
    Answer(Answer, Vec<OwnedFd>),
    /// Answers come, or came, by themselves.
    UnderWay,
}

impl From<Answer> for CallOutcome {
    fn from(answer: Answer) -> CallOutcome {
        CallOutcome::Answer(answer, Vec::new())
    }
}

/// A refusal with a number of its own, which no [`Status`] has.
pub(crate) fn error_packet(id: u64, code: u32, message: String) -> Packet {
    let answer = Some(Answer::Error(v1::Error { code, message }));
    let message = v1::ServerMessage { id, answer, ..v1::ServerMessage::default() };
    Packet { bytes: encode_answer(&message), ..Packet::default() }
}

/// An answer as a packet.
pub(crate) fn packet(id: u64, outcome: Result<CallOutcome, Status>) -> Option<Packet> {
    let (message, descriptors) = match outcome {
        Ok(CallOutcome::UnderWay) => return None,
        Ok(CallOutcome::Answer(answer, descriptors)) => {
            (v1::ServerMessage { id, answer: Some(answer), ..v1::ServerMessage::default() }, descriptors)
        }
        Err(status) => (failure(id, &status), Vec::new()),
    };
    Some(Packet { bytes: encode_answer(&message), descriptors, ..Packet::default() })
}

/// A failure as a message.
pub(crate) fn failure(id: u64, status: &Status) -> v1::ServerMessage {
    let error = v1::Error { code: codes::grpc_status(status.code), message: status.message.clone() };
    v1::ServerMessage { id, answer: Some(Answer::Error(error)), ..v1::ServerMessage::default() }
}

/// A failure of no call, as a packet.
pub(crate) fn failure_packet(status: &Status) -> Packet {
    Packet { bytes: encode_answer(&failure(0, status)), ..Packet::default() }
}

/// What the client is told of a lease; `descriptor` as long as nobody has taken it out of the loan.
pub(crate) fn lease_message(loan: &nerite_api::BorrowedLease) -> v1::Lease {
    let (name, byte_size) = (loan.lease.name().to_string(), loan.lease.byte_size() as u64);
    v1::Lease { name, byte_size, descriptor: loan.descriptor.is_some() }
}
