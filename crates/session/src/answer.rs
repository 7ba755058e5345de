//! How is the result of a call reported?

use std::os::fd::OwnedFd;

use nerite_api::codes;
use nerite_request::Status;
use nerite_wire::proto::session::{encode_answer, v1};
use v1::server_message::Answer;

use crate::socket::Packet;

/// gRPC's code FAILED_PRECONDITION: the prepared inference is stale or unknown, and nothing was run.
pub(crate) const FAILED_PRECONDITION: u32 = 9;
/// gRPC's code PERMISSION_DENIED.
pub(crate) const PERMISSION_DENIED: u32 = 7;
/// gRPC's code RESOURCE_EXHAUSTED.
pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;

/// The result of a call.
pub(crate) enum CallOutcome {
    /// One answer, and the descriptors that belong to it.
    Answer(Answer, Vec<OwnedFd>),
    /// The answers are sent separately, or were sent already.
    UnderWay,
}

impl From<Answer> for CallOutcome {
    fn from(answer: Answer) -> CallOutcome {
        CallOutcome::Answer(answer, Vec::new())
    }
}

/// An error packet with a code that no [`Status`] has.
pub(crate) fn error_packet(id: u64, code: u32, message: String) -> Packet {
    let answer = Some(Answer::Error(v1::Error { code, message }));
    let message = v1::ServerMessage { id, answer, ..v1::ServerMessage::default() };
    Packet { bytes: encode_answer(&message), ..Packet::default() }
}

/// A packet with the result of a call.
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

/// A message with an error.
pub(crate) fn failure(id: u64, status: &Status) -> v1::ServerMessage {
    let error = v1::Error { code: codes::grpc_status(status.code), message: status.message.clone() };
    v1::ServerMessage { id, answer: Some(Answer::Error(error)), ..v1::ServerMessage::default() }
}

/// A packet with an error that belongs to no call.
pub(crate) fn failure_packet(status: &Status) -> Packet {
    Packet { bytes: encode_answer(&failure(0, status)), ..Packet::default() }
}

/// The message about a lease. It says whether a descriptor comes with it, which is so if `borrowed` still has one.
pub(crate) fn lease_message(borrowed: &nerite_api::BorrowedLease) -> v1::Lease {
    let (name, byte_size) = (borrowed.lease.name().to_string(), borrowed.lease.byte_size() as u64);
    v1::Lease { name, byte_size, descriptor: borrowed.descriptor.is_some() }
}
