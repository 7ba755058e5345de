//! What is recorded of traces, and who is told?

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

/// What an observer was told, and by which request.
#[derive(Default)]
struct Recorder(Arc<Mutex<Vec<String>>>, u64);

impl Recorder {
    fn report(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

impl TraceObserver for Recorder {
    fn began(&self, model: &Name, _: &Name, _: &Name) {
        self.report(format!("{model} begins"));
    }

    fn passed(&self, point: &'static str, ns: u64) {
        self.report(format!("{point} {ns} of {}", self.1));
    }

    fn reported(&self, point: &Name, ns: u64) {
        self.report(format!("own {point} {ns}"));
    }

    fn tensor(&self, point: &'static str, _: &Name, _: DataType, _: &Shape, data: &Buffer) {
        self.report(format!("{point} {}", data.len()));
    }

    fn child(&self, made: NewTrace) -> Box<dyn TraceObserver> {
        self.report(format!("child of {}", made.parent));
        Box::new(Recorder(Arc::clone(&self.0), 2))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.report(format!("{} is over", self.1));
    }
}

#[track_caller]
fn check_observed(levels: TraceLevels, expected: &[&str]) {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let trace = RequestTrace::observed(levels, 9, |_| Box::new(Recorder(Arc::clone(&lines), 1)));
    assert_eq!((trace.parent(), trace.context(), trace.has_tensors()), (9, None, levels.tensors));
    trace.note_begin(&"m".into(), &"1".into(), &Name::default());
    trace.note("A", 5);
    tensor(&trace, 8 * TRACED_TENSOR_BYTES_MAX);
    let child = trace.child();
    assert_eq!(child.parent(), trace.id());
    let of_parent = format!("child of {}", trace.id());
    drop(trace);
    child.note("B", 6);
    child.report(&"C".into(), 7);
    drop(child);
    let lines = lines.lock().expect("lock").iter().map(|what| what.replace(&of_parent, "child")).collect::<Vec<_>>();
    assert_eq!(lines, expected);
}

#[test]
fn an_observer_is_notified_at_once_and_dropped_with_its_trace() {
    let bytes = format!("IN {}", 8 * TRACED_TENSOR_BYTES_MAX);
    let (over, ends) = ("1 is over", "2 is over");
    check_observed(ALL, &["m begins", "A 5 of 1", &bytes, "child", over, "B 6 of 2", "own C 7", ends]);
    let tensors = TraceLevels { timestamps: false, tensors: true };
    check_observed(tensors, &["m begins", &bytes, "child", over, ends]);
    check_observed(TraceLevels::default(), &["m begins", "child", over, ends]);
}
