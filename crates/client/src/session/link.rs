//! What do the handles of one session share, and how is a received packet handled?

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use nerite_shm::AdoptedLease;
use nerite_wire::proto::session::{read_answer, v1};
use prost::Message as _;
use v1::server_message::Answer as Reply;

use super::calls::{Answer, Calls, OutputLease};
use super::lease::Lease;
use super::mapped::Mapped;
use super::returns::Returns;
use super::socket::Socket;
use super::tags::Tags;
use super::terms::SessionTerms;
use crate::Error;

/// The session itself. It lives as long as any handle, view or output of it.
pub(super) struct Shared {
    pub(super) socket: Socket,
    pub(super) endpoint: String,
    pub(super) terms: SessionTerms,
    /// The key of this session. Outputs of other protocols name it to be placed in the session's leases.
    pub(super) key: String,
    pub(super) calls: Calls,
    pub(super) mapped: Mapped,
    pub(super) returns: Returns,
    pub(super) tags: Tags,
}

impl Shared {
    /// Passes a received packet to the callers that wait for it.
    pub(super) fn dispatch(self: &Arc<Shared>, bytes: Bytes, descriptors: Vec<OwnedFd>) {
        self.dispatch_one(bytes, &mut descriptors.into_iter(), true);
    }

    /// Handles one message: a packet, or one of the `Answers` in it.
    fn dispatch_one(
        self: &Arc<Shared>,
        bytes: Bytes,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
        is_packet: bool,
    ) {
        let v1::ServerMessage { id, forgotten, more, answer } = match read_answer(bytes) {
            Ok(message) => message,
            Err(status) => return self.calls.fail(&status.message),
        };
        self.mapped.forget(&forgotten);
        let answer = match answer {
            None => return,
            Some(Reply::Answers(answers)) if is_packet => {
                return answers.messages.into_iter().for_each(|one| self.dispatch_one(one, descriptors, false));
            }
            // An error that belongs to no call is the reason why the session ends.
            Some(Reply::Error(error)) if id == 0 => return self.calls.fail(&error.message),
            Some(Reply::Leases(leases)) => {
                self.map_all(&leases, descriptors).map(|()| Answer::Reply(Reply::Leases(leases)))
            }
            Some(Reply::Lease(lease)) => self.adopt(lease, descriptors).map(Answer::Lease),
            Some(Reply::Inference(inference)) => {
                let place = |placed: v1::OutputLease| {
                    let v1::OutputLease { output, lease, offset, byte_size } = placed;
                    let lease = self.adopt(lease.unwrap_or_default(), descriptors)?;
                    Ok(OutputLease { output, lease, offset: offset as usize, byte_size: byte_size as usize })
                };
                let placed: Result<Vec<_>, String> = inference.placed.into_iter().map(place).collect();
                placed.map(|placed| Answer::Inference { response: inference.response, placed })
            }
            Some(reply) => Ok(Answer::Reply(reply)),
        };
        self.calls.give(id, answer.unwrap_or_else(Answer::Unreadable), more);
    }

    fn adopt(
        self: &Arc<Shared>,
        lease: v1::Lease,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Lease, String> {
        let v1::Lease { name, byte_size, descriptor } = lease;
        let missing = "a lease came without its descriptor";
        let descriptor = descriptor.then(|| descriptors.next().ok_or(missing)).transpose()?;
        let memory = self.mapped.find(&name, descriptor, byte_size as usize)?;
        Ok(self.lend(name, &memory))
    }

    /// A lease that is lent until its last handle, view and output is dropped.
    pub(super) fn lend(self: &Arc<Shared>, name: String, memory: &AdoptedLease) -> Lease {
        let name: Arc<str> = name.into();
        // Each handle, view and output keeps the session open, because the server takes the memory back when the session ends.
        let (returned, session, byte_size) = (Arc::clone(&name), Arc::clone(self), memory.byte_size());
        Lease::new(name, memory.with_release_callback(move || give_back(&session, &returned, byte_size)))
    }

    /// Sends a packet if there is room, with the leases that it returns.
    pub(super) fn send_now(&self, message: &v1::ClientMessage, encoded: &[u8]) -> io::Result<()> {
        let mut held = self.tags.lock();
        self.socket.send_now(encoded)?;
        for name in &message.returned {
            held.remove(name);
        }
        Ok(())
    }

    /// Maps leases, but does not lend them. `Session::take` lends them when the response that names them is read.
    fn map_all(
        self: &Arc<Shared>,
        leases: &v1::Leases,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<(), String> {
        for lease in &leases.leases {
            let descriptor = if lease.descriptor { descriptors.next() } else { None };
            self.mapped.find(&lease.name, descriptor, lease.byte_size as usize)?;
        }
        Ok(())
    }

    /// The error of a call whose session is over.
    pub(super) fn broken(&self, reason: &str) -> Error {
        Error::Broken { endpoint: self.endpoint.clone(), reason: reason.to_owned() }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.endpoint)
    }
}

/// Returns a lease to the server, now or with the next message.
fn give_back(session: &Shared, name: &str, byte_size: usize) {
    let Some(returned) = session.returns.add(name.to_owned(), byte_size) else { return };
    let message = v1::ClientMessage { id: 0, returned, call: None };
    if session.send_now(&message, &message.encode_to_vec()).is_err() {
        session.returns.put_back(message.returned);
    }
}
