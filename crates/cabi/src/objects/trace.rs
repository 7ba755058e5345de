//! What does a backend see of where a request is traced?

use std::ffi::CString;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::RequestTrace;

use super::object;

/// `TRITONSERVER_InferenceTrace`.
pub struct TraceObject {
    trace: Arc<RequestTrace>,
    /// What the request asks.
    pub of: TraceOf,
    context: Mutex<CString>,
}

object!(TraceObject, 21, "inference trace");

/// What a traced request asks; nothing before it was sent.
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

    /// Where its notes go.
    pub fn traced(&self) -> Arc<RequestTrace> {
        Arc::clone(&self.trace)
    }

    /// What a tracer of the backend's own wants kept with it.
    pub fn context(&self) -> MutexGuard<'_, CString> {
        self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
