//! How is the same inference run many times, each time with a small packet?

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nerite_wire::proto::session::v1;
use v1::client_message::Call;
use v1::server_message::Answer as Reply;

use crate::inference::read_response;
use crate::session::{Answer, Waiter, refusal};
use crate::trace::Trace;
use crate::{Error, PreparedRequest, Request, Response, Session};

/// The code of the server's error for a prepared inference that does not exist any more. The server has run nothing then.
const STALE: u32 = 9;
/// The most calls in one packet. Further calls are sent in other packets.
const CALLS_MAX: usize = 32;

/// An inference that the server has read and checked. Inputs and outputs lie in the windows that the request named. Each call reads the inputs anew. Cloning is
/// cheap. When the last clone is dropped, the server drops the prepared inference.
///
/// After a reload of the model, or a change of a region, the client prepares the inference again.
///
/// ```no_run
/// use nerite_client::{DataType, Request, Session};
///
/// # async fn call(session: Session) -> Result<(), nerite_client::Error> {
/// let lease = session.borrow(128).await?;
/// let request = Request::new("identity_int32")
///     .input_in_window("INPUT0", DataType::Int32, &[16], lease.window(0, 64))
///     .output_in_window("OUTPUT0", lease.window(64, 64));
/// let prepared = session.prepare(&request).await?;
/// for number in 0..1000 {
///     lease.write(0, &[number; 16])?;
///     prepared.call().await?;
///     assert_eq!(lease.view::<i32>(64, 16)?.to_vec(), [number; 16]);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Prepared(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    session: Session,
    infer: v1::Infer,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` if the inference has to be prepared again.
    handle: Option<Handle>,
    /// A response that later calls will probably have too. The inference is prepared again with it, so that the server does not have to send it again.
    seen: Option<Arc<Expected>>,
}

/// The number of the prepared inference at the server, and the response that it was prepared with.
#[derive(Clone, Debug)]
struct Handle {
    number: u64,
    expected: Option<Arc<Expected>>,
}

/// A response that the server knows. Instead of the same response, it sends a short answer.
#[derive(Debug)]
struct Expected {
    bytes: Bytes,
    response: Response,
}

impl Session {
    /// Makes the server read and check a request once, for any number of calls. If the server refuses the request, this returns the error.
    pub async fn prepare(&self, request: &Request) -> Result<Prepared, Error> {
        let infer = v1::Infer { trace: None, ..PreparedRequest::new(request, &[]).0 };
        let prepared = Prepared(Arc::new(Shared { session: self.clone(), infer, state: Mutex::default() }));
        prepared.handle().await?;
        Ok(prepared)
    }

    /// Runs many prepared inferences of this session, up to 32 in each packet. Returns one outcome for each, in their order.
    pub async fn call_many(&self, calls: &[&Prepared]) -> Result<Vec<Result<Response, Error>>, Error> {
        if calls.iter().any(|one| !one.0.session.is(self)) {
            return Err(Error::Session("a prepared inference of another session".to_owned()));
        }
        let mut outcomes = Vec::with_capacity(calls.len());
        for calls in calls.chunks(CALLS_MAX) {
            let mut handles = Vec::with_capacity(calls.len());
            for call in calls {
                handles.push(call.handle().await?);
            }
            let further = handles.iter().skip(1).map(|one| one.number).collect();
            let handle = handles.first().map_or(0, |one| one.number);
            let packet = v1::CallPrepared { handle, further, trace: None };
            let waiting = self.send_many(Call::CallPrepared(packet), calls.len()).await?;
            for ((call, handle), waiter) in calls.iter().zip(&handles).zip(waiting) {
                outcomes.push(match call.outcome(handle, waiter).await {
                    Ok(Some(response)) => Ok(response),
                    Ok(None) => call.call().await,
                    Err(error) => Err(error),
                });
            }
        }
        Ok(outcomes)
    }
}

impl Prepared {
    /// Runs the inference once. If it is called again before the first call is answered, both calls write to the same outputs.
    pub async fn call(&self) -> Result<Response, Error> {
        self.call_in(None).await
    }

    /// As [`Prepared::call`], for a call within a trace. The arguments are those of [`Request::trace_parent`] and [`Request::trace_state`], which may be empty.
    pub async fn call_traced(&self, trace_parent: &str, trace_state: &str) -> Result<Response, Error> {
        self.call_in(Trace::of(trace_parent, trace_state)).await
    }

    async fn call_in(&self, trace: Option<Trace<'_>>) -> Result<Response, Error> {
        // The second attempt is made only if the server said that nothing was run.
        for _ in 0..2 {
            let handle = self.handle().await?;
            let trace = trace.map(|trace| Box::new(trace.message()));
            let call = Call::CallPrepared(v1::CallPrepared { handle: handle.number, further: Vec::new(), trace });
            let waiter = self.0.session.send(call).await?;
            if let Some(response) = self.outcome(&handle, waiter).await? {
                return Ok(response);
            }
        }
        Err(Error::Session("the inference became stale twice in a row; its model or memory keeps changing".to_owned()))
    }

    /// The response. `None` if the handle was stale.
    async fn outcome(&self, handle: &Handle, waiter: Waiter) -> Result<Option<Response>, Error> {
        match waiter.answer().await? {
            Answer::Reply(Reply::Called(_)) => {
                let expected = handle.expected.as_ref().map(|expected| expected.response.clone());
                expected.map(Some).ok_or_else(|| {
                    Error::Answer("the server refers to a response that this client does not have".to_owned())
                })
            }
            Answer::Reply(Reply::Error(error)) if error.code == STALE => {
                let mut state = self.lock();
                if state.handle.as_ref().is_some_and(|now| now.number == handle.number) {
                    state.handle = None;
                }
                Ok(None)
            }
            Answer::Reply(Reply::Error(error)) => Err(refusal(error)),
            Answer::Inference { response, placed } => {
                let bytes = response.clone();
                let is_here = !placed.is_empty();
                let response = read_response(response, placed)?;
                // Once a response is expected, a different one does not replace it: if responses change, expecting them gains nothing.
                if handle.expected.is_none() && !is_here && response.outputs.iter().all(crate::Output::is_placed) {
                    self.lock().seen = Some(Arc::new(Expected { bytes, response: response.clone() }));
                }
                Ok(Some(response))
            }
            other => Err(other.unexpected()),
        }
    }

    /// The server's handle. The inference is prepared if there is none, or if there is a response to expect.
    async fn handle(&self) -> Result<Handle, Error> {
        let (expected, old) = {
            let state = self.lock();
            match (state.handle.clone(), state.seen.clone()) {
                (Some(handle), None) => return Ok(handle),
                (Some(handle), Some(_)) if handle.expected.is_some() => return Ok(handle),
                (old, seen) => (seen, old.map(|old| old.number)),
            }
        };
        let bytes = expected.as_ref().map(|expected| expected.bytes.clone()).unwrap_or_default();
        let prepare = v1::Prepare { infer: Some(self.0.infer.clone()), expected: bytes };
        let Answer::Reply(Reply::Prepared(prepared)) = self.0.session.call(Call::Prepare(prepare)).await? else {
            return Err(Error::Answer("no handle in the answer".to_owned()));
        };
        let handle = Handle { number: prepared.handle, expected };
        // Another caller may have made a handle at the same time. One handle is enough. Calls with the replaced handle get the answer that it is stale.
        let replaced = self.lock().handle.replace(handle.clone()).map(|replaced| replaced.number);
        let handles: Vec<u64> = replaced.or(old).into_iter().collect();
        if !handles.is_empty() {
            self.0.session.send_unanswered(Call::Release(v1::Release { handles }));
        }
        Ok(handle)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = &state.handle {
            self.session.send_unanswered(Call::Release(v1::Release { handles: vec![handle.number] }));
        }
    }
}
