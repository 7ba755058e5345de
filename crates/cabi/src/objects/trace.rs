//! What do a backend and a program see of the trace of a request?

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError, Weak};

use nerite_locks::Mutex;
use nerite_request::{NewTrace, RequestTrace};

use super::{ServerObject, object};
use crate::fault::Fault;
use crate::table::Handle;

/// `TRITONSERVER_InferenceTrace`.
pub struct TraceObject {
    traced: Traced,
    of: OnceLock<TraceOf>,
    context: Mutex<CString>,
}

object!(TraceObject, 21, "inference trace");

enum Traced {
    /// A request that the server traces.
    ByServer(Arc<RequestTrace>),
    /// A request whose points are reported to functions of a backend or of the program.
    ByFunctions(ObservedTrace),
}

/// A trace that is reported to functions. They get its handle, and delete it when the server has released it.
struct ObservedTrace {
    id: u64,
    parent: u64,
    trace: Weak<RequestTrace>,
    /// The trace, while the server does not have it.
    unsent: Mutex<Option<Arc<RequestTrace>>>,
    is_deleted: AtomicBool,
}

/// The model and the id of a traced request.
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
    /// The trace of a request that the server traces. Model and id are not known before the request is sent.
    pub fn by_server(trace: Arc<RequestTrace>, of: Option<TraceOf>) -> TraceObject {
        let known = OnceLock::new();
        if let Some(of) = of {
            known.get_or_init(|| of);
        }
        TraceObject { traced: Traced::ByServer(trace), of: known, context: Mutex::default() }
    }

    /// A trace that is reported to functions.
    pub fn by_functions(made: NewTrace) -> TraceObject {
        let NewTrace { id, parent, trace } = made;
        let observed =
            ObservedTrace { id, parent, trace, unsent: Mutex::default(), is_deleted: AtomicBool::new(false) };
        TraceObject { traced: Traced::ByFunctions(observed), of: OnceLock::new(), context: Mutex::default() }
    }

    /// Its id.
    pub fn id(&self) -> u64 {
        match &self.traced {
            Traced::ByServer(trace) => trace.id(),
            Traced::ByFunctions(observed) => observed.id,
        }
    }

    /// The id of the request that made this one.
    pub fn parent(&self) -> u64 {
        match &self.traced {
            Traced::ByServer(trace) => trace.parent(),
            Traced::ByFunctions(observed) => observed.parent,
        }
    }

    /// The model; empty before the request was sent.
    pub fn model(&self) -> &CStr {
        self.of.get().map_or(c"", |of| &of.model)
    }

    /// The model's version; 0 before the request was sent.
    pub fn version(&self) -> i64 {
        self.of.get().map_or(0, |of| of.version)
    }

    /// The client's own name for the request; empty before it was sent.
    pub fn request_id(&self) -> &CStr {
        self.of.get().map_or(c"", |of| &of.request_id)
    }

    /// Sets model and id, once.
    pub fn is_of(&self, of: impl FnOnce() -> TraceOf) {
        self.of.get_or_init(of);
    }

    /// The trace that gets its notes.
    pub fn traced(&self) -> Result<Arc<RequestTrace>, Fault> {
        match &self.traced {
            Traced::ByServer(trace) => Ok(Arc::clone(trace)),
            Traced::ByFunctions(observed) => {
                observed.trace.upgrade().ok_or_else(|| Fault::misuse("the trace was released before"))
            }
        }
    }

    /// A text that the tracing code attaches to it.
    pub fn context(&self) -> MutexGuard<'_, CString> {
        self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was deleted by its owner.
    pub fn is_deleted(&self) -> bool {
        matches!(&self.traced, Traced::ByFunctions(observed) if observed.is_deleted.load(Ordering::Acquire))
    }

    /// Gives the trace back to its owner: the server did not take it.
    pub fn put_back(&self, trace: Arc<RequestTrace>) {
        if let Traced::ByFunctions(observed) = &self.traced {
            *observed.unsent() = Some(trace);
        }
    }
}

impl ObservedTrace {
    fn unsent(&self) -> MutexGuard<'_, Option<Arc<RequestTrace>>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle<TraceObject> {
    /// The trace, which is the server's from now on.
    pub fn take_trace(self, server: &ServerObject) -> Result<Arc<RequestTrace>, Fault> {
        let object = self.get()?;
        let Traced::ByFunctions(observed) = &object.traced else { return self.take()?.traced() };
        server.check_in_server("a trace of TRITONSERVER_InferenceTraceNew")?;
        let sent = observed.unsent().take();
        sent.ok_or_else(|| Fault::misuse("the trace is the server's until its release function is called"))
    }

    /// Deletes the trace. Nothing more is reported to its owner. NULL is nothing to delete, as in Triton.
    pub fn delete_trace(self) -> Result<(), Fault> {
        if self.is_null() {
            return Ok(());
        }
        let is_the_servers =
            |observed: &ObservedTrace| observed.unsent().is_none() && observed.trace.strong_count() > 0;
        let object = self.take_when(|object| match &object.traced {
            Traced::ByFunctions(observed) if is_the_servers(observed) => {
                Err(Fault::misuse("the trace is the server's until its release function is called"))
            }
            Traced::ByServer(_) | Traced::ByFunctions(_) => Ok(()),
        })?;
        if let Traced::ByFunctions(observed) = &object.traced {
            observed.is_deleted.store(true, Ordering::Release);
            let unsent = observed.unsent().take();
            drop(unsent);
        }
        Ok(())
    }
}
