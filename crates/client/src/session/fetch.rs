//! How does a session get the leases that responses over other protocols name, and how does it abandon them?

use std::sync::Arc;

use nerite_memory::{Buffer, Extent};
use nerite_request::{Name, RegionRef};
use nerite_wire::proto::session::v1;
use prost::Message as _;
use v1::client_message::Call;
use v1::server_message::Answer as Reply;

use super::Session;
use super::calls::Answer;
use super::limits::DESCRIPTORS_MAX;
use crate::Error;

impl Session {
    /// A new tag, and the text that outputs of its requests name as their region.
    pub(crate) fn new_tag(&self) -> (u64, String) {
        let tag = self.0.tags.next();
        (tag, format!("{}-{tag}", self.0.key))
    }

    /// Whether it is the same session.
    pub(crate) fn is(&self, other: &Session) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Maps the leases with these names, except those that are mapped already.
    pub(crate) async fn fetch(&self, names: impl Iterator<Item = &Name>) -> Result<(), Error> {
        let missing: Vec<String> = names.filter(|name| !self.0.mapped.has(name)).map(ToString::to_string).collect();
        for names in missing.chunks(DESCRIPTORS_MAX) {
            match self.call(Call::Fetch(v1::Fetch { names: names.to_vec() })).await? {
                // They were mapped when the answer was received.
                Answer::Reply(Reply::Leases(_)) => {}
                other => return Err(other.unexpected()),
            }
        }
        Ok(())
    }

    /// The bytes of an output in a mapped lease, which a response to a request of this tag named. The lease is returned when the last reference to the bytes is
    /// dropped.
    pub(crate) fn take(&self, place: RegionRef, tag: u64, output: &str) -> Result<Buffer, Error> {
        let shared = &self.0;
        let RegionRef { name, offset, byte_size } = place;
        let memory = shared.mapped.find(&name, None, 0).map_err(Error::Answer)?;
        let extent = Extent::new(offset as usize, byte_size as usize, memory.byte_size())
            .map_err(|error| Error::Answer(format!("output '{output}' in a lease that {error}")))?;
        shared.tags.hold(&name, tag);
        Ok(shared.lend(name.into(), &memory).buffer_of(extent))
    }

    /// Tells the server that no more answers to requests of this tag are read. The server takes back the leases of their outputs, except those that a response
    /// has named.
    pub(crate) fn abandon(&self, tag: u64) {
        let shared = &self.0;
        let held = shared.tags.lock();
        let kept = held.iter().filter(|(_, of)| **of == tag).map(|(name, _)| name.clone()).collect();
        let abandon = v1::Abandon { tag, kept };
        let message = v1::ClientMessage { id: 0, returned: Vec::new(), call: Some(Call::Abandon(abandon)) };
        // Best effort: if it cannot be sent now, the end of the session has the same effect.
        let _ = shared.socket.send_now(&message.encode_to_vec());
    }
}
