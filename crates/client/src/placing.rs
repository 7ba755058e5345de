//! How do outputs of requests over HTTP and gRPC reach leases that the server chooses?
//!
//! ```text
//!   Placing ── key ──► request ──► server: a lease for each output ──► response names it ── settle ──► Output over the lease
//!      └────── dropped before the last answer: Abandon, and what was placed meanwhile comes back
//! ```

use crate::{Error, Request, Response, Session};

/// The outputs of one request, or of all requests of a stream, that the server is to place.
pub(crate) struct Placing {
    session: Session,
    key: String,
    tag: u64,
    is_over: bool,
}

impl Placing {
    /// The placing of a request that asks for it.
    pub(crate) fn of(request: &Request) -> Option<Placing> {
        request.session.as_ref().map(Placing::new)
    }

    /// A new one, for answers yet to come.
    pub(crate) fn new(session: &Session) -> Placing {
        let (tag, key) = session.new_tag();
        Placing { session: session.clone(), key, tag, is_over: false }
    }

    /// Whether it is one of this session.
    pub(crate) fn is_with(&self, session: &Session) -> bool {
        self.session.is(session)
    }

    /// The name that outputs give as their region.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Nothing more comes that anybody would have to give up.
    pub(crate) fn end(mut self) {
        self.is_over = true;
    }

    /// Gives the outputs of a response that lie in leases their bytes.
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

impl std::fmt::Debug for Placing {
    /// Omits the key, because it gives access to the session's quota.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Placing({:?}, tag {})", self.session, self.tag)
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        if !self.is_over {
            self.session.abandon(self.tag);
        }
    }
}
