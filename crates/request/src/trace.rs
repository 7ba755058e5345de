//! What is recorded of a request that is traced?
//!
//! A trace begins with a client's request. Models that ask others add requests of their own, each with an id and the id
//! of the request that asked. All of them add notes to one [`Gathered`], which goes to the [`TraceSink`] when the last
//! of them has ended. Every note is counted in one [`TraceBudget`]. Notes beyond it are left out, and the trace says
//! so.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Extent, Reason};
use nerite_tensor::{DataType, Name, Shape};

use crate::limits::{TRACE_BYTES_MAX, TRACED_TENSOR_BYTES_MAX};
use crate::trace_context::{SpanIds, TraceContext};

/// Bytes of a note beside its names and tensors.
const NOTE_BYTES: usize = size_of::<Note>();

/// Ids of traced requests. 0 means none.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// One traced request: a client's, or one that a model made for it.
pub struct RequestTrace {
    id: u64,
    parent: u64,
    /// Whether other models do its work, so that it has no execution of its own.
    is_composed: AtomicBool,
    group: Arc<Group>,
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
    /// What is noted.
    pub what: Noted,
}

/// What is noted of a request.
#[derive(Debug)]
pub enum Noted {
    /// Its beginning.
    Begin(Box<Begin>),
    /// It passed a point, at this time in ns of a clock that all notes share.
    Passed(&'static str, u64),
    /// Its model reports a point of its own, at this time in ns of that clock.
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
    /// The id of the request that asked for it, 0 for a client's.
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
    /// `None` once it was handed on.
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
    /// Counts this many more bytes. False if one trace, or all of them, would hold too many.
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

    /// A request that a model makes for this one.
    pub fn child(&self) -> Arc<RequestTrace> {
        RequestTrace::of(self.id, Arc::clone(&self.group))
    }

    fn of(parent: u64, group: Arc<Group>) -> Arc<RequestTrace> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(RequestTrace { id, parent, is_composed: AtomicBool::new(false), group })
    }

    /// Its id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The id of the request that asked for it, 0 for a client's.
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

    /// Its span, below which other systems may put theirs. `None` if the trace becomes no spans.
    pub fn context(&self) -> Option<TraceContext> {
        self.lock().as_ref()?.ids.as_ref().map(|ids| ids.context(self.id))
    }

    /// Whether tensors are recorded.
    pub fn has_tensors(&self) -> bool {
        self.group.levels.tensors
    }

    /// Records the beginning of the request.
    pub fn note_begin(&self, model: &Name, version: &Name, request_id: &Name) {
        if self.group.levels.timestamps {
            let bytes = model.len() + version.len() + request_id.len() + size_of::<Begin>();
            let (model, version, request_id) = (model.clone(), version.clone(), request_id.clone());
            self.add(Noted::Begin(Box::new(Begin { model, version, request_id, parent: self.parent })), bytes);
        }
    }

    /// Records that it passed this point at this time.
    pub fn note(&self, point: &'static str, ns: u64) {
        if self.group.levels.timestamps {
            self.add(Noted::Passed(point, ns), 0);
        }
    }

    /// Records a point that its model reports.
    pub fn report(&self, point: &Name, ns: u64) {
        if self.group.levels.timestamps {
            self.add(Noted::Reported(point.clone(), ns), point.len());
        }
    }

    /// Records one of its tensors: at most [`TRACED_TENSOR_BYTES_MAX`] bytes of it, and none that lie on a device.
    pub fn note_tensor(&self, activity: &'static str, name: &Name, datatype: DataType, shape: &Shape, data: &Buffer) {
        if !self.group.levels.tensors {
            return;
        }
        let fixed = size_of::<TracedTensor>() + name.len() + size_of_val(&shape[..]);
        let copied = if data.place().is_host() { data.len().min(TRACED_TENSOR_BYTES_MAX) } else { 0 };
        let copied = copied - copied % datatype.size().unwrap_or(1);
        let mut lock = self.lock();
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
        if let Some(gathered) = self.lock().as_mut() {
            gathered.add(self.id, what, bytes);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Gathered>> {
        self.group.gathered.lock().unwrap_or_else(PoisonError::into_inner)
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
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Gathered>>);

    impl TraceSink for Kept {
        fn finished(&self, trace: Gathered) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(trace);
        }
    }

    const ALL: TraceLevels = TraceLevels { timestamps: true, tensors: true };

    fn tensor(trace: &RequestTrace, bytes: usize) {
        let shape = Shape::from_iter([bytes as i64]);
        trace.note_tensor("IN", &"x".into(), DataType::Uint8, &shape, &Buffer::from(vec![7; bytes]));
    }

    #[test]
    fn a_trace_is_handed_on_when_its_last_request_has_ended() {
        let (kept, budget) = (Arc::new(Kept::default()), TraceBudget::new(1 << 20));
        let trace = RequestTrace::begin(ALL, &budget, Arc::clone(&kept) as _, None).expect("room");
        let child = trace.child();
        trace.note("A", 1);
        drop(trace);
        child.note_begin(&"m".into(), &"1".into(), &Name::default());
        assert_eq!(kept.0.lock().expect("lock").len(), 0);
        drop(child);
        let traces = std::mem::take(&mut *kept.0.lock().expect("lock"));
        let [Note { id: first, .. }, Note { id: second, what: Noted::Begin(begin) }] = &traces[0].notes[..] else {
            panic!("{traces:?}")
        };
        assert_eq!((begin.parent, *second > *first, traces[0].is_shortened), (*first, true, false));
        assert!(budget.used() > 0);
        drop(traces);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_large_tensor_is_shortened_and_a_full_budget_leaves_notes_out() {
        let (kept, budget) = (Arc::new(Kept::default()), TraceBudget::new(4 * TRACED_TENSOR_BYTES_MAX));
        let begin = || RequestTrace::begin(ALL, &budget, Arc::clone(&kept) as _, None);
        let trace = begin().expect("room");
        (0..20).for_each(|_| tensor(&trace, 8 * TRACED_TENSOR_BYTES_MAX));
        assert!(budget.used() <= 4 * TRACED_TENSOR_BYTES_MAX, "{}", budget.used());
        (0..100_000).for_each(|_| trace.note("A", 1));
        assert!(begin().is_none(), "all is held");
        drop(trace);
        let traces = std::mem::take(&mut *kept.0.lock().expect("lock"));
        let Noted::Tensor(first) = &traces[0].notes[0].what else { panic!("a tensor") };
        assert_eq!((first.data.len(), first.byte_size), (TRACED_TENSOR_BYTES_MAX, 8 * TRACED_TENSOR_BYTES_MAX));
        assert!(traces[0].is_shortened);
        drop(traces);
        assert!(begin().is_some());
    }

    #[test]
    fn what_no_level_asks_for_is_not_noted() {
        let (kept, budget) = (Arc::new(Kept::default()), TraceBudget::new(1 << 20));
        let levels = TraceLevels { timestamps: true, tensors: false };
        let trace = RequestTrace::begin(levels, &budget, Arc::clone(&kept) as _, None).expect("room");
        tensor(&trace, 8);
        drop(trace);
        assert!(kept.0.lock().expect("lock")[0].notes.is_empty());
    }
}
