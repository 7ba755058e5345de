//! How do outputs of requests over HTTP and gRPC reach leases that the server chooses?
//!
//! ```text
//!   Placing ── key ──► request ──► server: a lease for each output ──► response names it ── settle ──► Output over the lease
//!      └────── dropped before the last answer: Abandon, and what was placed meanwhile comes back
//! ```

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nerite_memory::Extent;
use nerite_request::RegionRef;
use nerite_wire::proto::session::v1;
use prost::Message as _;
use v1::client_message::Call;
use v1::server_message::Answer as Told;

use super::calls::Answer;
use super::limits::DESCRIPTORS_MAX;
use super::{Lease, Session, Shared};
use crate::{Error, Request, Response};

/// Leases that responses named, each with the tag of its request, until they are returned. The lock is held while packets about
/// leases are sent: what is abandoned must not come back a second time, for it may be lent again in between, and what was
/// returned may be named again at once.
#[derive(Default)]
pub(super) struct Tags {
    last: AtomicU64,
    held: Mutex<HashMap<String, u64>>,
}

impl Tags {
    fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn hold(&self, name: &str, tag: u64) {
        self.lock().insert(name.to_owned(), tag);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outputs of one request, or of all requests of a stream, that the server is to place.
pub(crate) struct Placing {
    session: Session,
    key: String,
    tag: u64,
    is_over: bool,
}

impl Placing {
    /// That of a request which asks for it.
    pub(crate) fn of(request: &Request) -> Option<Placing> {
        request.session.as_ref().map(Placing::new)
    }

    /// A new one, for answers yet to come.
    pub(crate) fn new(session: &Session) -> Placing {
        let tag = session.0.tags.next();
        Placing { session: session.clone(), key: format!("{}-{tag}", session.0.key), tag, is_over: false }
    }

    /// Whether it is one of this session.
    pub(crate) fn is_with(&self, session: &Session) -> bool {
        Arc::ptr_eq(&self.session.0, &session.0)
    }

    /// What outputs name as their region.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Nothing more comes that anybody would have to give up.
    pub(crate) fn end(mut self) {
        self.is_over = true;
    }

    /// Gives the outputs of a response that lie in leases their bytes.
    pub(crate) async fn settle(&self, response: &mut Response) -> Result<(), Error> {
        let shared = &self.session.0;
        let told = || response.outputs.iter().filter_map(|output| output.told.as_ref());
        let missing: Vec<_> =
            told().map(|place| &place.name).filter(|name| !shared.mapped.has(name)).map(ToString::to_string).collect();
        for names in missing.chunks(DESCRIPTORS_MAX) {
            self.session.fetch(names.to_vec()).await?;
        }
        for output in &mut response.outputs {
            let Some(RegionRef { name, offset, byte_size }) = output.told.take() else { continue };
            let memory = shared.mapped.find(&name, None, 0).map_err(Error::Answer)?;
            let (offset, byte_size) = (offset as usize, byte_size as usize);
            let extent = Extent::new(offset, byte_size, memory.byte_size())
                .map_err(|error| Error::Answer(format!("output '{}' in a lease that {error}", output.name)))?;
            shared.tags.hold(&name, self.tag);
            output.data = Some(Lease::new(shared, name.into(), &memory).buffer_of(extent));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Placing {
    /// Without the key, which is as good as the session.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Placing({:?}, tag {})", self.session, self.tag)
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let shared = &self.session.0;
        let held = shared.tags.lock();
        let kept = held.iter().filter(|(_, tag)| **tag == self.tag).map(|(name, _)| name.clone()).collect();
        let abandon = v1::Abandon { tag: self.tag, kept };
        let message = v1::ClientMessage { id: 0, returned: Vec::new(), call: Some(Call::Abandon(abandon)) };
        // Best effort: what cannot be said now, the session's end says.
        let _ = shared.socket.send_now(&message.encode_to_vec());
    }
}

impl Session {
    /// Maps leases that a response named.
    async fn fetch(&self, names: Vec<String>) -> Result<(), Error> {
        match self.ask(Call::Fetch(v1::Fetch { names })).await? {
            // They were mapped as they came in.
            Answer::Told(Told::Leases(_)) => Ok(()),
            other => Err(other.unexpected()),
        }
    }
}

impl Shared {
    /// Sends a packet if there is room, and with it what it returns.
    pub(super) fn send_now(&self, message: &v1::ClientMessage, encoded: &[u8]) -> io::Result<()> {
        let mut held = self.tags.lock();
        self.socket.send_now(encoded)?;
        for name in &message.returned {
            held.remove(name);
        }
        Ok(())
    }

    /// Maps leases without taking them: they are taken by whoever has the response that named them.
    pub(super) fn map_all(
        self: &Arc<Shared>,
        leases: &v1::Leases,
        descriptors: &mut impl Iterator<Item = std::os::fd::OwnedFd>,
    ) -> Result<(), String> {
        for lease in &leases.leases {
            let descriptor = if lease.descriptor { descriptors.next() } else { None };
            self.mapped.find(&lease.name, descriptor, lease.byte_size as usize)?;
        }
        Ok(())
    }
}
