//! How are the points of a request reported to functions of a backend or of the program?

use std::any::Any;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::Buffer;
use nerite_request::{Name, NewTrace, RequestTrace, Status, TraceLevels, TraceObserver};
use nerite_tensor::{DataType, Shape};
use serde_json::{Map, Value};

use super::callbacks::{self, ActivityFn, Kept, NotedTensor, TensorActivityFn, TraceReleaseFn};
use super::{Counted, TraceObject, TraceOf, c_text, memory_of};
use crate::fault::Fault;
use crate::limits::REPORTS_MAX;
use crate::table::Handle;

/// The points that are reported to functions, at their numbers in Triton's interface.
const POINTS: [&str; 10] = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
    "TENSOR_QUEUE_INPUT",
    "TENSOR_BACKEND_INPUT",
    "TENSOR_BACKEND_OUTPUT",
];
/// The number of a point that a model reports.
const CUSTOM: u32 = 10;
/// Levels: the first two are older names of the third.
const TIMES: u32 = 1 | 2 | 4;
const TENSORS: u32 = 8;

/// The functions of a trace and of those below it.
pub struct TraceFunctions {
    /// The backend's name, for errors.
    pub owner: Arc<str>,
    /// Gets each point.
    pub activity: Option<ActivityFn<TraceObject>>,
    /// Gets each tensor.
    pub tensor: Option<TensorActivityFn<TraceObject>>,
    /// Is called when the server does not use a trace any more.
    pub release: Option<TraceReleaseFn<TraceObject>>,
    /// The address that the functions get.
    pub userp: Kept,
}

impl TraceFunctions {
    /// What is reported to them at this level.
    pub fn levels(&self, level: u32) -> TraceLevels {
        let timestamps = level & TIMES != 0 && self.activity.is_some();
        TraceLevels { timestamps, tensors: level & TENSORS != 0 && self.tensor.is_some() }
    }
}

/// Begins a trace whose points are reported to `functions`.
pub fn observed_trace(level: u32, parent: u64, functions: TraceFunctions) -> Result<Handle<TraceObject>, Fault> {
    let levels = functions.levels(level);
    let trace = RequestTrace::observed(levels, parent, |made| Box::new(Observer::new(Arc::new(functions), made)));
    keep_unsent(&trace)
        .ok_or_else(|| Status::unavailable("there are too many traces that were not deleted; delete each one").into())
}

/// A trace for a request that the request with this trace makes.
pub fn spawn_child(trace: Handle<TraceObject>) -> Result<Handle<TraceObject>, Fault> {
    let child = trace.get()?.traced()?.child();
    match keep_unsent(&child) {
        Some(handle) => Ok(handle),
        None => Handle::to(Arc::new(TraceObject::by_server(child, None))),
    }
}

/// The handle that is reported to functions; `None` if the server itself records the trace.
pub fn observed_handle(trace: &RequestTrace) -> Option<Handle<TraceObject>> {
    Observer::of(trace).map(Observer::handle).filter(|handle| !handle.is_null())
}

/// Keeps a trace that is reported to functions until it is sent.
fn keep_unsent(trace: &Arc<RequestTrace>) -> Option<Handle<TraceObject>> {
    let handle = observed_handle(trace)?;
    handle.get().ok()?.put_back(Arc::clone(trace));
    Some(handle)
}

/// Reports to the functions of one trace. When it is dropped, the trace is released.
pub struct Observer {
    // NULL if there was no handle. Then nothing is reported.
    handle: Handle<TraceObject>,
    object: Arc<TraceObject>,
    functions: Arc<TraceFunctions>,
    /// Counts a request in flight as long as the functions may be called for this trace. Dropped after they were called for its release.
    counted: Mutex<Option<Arc<Counted>>>,
}

impl Observer {
    /// The observer of a trace that is being made.
    pub fn new(functions: Arc<TraceFunctions>, made: NewTrace) -> Observer {
        Observer::counted(functions, made, None)
    }

    fn counted(functions: Arc<TraceFunctions>, made: NewTrace, counted: Option<Arc<Counted>>) -> Observer {
        let object = Arc::new(TraceObject::by_functions(made));
        let handle = Handle::to(Arc::clone(&object)).unwrap_or_else(|fault| {
            fault.of(&functions.owner).into_status("TRITONSERVER_InferenceTraceNew");
            Handle::NULL
        });
        Observer { handle, object, functions, counted: Mutex::new(counted) }
    }

    /// The observer of this trace, if it has one.
    pub fn of(trace: &RequestTrace) -> Option<&Observer> {
        let observer: &dyn Any = trace.observer()?;
        observer.downcast_ref()
    }

    /// The handle that the functions get.
    pub fn handle(&self) -> Handle<TraceObject> {
        self.handle
    }

    /// From now on a request counts as in flight until the trace, and those that are made below it, are released. `None` ends that for the trace alone.
    /// Returns what counted before.
    pub fn count(&self, counted: Option<Arc<Counted>>) -> Option<Arc<Counted>> {
        std::mem::replace(&mut *self.lock_counted(), counted)
    }

