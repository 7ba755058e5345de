//! How does the page get the traces of its own requests?
//!
//! The page sends a number with a request, and fetches the trace by that number when it has the answer. Later traces replace those that are never
//! fetched, so they need no other removal.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;
use nerite_request::{Gathered, Noted, Peer, RequestTrace, TraceBudget, TraceLevels, TraceSink};
use nerite_wire::json::Writer;

use crate::limits::{NOTES_MAX, TRACES_BYTES_MAX, TRACES_MAX, TRACES_PER_PEER_MAX};

/// Traces that have ended and wait to be fetched, oldest first.
pub struct Traces {
    kept: Mutex<VecDeque<Kept>>,
    budget: Arc<TraceBudget>,
}

struct Kept {
    owner: Peer,
    token: u64,
    trace: Gathered,
}

/// Stores one trace when it has ended.
struct Sink {
    traces: Arc<Traces>,
    owner: Peer,
    token: u64,
}

impl Traces {
    /// No traces yet.
    pub fn new() -> Arc<Traces> {
        Arc::new(Traces { kept: Mutex::default(), budget: TraceBudget::new(TRACES_BYTES_MAX) })
    }

    /// A trace for a request of `owner`, which fetches it by `token`. `None` if the traces of requests in flight use the whole budget.
    pub fn begin(self: &Arc<Traces>, owner: &Peer, token: u64) -> Option<Arc<RequestTrace>> {
        let levels = TraceLevels { timestamps: true, tensors: false };
        let sink = || Arc::new(Sink { traces: Arc::clone(self), owner: owner.clone(), token });
        loop {
            if let Some(trace) = RequestTrace::begin(levels, &self.budget, sink(), None) {
                return Some(trace);
            }
            let oldest = self.lock().pop_front();
            oldest.as_ref()?;
        }
    }

    /// Returns an ended trace as JSON, and removes it.
    pub fn take(&self, owner: &Peer, token: u64) -> Option<Vec<u8>> {
        let found = {
            let mut kept = self.lock();
            let at = kept.iter().position(|one| one.token == token && one.owner == *owner)?;
            kept.remove(at)
        };
        found.map(|one| write(&one.trace))
    }

    fn keep(&self, one: Kept) {
        let mut kept = self.lock();
        let of_owner = kept.iter().filter(|other| other.owner == one.owner).count();
        let pushed_out = if of_owner >= TRACES_PER_PEER_MAX {
            kept.iter().position(|other| other.owner == one.owner)
        } else {
            (kept.len() >= TRACES_MAX).then_some(0)
        };
        let gone = pushed_out.and_then(|at| kept.remove(at));
        kept.push_back(one);
        drop(kept);
        drop(gone);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TraceSink for Sink {
    fn finished(&self, trace: Gathered) {
        self.traces.keep(Kept { owner: self.owner.clone(), token: self.token, trace });
    }
}

/// The notes in the order in which they were made, with times in ns from the first of them.
fn write(trace: &Gathered) -> Vec<u8> {
    let times =
        trace.notes.iter().filter_map(|note| if let Noted::Passed(_, ns) = note.what { Some(ns) } else { None });
    let first = times.min().unwrap_or_default();
    let notes = trace.notes.len().min(NOTES_MAX);
    let mut out = Writer::with_capacity(64 + 64 * notes);
    out.object(|out| {
        out.key("is_shortened").bool(trace.is_shortened || notes < trace.notes.len());
        out.key("notes").array(|out| {
            for note in trace.notes.iter().take(notes) {
                match &note.what {
                    Noted::Begin(begin) => out.object(|out| {
                        out.key("id").unsigned(note.id);
                        out.key("parent").unsigned(begin.parent);
                        out.key("model").string(begin.model.as_bytes());
                        out.key("version").string(begin.version.as_bytes());
                    }),
                    Noted::Passed(point, ns) => write_point(out, note.id, point.as_bytes(), ns - first),
                    // The time of such a point is the one that the model reported.
                    Noted::Reported(point, ns) => write_point(out, note.id, point.as_bytes(), ns.saturating_sub(first)),
                    Noted::Tensor(_) => {}
                }
            }
        });
    });
    out.into_bytes()
}

fn write_point(out: &mut Writer, id: u64, point: &[u8], ns: u64) {
    out.object(|out| {
        out.key("id").unsigned(id);
        out.key("point").string(point);
        out.key("ns").unsigned(ns);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRANGER: Peer = Peer::User { uid: 4_000_000_001 };

    fn run(traces: &Arc<Traces>, owner: &Peer, token: u64) {
        let trace = traces.begin(owner, token).expect("room");
        trace.note_begin(&"m".into(), &"1".into(), &"".into());
        trace.note("QUEUE_START", 1000);
        trace.note("COMPUTE_START", 1500);
    }

    #[test]
    fn a_trace_is_sent_once_and_to_its_owner_only() {
        let traces = Traces::new();
        run(&traces, &STRANGER, 7);
        assert_eq!(traces.take(&Peer::own(), 7), None);
        let text = String::from_utf8(traces.take(&STRANGER, 7).expect("the trace")).expect("UTF-8");
        assert!(text.starts_with(r#"{"is_shortened":false,"notes":[{"id":"#), "{text}");
        assert!(
            text.contains(r#""model":"m","version":"1"}"#) && text.contains(r#""point":"COMPUTE_START","ns":500}"#),
            "{text}"
        );
        assert_eq!(traces.take(&STRANGER, 7), None);
    }

    #[test]
    fn one_peer_keeps_a_few_and_replaces_only_its_own() {
        let traces = Traces::new();
        run(&traces, &Peer::own(), 1);
        (0..1000).for_each(|token| run(&traces, &STRANGER, token));
        assert!(traces.take(&STRANGER, 0).is_none() && traces.take(&STRANGER, 999).is_some());
        assert_eq!(traces.lock().len(), TRACES_PER_PEER_MAX);
        assert!(traces.take(&Peer::own(), 1).is_some());
    }

    #[test]
    fn all_peers_together_keep_a_bounded_number() {
        let traces = Traces::new();
        (0..1000).for_each(|uid| run(&traces, &Peer::User { uid }, 0));
        assert_eq!(traces.lock().len(), TRACES_MAX);
    }

    #[test]
    fn traces_that_fill_the_budget_are_replaced_by_new_ones() {
        let traces = Traces::new();
        for uid in 0..20 {
            let trace = traces.begin(&Peer::User { uid }, 0).expect("room");
            (0..100_000).for_each(|_| trace.note("QUEUE_START", 1));
        }
        assert!(traces.budget.used() <= TRACES_BYTES_MAX);
        run(&traces, &STRANGER, 1);
        assert!(traces.take(&STRANGER, 1).is_some());
    }
}
