//! Which spans does a trace become?
//!
//! ```text
//!   InferRequest                       the front end's points; below the client's span, if it sent a traceparent
//!   └ <model>                          REQUEST_START, QUEUE_START, REQUEST_END
//!     ├ compute                        COMPUTE_START … COMPUTE_END
//!     └ <model>                        a step of an ensemble, or what a model asked of another
//!       └ compute
//! ```
//!
//! Names, kinds and attributes are Triton's.

use std::collections::BTreeMap;

use nerite_request::{Begin, Gathered, Noted, SpanIds};
use nerite_wire::proto::otlp::any_value::Value;
use nerite_wire::proto::otlp::span::{Event, SpanKind};
use nerite_wire::proto::otlp::{AnyValue, KeyValue, Span};

/// The most points of one span that are sent; the others are counted. A stream of answers has many.
const EVENTS_MAX: usize = 128;
/// Bytes that are sent of a text that a client chose.
const TEXT_BYTES_MAX: usize = 1024;
/// Flags: the span is recorded, and it is known whether its parent belongs to another system.
const FLAGS: u32 = 0x101;
/// Flag: the parent belongs to another system.
const IS_REMOTE: u32 = 0x200;

/// Points in time, in ns.
type Points<'t> = Vec<(&'t str, u64)>;

/// What one request recorded.
#[derive(Default)]
struct Request<'t> {
    begin: Option<&'t Begin>,
    own: Points<'t>,
    /// One entry for each run of its model.
    runs: Vec<Points<'t>>,
}

/// How many spans a trace becomes.
pub fn count(trace: &Gathered) -> usize {
    let is_span = |what: &Noted| matches!(what, Noted::Begin(_) | Noted::Passed("COMPUTE_START", _));
    1 + trace.notes.iter().filter(|note| is_span(&note.what)).count()
}

/// The spans of a trace. `to_unix_ns` is added to its times to get ns since 1970.
pub fn spans(trace: &Gathered, ids: &SpanIds, to_unix_ns: u64) -> Vec<Span> {
    let (front, requests) = divided(trace);
    let all = || front.iter().chain(requests.values().flat_map(|one| one.own.iter().chain(one.runs.iter().flatten())));
    let Some((first, last)) = bounds(all()) else { return Vec::new() };
    let make = |id: [u8; 8], parent: &[u8], name: &str, points: &Points<'_>, (begin, end): (u64, u64)| Span {
        trace_id: ids.trace_id.to_vec(),
        span_id: id.to_vec(),
        trace_state: ids.state.to_string(),
        parent_span_id: parent.to_vec(),
        name: name.to_owned(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: begin.wrapping_add(to_unix_ns),
        end_time_unix_nano: end.wrapping_add(to_unix_ns),
        attributes: Vec::new(),
        events: events(points, to_unix_ns),
        dropped_events_count: points.len().saturating_sub(EVENTS_MAX) as u32,
        flags: FLAGS,
    };
    let mut spans = Vec::with_capacity(count(trace));
    let root =
        make(ids.root(), ids.parent.as_ref().map_or(&[], <[u8; 8]>::as_slice), "InferRequest", &front, (first, last));
    spans.push(Span { flags: if ids.parent.is_some() { FLAGS | IS_REMOTE } else { FLAGS }, ..root });
    for (id, Request { begin, own, runs }) in &requests {
        // The note of its beginning was left out, so its model is not known.
        let Some(begin) = begin else { continue };
        let parent = if begin.parent == 0 { ids.root() } else { ids.request(begin.parent) };
        let time = bounds(own.iter().chain(runs.iter().flatten())).unwrap_or((first, first));
        let span = make(ids.request(*id), &parent, &begin.model, own, time);
        spans.push(Span { attributes: attributes(*id, begin), ..span });
        for (part, run) in (1..).zip(runs) {
            let time = bounds(run.iter()).unwrap_or((first, first));
            spans.push(make(ids.part(*id, part), &ids.request(*id), "compute", run, time));
        }
    }
    spans
}