    fn lock_counted(&self) -> MutexGuard<'_, Option<Arc<Counted>>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, activity: u32, ns: u64) {
        let TraceFunctions { owner, activity: function, userp, .. } = &*self.functions;
        if let (Some(function), false) = (function, self.handle.is_null()) {
            callbacks::note_activity(owner, *function, self.handle, (activity, ns), *userp);
        }
    }
}

/// The number of a point; `None` for those of front ends, which are not reported to functions.
fn number_of(point: &str) -> Option<u32> {
    POINTS.iter().position(|known| *known == point).map(|at| at as u32)
}

/// The context after a report, as in Triton: an object that has each time of a report and its name. A text that is no object is replaced.
fn with_report(context: &str, name: &str, ns: u64) -> Option<String> {
    let mut reports: Map<String, Value> = serde_json::from_str(context).unwrap_or_default();
    if reports.len() >= REPORTS_MAX {
        return None;
    }
    reports.insert(ns.to_string(), name.into());
    Some(Value::Object(reports).to_string())
}

impl TraceObserver for Observer {
    fn began(&self, model: &Name, version: &Name, request_id: &Name) {
        self.object.is_of(|| TraceOf {
            model: c_text(model),
            version: version.parse().unwrap_or_default(),
            request_id: c_text(request_id),
        });
    }

    fn passed(&self, point: &'static str, ns: u64) {
        if let Some(number) = number_of(point) {
            self.report(number, ns);
        }
    }

    fn reported(&self, point: &Name, ns: u64) {
        let mut context = self.object.context();
        if let Some(text) = with_report(&context.to_string_lossy(), point, ns) {
            *context = c_text(&text);
        }
        drop(context);
        self.report(CUSTOM, ns);
    }

    fn tensor(&self, point: &'static str, name: &Name, datatype: DataType, shape: &Shape, data: &Buffer) {
        let TraceFunctions { owner, tensor: function, userp, .. } = &*self.functions;
        let (Some(function), Some(activity), false) = (function, number_of(point), self.handle.is_null()) else {
            return;
        };
        let base = if data.is_empty() { std::ptr::null() } else { data.as_ptr() };
        let (name, memory) = (c_text(name), memory_of(data.place()));
        let tensor =
            NotedTensor { activity, name: &name, datatype: datatype as u32, base, bytes: data.len(), shape, memory };
        callbacks::note_tensor(owner, *function, self.handle, &tensor, *userp);
    }

    fn child(&self, made: NewTrace) -> Box<dyn TraceObserver> {
        let counted = self.lock_counted().clone();
        Box::new(Observer::counted(Arc::clone(&self.functions), made, counted))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let TraceFunctions { owner, release, userp, .. } = &*self.functions;
        if let (Some(release), false, false) = (release, self.handle.is_null(), self.object.is_deleted()) {
            callbacks::release_trace(owner, *release, self.handle, *userp);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::objects::Outstanding;

    #[test]
    fn a_trace_counts_until_it_is_released_also_if_a_request_with_one_below_it_is_refused() {
        let inferences = Arc::<Outstanding>::default();
        let left = || inferences.wait(Duration::ZERO);
        let functions = TraceFunctions {
            owner: "b".into(),
            activity: None,
            tensor: None,
            release: None,
            userp: Kept(std::ptr::null_mut()),
        };
        let levels = TraceLevels { timestamps: true, tensors: false };
        let above = RequestTrace::observed(levels, 0, |made| Box::new(Observer::new(Arc::new(functions), made)));
        let count = |trace: &RequestTrace| {
            Observer::of(trace).and_then(|observer| observer.count(Some(Arc::new(inferences.add()))))
        };
        assert!(count(&above).is_none());
        let below = above.child();
        let before = count(&below);
        // The request with it is refused.
        Observer::of(&below).map(|observer| observer.count(before));
        assert_eq!(left(), 1);
        drop(above);
        assert_eq!(left(), 1, "the trace below calls the same functions");
        drop(below);
        assert_eq!(left(), 0);
    }

    #[test]
    fn a_report_is_added_to_the_context_and_a_context_is_bounded() {
        assert_eq!(with_report("", "a", 7).as_deref(), Some(r#"{"7":"a"}"#));
        assert_eq!(with_report(r#"{"7":"a"}"#, "b\"", 8).as_deref(), Some(r#"{"7":"a","8":"b\""}"#));
        for other in ["ours", "[1]", "{", "7"] {
            assert_eq!(with_report(other, "a", 7).as_deref(), Some(r#"{"7":"a"}"#), "{other}");
        }
        let mut context = String::new();
        for ns in 0..REPORTS_MAX as u64 {
            context = with_report(&context, "a", ns).unwrap_or_default();
        }
        assert_eq!(with_report(&context, "a", u64::MAX), None);
    }

    #[test]
    fn points_have_tritons_numbers() {
        let numbers = ["REQUEST_START", "REQUEST_END", "TENSOR_BACKEND_OUTPUT", "HTTP_RECV_START"].map(number_of);
        assert_eq!(numbers, [Some(0), Some(6), Some(9), None]);
    }
}
