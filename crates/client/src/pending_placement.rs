//! How do outputs of requests over HTTP and gRPC get into leases that the server chooses?
//!
//! ```text
//!   PendingPlacement ── key ──► request ──► server: a lease for each output ──► response names it ── settle ──► Output over the lease
//!           └─ dropped before the last answer: Abandon, and the server takes the leases back
//! ```

use crate::{Error, Request, Response, Session};

/// The outputs of one request, or of all requests of a stream, that the server is to place in leases.
pub(crate) struct PendingPlacement {
    session: Session,
    key: String,
    tag: u64,
    is_over: bool,
}

impl PendingPlacement {
    /// The placement for a request with leased outputs. `None` if the request has none.
    pub(crate) fn of(request: &Request) -> Option<PendingPlacement> {
        request.session.as_ref().map(PendingPlacement::new)
    }

    /// A placement for answers that have not arrived yet.
    pub(crate) fn new(session: &Session) -> PendingPlacement {
        let (tag, key) = session.new_tag();
        PendingPlacement { session: session.clone(), key, tag, is_over: false }
    }

    /// Whether the outputs are placed in leases of this session.
    pub(crate) fn is_with(&self, session: &Session) -> bool {
        self.session.is(session)
    }

    /// The name that these outputs give as their region.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Ends the placement after the last answer, so that dropping it abandons nothing.
    pub(crate) fn end(mut self) {
        self.is_over = true;
    }

    /// Replaces outputs of a response that lie in leases by outputs over the mapped leases.
    pub(crate) async fn settle(&self, response: &mut Response) -> Result<(), Error> {
        let leased_at = response.outputs.iter().filter_map(|output| output.leased_at.as_ref());
        self.session.fetch(leased_at.map(|place| &place.name)).await?;
        for output in &mut response.outputs {
            let Some(place) = output.leased_at.take() else { continue };
            output.data = Some(self.session.take(place, self.tag, &output.name)?);
        }
        Ok(())
    }
}

impl std::fmt::Debug for PendingPlacement {
    /// Omits the key, because it gives access to the session's quota.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingPlacement({:?}, tag {})", self.session, self.tag)
    }
}

impl Drop for PendingPlacement {
    fn drop(&mut self) {
        if !self.is_over {
            self.session.abandon(self.tag);
        }
    }
}