/// Divides the notes into the points of the front end and those of each request.
fn divided(trace: &Gathered) -> (Points<'_>, BTreeMap<u64, Request<'_>>) {
    let mut front = Vec::new();
    let mut requests: BTreeMap<u64, Request<'_>> = BTreeMap::new();
    for note in &trace.notes {
        let request = requests.entry(note.id).or_default();
        match &note.what {
            Noted::Begin(begin) => request.begin = Some(begin),
            Noted::Passed(point, ns) => match *point {
                "REQUEST_START" | "QUEUE_START" | "REQUEST_END" => request.own.push((point, *ns)),
                "COMPUTE_START" => request.runs.push(vec![(point, *ns)]),
                "COMPUTE_INPUT_END" | "COMPUTE_OUTPUT_START" | "COMPUTE_END" => {
                    // If the beginning of a run was left out, the other points of the run are left out too.
                    if let Some(run) = request.runs.last_mut() {
                        run.push((point, *ns));
                    }
                }
                _ => front.push((*point, *ns)),
            },
            Noted::Reported(point, ns) => {
                request.runs.last_mut().unwrap_or(&mut request.own).push((point.as_str(), *ns));
            }
            Noted::Tensor(_) => {}
        }
    }
    (front, requests)
}

fn bounds<'t>(points: impl Iterator<Item = &'t (&'t str, u64)>) -> Option<(u64, u64)> {
    points.map(|(_, ns)| (*ns, *ns)).reduce(|(first, last), (ns, _)| (first.min(ns), last.max(ns)))
}

fn events(points: &Points<'_>, to_unix_ns: u64) -> Vec<Event> {
    let event =
        |(point, ns): &(&str, u64)| Event { time_unix_nano: ns.wrapping_add(to_unix_ns), name: (*point).to_owned() };
    points.iter().take(EVENTS_MAX).map(event).collect()
}

fn attributes(id: u64, begin: &Begin) -> Vec<KeyValue> {
    let Begin { model, version, request_id, parent } = begin;
    let mut attributes = vec![
        text("triton.model_name", model),
        number("triton.model_version", version.parse().unwrap_or_default()),
        number("triton.trace_id", id as i64),
        number("triton.trace_parent_id", *parent as i64),
    ];
    if !request_id.is_empty() {
        attributes.push(text("triton.request_id", shortened(request_id)));
    }
    attributes
}

