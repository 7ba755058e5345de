//! What does a backend see of the trace of a request?

use std::ffi::CString;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::RequestTrace;

use super::object;

/// `TRITONSERVER_InferenceTrace`.
pub struct TraceObject {
    trace: Arc<RequestTrace>,
    /// The model and the id of the request.
    pub of: TraceOf,
    context: Mutex<CString>,
}

object!(TraceObject, 21, "inference trace");

/// The model and the id of a traced request. Empty before the request was sent.
#[derive(Clone, Default)]
pub struct TraceOf {
    /// The model.
    pub model: CString,
    /// Its version.
    pub version: i64,
    /// The client's own name for the request.
    pub request_id: CString,
}

impl TraceObject {
    /// The trace of one request.
    pub fn new(trace: Arc<RequestTrace>, of: TraceOf) -> TraceObject {
        TraceObject { trace, of, context: Mutex::default() }
    }

    /// The trace that gets its notes.
    pub fn traced(&self) -> Arc<RequestTrace> {
        Arc::clone(&self.trace)
    }

    /// A text that the backend's own tracing code keeps with it.
    pub fn context(&self) -> MutexGuard<'_, CString> {
        self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
