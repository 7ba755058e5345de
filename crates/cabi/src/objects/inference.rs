//! Which functions of a backend are called for the responses to its own request, and for the request's end?
//!
//! The server owns the request and the memory of its inputs from `TRITONSERVER_ServerInferAsync` until nothing refers
//! to them any more. Then the release function returns them to the backend, once. A refused request stays the
//! backend's.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use nerite_backend::{Outbox, requests_on_other_threads};
use nerite_locks::Mutex;
use nerite_memory::{MemoryOwner, Place, Slot};
use nerite_request::{Deliver, PlaceQuery, PolicyData, Reply, Request, RequestTrace, Response, Status, Wanted};

use super::callbacks;
use super::{Counted, InferenceRequest, InferenceResponse, Observer, OutputAllocations, Respond};
use crate::fault::Fault;
use crate::run_client::client_of_run;
use crate::table::Handle;

/// No response follows.
const COMPLETE_FINAL: u32 = 1;
/// The backend gets the whole request back.
const RELEASE_ALL: u32 = 1;

/// A request while it is the server's. The memory of its inputs and its reply keep it.
struct Inference {
    request: Arc<InferenceRequest>,
    handle: Handle<InferenceRequest>,
    number: u64,
    /// Whether it was refused, so that it was never the server's.
    is_refused: AtomicBool,
    // Dropped last, because the backend may end then.
    _counted: Counted,
}

/// Whether the backend waits for `TRITONSERVER_ServerInferAsync` to return.
#[derive(Default)]
enum Submission {
    /// It waits.
    #[default]
    Waits,
    /// It waits, and will get this error, and the trace.
    Refused(Status, Option<Arc<RequestTrace>>),
    /// It waits no more.
    Over,
}

/// The reply of the request.
struct InferenceReply {
    places: OutputAllocations,
    respond: Respond,
    id: CString,
    submission: Arc<Mutex<Submission>>,
    trace: Option<Arc<RequestTrace>>,
    /// The data of inputs for instances of one host policy each.
    of_policies: Vec<PolicyData>,
    // Dropped last: the request is returned after the last response.
    inference: Arc<Inference>,
}

/// Sends the request to its model, with its trace. After an error, neither was accepted, and both stay the backend's.
pub fn start_inference(handle: Handle<InferenceRequest>, traced: &mut Option<Arc<RequestTrace>>) -> Result<(), Fault> {
    let request = handle.get()?;
    let models = request.server.models("TRITONSERVER_ServerInferAsync")?;
    let (number, cancel) = request.begin_inference()?;
    let inference = Arc::new(Inference {
        handle,
        number,
        is_refused: AtomicBool::new(true),
        _counted: request.server.inferences.add(),
        request: Arc::clone(&request),
    });
    let keep: Arc<dyn MemoryOwner> = Arc::clone(&inference) as _;
    let submission = Arc::new(Mutex::new(Submission::Waits));
    let content = request.content();
    let Some(respond) = content.respond.clone() else {
        return Err(Fault::misuse("the inference request has no response function").of(&request.server.owner));
    };
    let config = || models.config(&request.model, request.version);
    let (inputs, of_policies) = content.tensors(&keep, config)?;
    if !of_policies.is_empty() {
        request.server.check_in_server("TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy")?;
    }
    // The functions of a trace may be called after the last response.
    let counted_before = traced
        .as_deref()
        .and_then(Observer::of)
        .and_then(|observer| observer.count(Some(Arc::new(request.server.inferences.add()))));
    let trace = traced.take();
    let reply = InferenceReply {
        places: OutputAllocations::new(respond.allocating.clone()),
        respond,
        id: content.id.clone(),
        of_policies,
        submission: Arc::clone(&submission),
        trace,
        inference,
    };
    let wanted = content.wanted.iter().map(|name| Wanted { name: name.as_str().into(), slot: None }).collect();
    let request_now = Request {
        id: (*content.id.to_string_lossy()).into(),
        priority: content.priority,
        timeout_us: content.timeout_us,
        sequence: content.sequence.clone(),
        client: client_of_run(),
        parameters: content.parameters.clone(),
        cancel,
        ..Request::new(inputs, wanted, Reply::through(reply))
    };
    drop((content, keep));
    // Within a run of this thread, refusals would be delivered only after the run, and the backend may wait for them in
    // that run. `requests_on_other_threads` keeps this thread from calling the backend's functions, because it may hold
    // locks of the backend.
    let ((), refusals) =
        Outbox::around(|| requests_on_other_threads(|| models.infer(&request.model, request.version, request_now)));
    drop(refusals);
    let mut submission = submission.lock().unwrap_or_else(PoisonError::into_inner);
    match std::mem::replace(&mut *submission, Submission::Over) {
        Submission::Refused(status, trace) => {
            if let Some(observer) = trace.as_deref().and_then(Observer::of) {
                observer.count(counted_before);
            }
            *traced = trace;
            // The backend may delete it or send it again at once, even if the memory of its inputs is still in use.
            request.end_inference(number);
            Err(status.into())
        }
        Submission::Waits | Submission::Over => Ok(()),
    }
}

