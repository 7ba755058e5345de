//! How are requests sent over a session?

use std::io;
use std::time::Instant;

use nerite_client::{Error, Lease, Prepared, PreparedRequest, Request, Session, http};
use tokio::runtime::Runtime;

use super::Times;
use crate::dataset::Sequenced;
use crate::options::{Memory, SessionCalls};
use crate::plan::Plan;

/// How the sessions of a measurement send requests.
#[derive(Clone, Debug)]
pub(crate) struct SessionKind {
    pub(crate) calls: SessionCalls,
    /// Where tensors lie. Each session borrows its own memory.
    pub(crate) memory: Memory,
    pub(crate) is_decoupled: bool,
    /// The name of system shared memory, which each session registers for itself.
    pub(crate) region: Option<String>,
}

/// One session, with a runtime of its own.
pub(crate) struct SessionLink {
    runtime: Runtime,
    session: Session,
    kind: SessionKind,
    /// By the step of the data.
    requests: Vec<Request>,
    encoded: Vec<PreparedRequest>,
    prepared: Vec<Prepared>,
    /// It is returned to the server when the last owner drops it.
    _lease: Option<Lease>,
}

impl SessionLink {
    /// Opens a session with the server at `address`, which is that of its HTTP, and gives it the memory of the requests.
    pub(crate) fn connect(address: &str, plan: &Plan, kind: &SessionKind) -> Result<SessionLink, Error> {
        let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = built.map_err(|error| Error::Session(format!("no runtime: {error}")))?;
        let opened = runtime.block_on(async {
            let session = http::Client::new(address)?.session().await?;
            let session = session.ok_or_else(|| {
                let cure = "NERITE_SESSION_SOCKET names another one";
                Error::Session(format!("the server at {address} has no session socket here; {cure}"))
            })?;
            let bytes = plan.memory_bytes();
            let (lease, requests) = match (kind.memory, &kind.region) {
                (Memory::Lease, _) => {
                    let own = session.borrow(bytes).await?;
                    plan.fill(&own)?;
                    let requests = plan.placed(own.name());
                    (Some(own), requests)
                }
                (_, Some(key)) => {
                    session.register_system_region(key, key, 0, bytes as u64).await?;
                    (None, plan.placed(key))
                }
                _ => (None, plan.inline()?),
            };
            let mut prepared = Vec::new();
            if kind.calls != SessionCalls::Plain {
                for request in &requests {
                    prepared.push(session.prepare(request).await?);
                }
            }
            Ok::<_, Error>((session, lease, requests, prepared))
        });
        let (session, lease, requests, prepared) = opened?;
        let encoded = requests.iter().map(|request| PreparedRequest::new(request, &[])).collect();
        Ok(SessionLink { runtime, session, kind: kind.clone(), requests, encoded, prepared, _lease: lease })
    }

    /// Sends the request of the step `at`, and receives its responses.
    pub(crate) fn exchange(&mut self, at: usize, sequenced: Option<Sequenced>) -> io::Result<Times> {
        let (start, mut first) = (Instant::now(), None);
        let done = self.runtime.block_on(async {
            if let Some(sequenced) = sequenced {
                let request = sequenced.part_of(&self.requests[at]);
                self.session.infer(&request).await?;
                return Ok((1, 1));
            }
            if self.kind.is_decoupled {
                let mut responses = self.session.infer_stream(&self.requests[at]).await?;
                let mut count = 0;
                while responses.next().await?.is_some() {
                    first.get_or_insert_with(Instant::now);
                    count += 1;
                }
                return Ok((1, count));
            }
            match self.kind.calls {
                SessionCalls::Plain => self.session.infer_prepared(&self.encoded[at]).await.map(|_| (1, 1)),
                SessionCalls::Prepared => self.prepared[at].call().await.map(|_| (1, 1)),
                SessionCalls::Batched(count) => {
                    let outcomes = self.session.call_many(&vec![&self.prepared[at]; count]).await?;
                    let answered = outcomes.into_iter().collect::<Result<Vec<_>, Error>>()?.len() as u32;
                    Ok((answered, answered))
                }
            }
        });
        let (requests, responses) = done.map_err(|error: Error| io::Error::other(error.to_string()))?;
        // As of perf_analyzer: the latency is that of the first response.
        let end = first.unwrap_or_else(Instant::now);
        // A session sends and receives a packet in one call each, so all of the time is a wait.
        Ok(Times { start, sent: start, first: end, end, requests, responses })
    }
}
