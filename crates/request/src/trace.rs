//! What does a trace record of a request?
//! A trace begins with a client's request. A model that calls other models adds its nested requests, each with an id and the id of its parent. All requests
//! add notes to one [`Gathered`], which goes to the [`TraceSink`] when the last request has ended. Every note is counted in one [`TraceBudget`]. Notes beyond
//! the budget are left out, and the trace says so.

mod observer;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Extent, Reason};
use nerite_tensor::{DataType, Name, Shape};

use crate::limits::{TRACE_BYTES_MAX, TRACED_TENSOR_BYTES_MAX};
use crate::trace_context::{SpanIds, TraceContext};
pub use observer::{NewTrace, TraceObserver};

/// Bytes of a note beside its names and tensors.
const NOTE_BYTES: usize = size_of::<Note>();

/// Ids of traced requests. 0 means none.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// One traced request: a client's, or one that a model made for it.
pub struct RequestTrace {
    id: u64,
    parent: u64,
    /// Whether other models do the work of the request, so that it has no execution of its own.
    is_composed: AtomicBool,
    to: To,
}

/// Where notes go.
enum To {
    /// Notes are gathered, and go to the sink at the end.
    Group(Arc<Group>),
    /// Notes of these levels are reported to an observer as they are made.
    Observer(TraceLevels, Box<dyn TraceObserver>),
}

/// What is traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLevels {
    /// The times at which a request passed each point.
    pub timestamps: bool,
    /// Its inputs and outputs.
    pub tensors: bool,
}

/// Takes traces that have ended. It is called on the thread that ended the trace, so it must not block.
pub trait TraceSink: Send + Sync {
    /// Takes a trace.
    fn finished(&self, trace: Gathered);
}

/// The notes of a trace.
#[derive(Debug)]
pub struct Gathered {
    /// In the order in which they were made.
    pub notes: Vec<Note>,
    /// Whether notes or bytes of tensors were left out because the budget was used up.
    pub is_shortened: bool,
    /// The numbers of its spans, if it becomes spans.
    pub ids: Option<SpanIds>,
    paid: Paid,
}

/// One note, of the request with this id.
#[derive(Debug)]
pub struct Note {
    /// The request's id.
    pub id: u64,
    /// The kind of note.
    pub what: Noted,
}

/// The content of a note.
#[derive(Debug)]
pub enum Noted {
    /// Its beginning.
    Begin(Box<Begin>),
    /// It passed a point, at this time in ns of a clock that all notes share.
    Passed(&'static str, u64),
    /// Its model reports an activity, at this time in ns of the same clock.
    Reported(Name, u64),
    /// One of its tensors.
    Tensor(Box<TracedTensor>),
}

/// The beginning of a request.
#[derive(Debug)]
pub struct Begin {
    /// The model.
    pub model: Name,
    /// Its version.
    pub version: Name,
    /// The client's own name for the request; may be empty.
    pub request_id: Name,
    /// The id of the parent request; 0 for a client's request.
    pub parent: u64,
}

/// A tensor that is traced.
#[derive(Debug)]
pub struct TracedTensor {
    /// The point at which it was recorded.
    pub activity: &'static str,
    /// Its name.
    pub name: Name,
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    /// Its bytes, or the beginning of them.
    pub data: Vec<u8>,
    /// Bytes of the whole tensor.
    pub byte_size: usize,
}

/// Bytes that all traces together may hold.
#[derive(Debug)]
pub struct TraceBudget {
    used: AtomicUsize,
    max: usize,
}

/// Bytes that are counted in the budget until this is dropped.
#[derive(Debug)]
struct Paid {
    budget: Arc<TraceBudget>,
    bytes: usize,
}

struct Group {
    levels: TraceLevels,
    sink: Arc<dyn TraceSink>,
    /// `None` once the notes were given to the sink.
    gathered: Mutex<Option<Gathered>>,
}

impl TraceBudget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Arc<TraceBudget> {
        Arc::new(TraceBudget { used: AtomicUsize::new(0), max })
    }

    /// Bytes that traces hold now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

impl Paid {
    /// Counts this many more bytes. False if this trace, or all traces together, would hold too many.
    fn more(&mut self, bytes: usize) -> bool {
        let is_allowed = self.bytes + bytes <= TRACE_BYTES_MAX && self.budget.take(bytes);
        if is_allowed {
            self.bytes += bytes;
        }
        is_allowed
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Gathered {
    fn add(&mut self, id: u64, what: Noted, bytes: usize) {
        if self.notes.try_reserve(1).is_ok() && self.paid.more(NOTE_BYTES + bytes) {
            self.notes.push(Note { id, what });
        } else {
            self.is_shortened = true;
        }
    }
}

impl RequestTrace {
    /// The trace of a client's request, with `ids` if it becomes spans. `None` if the budget is used up.
    pub fn begin(
        levels: TraceLevels,
        budget: &Arc<TraceBudget>,
        sink: Arc<dyn TraceSink>,
        ids: Option<SpanIds>,
    ) -> Option<Arc<RequestTrace>> {
        let mut paid = Paid { budget: Arc::clone(budget), bytes: 0 };
        if !paid.more(NOTE_BYTES + ids.as_ref().map_or(0, |ids| ids.state.len())) {
            return None;
        }
        let gathered = Gathered { notes: Vec::new(), is_shortened: false, ids, paid };
        let group = Group { levels, sink, gathered: Mutex::new(Some(gathered)) };
        Some(RequestTrace::of(0, Arc::new(group)))
    }

    /// A trace below the one with the id `parent`. Its notes are reported to the observer that `observer` makes.
    pub fn observed(
        levels: TraceLevels,
        parent: u64,
        observer: impl FnOnce(NewTrace) -> Box<dyn TraceObserver>,
    ) -> Arc<RequestTrace> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new_cyclic(|trace| {
            let to = To::Observer(levels, observer(NewTrace { id, parent, trace: trace.clone() }));
            RequestTrace { id, parent, is_composed: AtomicBool::new(false), to }
        })
    }

    /// A request that a model makes for this one.
    pub fn child(&self) -> Arc<RequestTrace> {
        match &self.to {
            To::Group(group) => RequestTrace::of(self.id, Arc::clone(group)),
            To::Observer(levels, observer) => RequestTrace::observed(*levels, self.id, |made| observer.child(made)),
        }
    }

    fn of(parent: u64, group: Arc<Group>) -> Arc<RequestTrace> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(RequestTrace { id, parent, is_composed: AtomicBool::new(false), to: To::Group(group) })
    }