impl Inference {
    /// Records that the request is the server's.
    fn accept(&self) {
        self.is_refused.store(false, Ordering::Release);
    }
}

impl MemoryOwner for Inference {}

impl Drop for Inference {
    fn drop(&mut self) {
        self.request.end_inference(self.number);
        let release = self.request.content().release;
        if let (false, Some((function, userp))) = (self.is_refused.load(Ordering::Acquire), release) {
            callbacks::give_back(&self.request.server.owner, function, self.handle, RELEASE_ALL, userp);
        }
    }
}

impl InferenceReply {
    /// Passes a response to the backend; `None` for an end without a response.
    fn hand_on(&self, response: Option<InferenceResponse>, is_last: bool) {
        let owner = &self.inference.request.server.owner;
        let handle = response.map(|response| Handle::to(Arc::new(response)));
        let handle = handle.transpose().unwrap_or_else(|fault| {
            fault.of(owner).into_status("TRITONSERVER_ServerInferAsync");
            None
        });
        let flags = if is_last { COMPLETE_FINAL } else { 0 };
        callbacks::respond(owner, self.respond.function, handle.unwrap_or_default(), flags, self.respond.userp);
    }
}

impl Deliver for InferenceReply {
    fn deliver(&mut self, response: Response) {
        self.inference.accept();
        let is_last = response.is_last();
        let request = &self.inference.request;
        let content = response.into_content().map(|content| {
            self.places.start()?;
            self.places.fill(content?)
        });
        self.places.next();
        let made = content.map(|content| {
            InferenceResponse::new(&request.server, (&request.model, request.has_labels), &self.id, content)
        });
        let made = made.transpose().unwrap_or_else(|fault| {
            fault.of(&request.server.owner).into_status("TRITONSERVER_ServerInferAsync");
            None
        });
        self.hand_on(made, is_last);
    }

    fn refuse(&mut self, why: Status) {
        let mut submission = self.submission.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*submission, Submission::Waits) {
            *submission = Submission::Refused(why, self.trace.take());
            return;
        }
        drop(submission);
        self.deliver(Response::failed(why));
    }

    fn may_wait(&self) -> bool {
        true
    }

    fn offers_places(&self) -> bool {
        true
    }

    fn likely_place(&self, output: &str) -> Option<Place> {
        self.places.allocating().likely_place(output)
    }

    fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.trace.clone()
    }

    fn policy_data(&self) -> &[PolicyData] {
        &self.of_policies
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        if query.bytes == 0 {
            return Ok(None);
        }
        Ok(self.places.place(query.output, query.bytes, query.preferred)?.slot())
    }
}