/// An attribute that is text.
pub fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn shortened(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;
    use nerite_request::{Name, RequestTrace, TraceBudget, TraceContext, TraceLevels, TraceSink};

    #[derive(Default)]
    struct Kept(Mutex<Option<Gathered>>);

    impl TraceSink for Kept {
        fn finished(&self, trace: Gathered) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(trace);
        }
    }

    fn made(parent: Option<TraceContext>, note: impl FnOnce(Arc<RequestTrace>)) -> Gathered {
        let kept = Arc::new(Kept::default());
        let levels = TraceLevels { timestamps: true, tensors: false };
        let ids = Some(SpanIds::below(parent));
        note(RequestTrace::begin(levels, &TraceBudget::new(1 << 20), Arc::clone(&kept) as _, ids).expect("room"));
        kept.0.lock().unwrap_or_else(PoisonError::into_inner).take().expect("a trace")
    }

    fn ran(trace: &RequestTrace, model: &str, id: &str, from: u64, to: u64) {
        trace.note_begin(&model.into(), &"3".into(), &id.into());
        trace.note("REQUEST_START", from);
        trace.note("QUEUE_START", from + 1);
        trace.note("COMPUTE_START", from + 2);
        trace.note("COMPUTE_END", to - 1);
        trace.note("REQUEST_END", to);
    }

    fn spans_of(trace: &Gathered) -> Vec<Span> {
        let spans = spans(trace, trace.ids.as_ref().expect("ids"), 1000);
        assert!(spans.len() <= count(trace));
        spans
    }

    /// `name<parent's name: events begin-end`, a span for each line.
    #[track_caller]
    fn check(trace: &Gathered, expected: &[&str]) {
        let spans = spans_of(trace);
        let name = |id: &[u8]| spans.iter().find(|span| span.span_id == id).map_or("", |span| span.name.as_str());
        let lines = spans.iter().map(|span| {
            let events: Vec<_> = span.events.iter().map(|event| event.name.as_str()).collect();
            let (begin, end) = (span.start_time_unix_nano, span.end_time_unix_nano);
            format!("{}<{}: {} {begin}-{end}", span.name, name(&span.parent_span_id), events.join(" "))
        });
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_request_is_three_spans() {
        let trace = made(None, |trace| {
            trace.note("HTTP_RECV_START", 1);
            ran(&trace, "m", "mine", 3, 9);
            trace.note("HTTP_SEND_END", 12);
        });
        check(
            &trace,
            &[
                "InferRequest<: HTTP_RECV_START HTTP_SEND_END 1001-1012",
                "m<InferRequest: REQUEST_START QUEUE_START REQUEST_END 1003-1009",
                "compute<m: COMPUTE_START COMPUTE_END 1005-1008",
            ],
        );
        let names: Vec<_> = spans_of(&trace)[1].attributes.iter().map(|one| one.key.clone()).collect();
        let expected = ["model_name", "model_version", "trace_id", "trace_parent_id", "request_id"];
        assert_eq!(names, expected.map(|name| format!("triton.{name}")));
    }

    #[test]
    fn what_a_model_asks_of_others_is_below_it() {
        let trace = made(None, |trace| {
            trace.note_begin(&"both".into(), &"1".into(), &Name::default());
            trace.note("REQUEST_START", 1);
            ran(&trace.child(), "first", "", 2, 8);
            let second = trace.child();
            ran(&second.child(), "inner", "", 11, 18);
            ran(&second, "second", "", 10, 19);
            trace.note("REQUEST_END", 20);
        });
        check(
            &trace,
            &[
                "InferRequest<:  1001-1020",
                "both<InferRequest: REQUEST_START REQUEST_END 1001-1020",
                "first<both: REQUEST_START QUEUE_START REQUEST_END 1002-1008",
                "compute<first: COMPUTE_START COMPUTE_END 1004-1007",
                "second<both: REQUEST_START QUEUE_START REQUEST_END 1010-1019",
                "compute<second: COMPUTE_START COMPUTE_END 1012-1018",
                "inner<second: REQUEST_START QUEUE_START REQUEST_END 1011-1018",
                "compute<inner: COMPUTE_START COMPUTE_END 1013-1017",
            ],
        );
    }

    #[test]
    fn a_request_that_runs_twice_computes_twice_and_one_that_is_refused_not_at_all() {
        let trace = made(None, |trace| {
            ran(&trace, "m", "", 1, 6);
            trace.note("COMPUTE_START", 7);
            trace.note("COMPUTE_END", 9);
        });
        assert_eq!(spans_of(&trace).iter().filter(|span| span.name == "compute").count(), 2);
        check(&made(None, |trace| trace.note("HTTP_RECV_START", 5)), &["InferRequest<: HTTP_RECV_START 1005-1005"]);
        check(&made(None, drop), &[]);
    }

    #[test]
    fn all_are_in_the_clients_trace_below_its_span() {
        let parent = TraceContext { trace_id: [1; 16], span_id: [2; 8], state: "a=b".into() };
        let trace = made(Some(parent), |trace| ran(&trace, "m", "", 1, 9));
        let spans = spans_of(&trace);
        assert!(spans.iter().all(|span| span.trace_id == [1; 16] && span.trace_state == "a=b"));
        let parents: Vec<_> = spans.iter().map(|span| (span.parent_span_id == [2; 8], span.flags)).collect();
        assert_eq!(parents, [(true, 0x301), (false, 0x101), (false, 0x101)]);
    }

    #[test]
    fn long_texts_and_many_points_are_cut() {
        let trace = made(None, |trace| {
            ran(&trace, "m", &"ä".repeat(4096), 1, 9);
            (0..1000).for_each(|ns| trace.note("HTTP_SEND_START", 10 + ns));
        });
        let spans = spans_of(&trace);
        assert_eq!((spans[0].events.len(), spans[0].dropped_events_count), (EVENTS_MAX, 872));
        assert_eq!(spans[0].end_time_unix_nano, 2009);
        let id = spans[1].attributes.last().and_then(|one| one.value.clone()).and_then(|value| value.value);
        assert_eq!(id, Some(Value::StringValue("ä".repeat(TEXT_BYTES_MAX / 2))));
    }
}