    /// The observer of its points, if there is one.
    pub fn observer(&self) -> Option<&(dyn TraceObserver + 'static)> {
        match &self.to {
            To::Group(_) => None,
            To::Observer(_, observer) => Some(&**observer),
        }
    }

    fn levels(&self) -> TraceLevels {
        match &self.to {
            To::Group(group) => group.levels,
            To::Observer(levels, _) => *levels,
        }
    }

    /// Its id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The id of the parent request; 0 for a client's request.
    pub fn parent(&self) -> u64 {
        self.parent
    }

    /// Records that other models do its work.
    pub fn composes(&self) {
        self.is_composed.store(true, Ordering::Relaxed);
    }

    /// Whether other models do its work.
    pub fn is_composed(&self) -> bool {
        self.is_composed.load(Ordering::Relaxed)
    }

    /// The request's span, which other systems may use as the parent of their spans. `None` if the trace becomes no spans.
    pub fn context(&self) -> Option<TraceContext> {
        self.lock()?.as_ref()?.ids.as_ref().map(|ids| ids.context(self.id))
    }

    /// Whether tensors are recorded.
    pub fn has_tensors(&self) -> bool {
        self.levels().tensors
    }

    /// Records the beginning of the request.
    pub fn note_begin(&self, model: &Name, version: &Name, request_id: &Name) {
        if let Some(observer) = self.observer() {
            return observer.began(model, version, request_id);
        }
        if self.levels().timestamps {
            let bytes = model.len() + version.len() + request_id.len() + size_of::<Begin>();
            let (model, version, request_id) = (model.clone(), version.clone(), request_id.clone());
            self.add(Noted::Begin(Box::new(Begin { model, version, request_id, parent: self.parent })), bytes);
        }
    }

    /// Records that the request passed this point at this time.
    pub fn note(&self, point: &'static str, ns: u64) {
        match self.observer() {
            _ if !self.levels().timestamps => {}
            Some(observer) => observer.passed(point, ns),
            None => self.add(Noted::Passed(point, ns), 0),
        }
    }

    /// Records a point that its model reports.
    pub fn report(&self, point: &Name, ns: u64) {
        match self.observer() {
            _ if !self.levels().timestamps => {}
            Some(observer) => observer.reported(point, ns),
            None => self.add(Noted::Reported(point.clone(), ns), point.len()),
        }
    }

    /// Records one of the request's tensors: at most its first [`TRACED_TENSOR_BYTES_MAX`] bytes, and no bytes that lie on a device. An observer gets the
    /// whole tensor.
    pub fn note_tensor(&self, activity: &'static str, name: &Name, datatype: DataType, shape: &Shape, data: &Buffer) {
        if !self.levels().tensors {
            return;
        }
        if let Some(observer) = self.observer() {
            return observer.tensor(activity, name, datatype, shape, data);
        }
        let fixed = size_of::<TracedTensor>() + name.len() + size_of_val(&shape[..]);
        let copied = if data.place().is_host() { data.len().min(TRACED_TENSOR_BYTES_MAX) } else { 0 };
        let copied = copied - copied % datatype.size().unwrap_or(1);
        let Some(mut lock) = self.lock() else { return };
        let Some(gathered) = lock.as_mut() else { return };
        // The bytes are counted before they are copied.
        let bytes = if gathered.paid.more(copied) { copied } else { 0 };
        let copy = beginning_of(data, bytes);
        gathered.is_shortened |= copy.len() < data.len();
        let tensor = TracedTensor {
            activity,
            name: name.clone(),
            datatype,
            shape: shape.clone(),
            byte_size: data.len(),
            data: copy,
        };
        gathered.add(self.id, Noted::Tensor(Box::new(tensor)), fixed);
    }

    fn add(&self, what: Noted, bytes: usize) {
        if let Some(gathered) = self.lock().as_mut().and_then(|lock| lock.as_mut()) {
            gathered.add(self.id, what, bytes);
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, Option<Gathered>>> {
        match &self.to {
            To::Group(group) => Some(group.gathered.lock().unwrap_or_else(PoisonError::into_inner)),
            To::Observer(..) => None,
        }
    }
}

/// A copy of the first `bytes` bytes; empty if there is no memory for it.
fn beginning_of(data: &Buffer, bytes: usize) -> Vec<u8> {
    let mut copy = Vec::new();
    if bytes == 0 || copy.try_reserve_exact(bytes).is_err() {
        return copy;
    }
    copy.resize(bytes, 0);
    if let Ok(extent) = Extent::new(0, bytes, data.len()) {
        data.slice(extent).copy_to(&mut copy, Reason::Trace);
    }
    copy
}

impl Drop for Group {
    fn drop(&mut self) {
        let gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(gathered) = gathered {
            self.sink.finished(gathered);
        }
    }
}

impl fmt::Debug for RequestTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestTrace({} of {})", self.id, self.parent)
    }
}

#[cfg(test)]
mod tests;
