//! Are the requests of the last seconds kept within bounds, and shown to those who may see them?

use nerite_request::{RequestTrace, TraceLevels};

use super::*;

const ALICE: Peer = Peer::User { uid: 4_000_000_001 };
const BOB: Peer = Peer::User { uid: 4_000_000_002 };

fn run(recent: &Arc<Recent>, owner: &Peer, request_id: &str) -> bool {
    let Some(sink) = recent.sink(owner, None) else { return false };
    let levels = TraceLevels { timestamps: true, tensors: false };
    let trace = RequestTrace::begin(levels, recent.budget(), sink, None).expect("room");
    trace.note("HTTP_RECV_START", 1000);
    trace.note_begin(&"m".into(), &"1".into(), &request_id.into());
    trace.note("COMPUTE_END", 5000);
    true
}

fn owners(seen: Result<Vec<Arc<RecentRequest>>, usize>) -> Vec<Peer> {
    seen.expect("may look").iter().map(|one| one.owner.clone()).collect()
}

/// Ends the window in which requests were recorded.
fn next_window(recent: &Recent) {
    recent.lock().taken.clear();
}

#[test]
fn nothing_is_noted_while_nobody_looks() {
    let recent = Recent::new();
    assert!(!recent.is_watched() && !run(&recent, &ALICE, ""));
    recent.requests_after(&Peer::own(), 0).expect("may look");
    assert!(recent.is_watched() && run(&recent, &ALICE, ""));
    assert!(!recent.has_just_ended());
    recent.lock().watchers.iter_mut().for_each(|(_, until)| *until = now_ns());
    assert!(!run(&recent, &ALICE, ""));
    recent.until_ns.store(now_ns(), Ordering::Relaxed);
    assert!(!recent.is_watched() && recent.has_just_ended() && !recent.has_just_ended());
}

#[test]
fn the_operator_sees_all_and_others_their_own() {
    let recent = Recent::new();
    recent.requests_after(&ALICE, 0).expect("may look");
    assert!(run(&recent, &ALICE, "first") && !run(&recent, &BOB, ""), "nobody who may see Bob's looks");
    recent.requests_after(&Peer::own(), 0).expect("may look");
    assert!(run(&recent, &BOB, ""));
    assert_eq!(owners(recent.requests_after(&Peer::own(), 0)), [ALICE, BOB]);
    assert_eq!(owners(recent.requests_after(&BOB, 0)), [BOB]);
    assert_eq!(owners(recent.requests_after(&Peer::own(), 1)), [BOB], "what was seen before is not told again");
    let seen = recent.requests_after(&ALICE, 0).expect("may look");
    assert_eq!(
        (seen[0].request_id.as_str(), seen[0].notes.len(), seen[0].begun_ns, seen[0].ended_ns),
        ("first", 3, 1000, 5000)
    );
}

#[test]
fn clients_that_are_not_identified_see_nothing_of_one_another() {
    let recent = Recent::new();
    recent.requests_after(&Peer::own(), 0).expect("may look");
    assert!(run(&recent, &Peer::Unidentified, ""));
    assert_eq!(owners(recent.requests_after(&Peer::Unidentified, 0)), []);
    assert_eq!(owners(recent.requests_after(&Peer::own(), 0)), [Peer::Unidentified]);
}

#[test]
fn a_busy_client_is_noted_now_and_then_and_hides_nobody() {
    let recent = Recent::new();
    recent.requests_after(&Peer::own(), 0).expect("may look");
    // The test runs in one window.
    recent.lock().window = now_ns() / WINDOW_NS;
    let noted = (0..1000).filter(|_| run(&recent, &ALICE, "")).count();
    assert!((TAKEN_PER_PEER_MAX as usize..100).contains(&noted), "{noted}");
    assert!(run(&recent, &BOB, ""));
    for _ in 0..1000 {
        next_window(&recent);
        run(&recent, &ALICE, "");
    }
    let seen = owners(recent.requests_after(&Peer::own(), 0));
    assert_eq!(seen.iter().filter(|owner| **owner == ALICE).count(), REQUESTS_PER_PEER_MAX);
    assert!(seen.contains(&BOB));
}

#[test]
fn what_is_kept_is_bounded_whatever_clients_send() {
    let recent = Recent::new();
    recent.requests_after(&Peer::own(), 0).expect("may look");
    for uid in 0..2000 {
        next_window(&recent);
        run(&recent, &Peer::User { uid }, &"x".repeat(1 << 16));
    }
    assert_eq!(recent.budget().used(), 0, "notes are copied when a request has ended");
    let seen = recent.requests_after(&Peer::own(), 0).expect("may look");
    assert_eq!(seen.len(), REQUESTS_MAX);
    assert!(seen.iter().all(|one| one.request_id.len() <= NAME_BYTES_MAX));
    next_window(&recent);
    let sink = recent.sink(&ALICE, None).expect("a sink");
    let levels = TraceLevels { timestamps: true, tensors: false };
    let trace = RequestTrace::begin(levels, recent.budget(), sink, None).expect("room");
    trace.note_begin(&"m".into(), &"1".into(), &"".into());
    (0..1_000_000).for_each(|ns| trace.note("QUEUE_START", ns));
    assert!(recent.budget().used() <= RECENT_BYTES_MAX);
    drop(trace);
    let seen = recent.requests_after(&ALICE, 0).expect("may look");
    assert!(seen[0].is_shortened && seen[0].notes.len() == NOTES_MAX);
}

#[test]
fn few_clients_may_look_and_the_operator_always() {
    let recent = Recent::new();
    let looks = (0..100).filter(|uid| recent.requests_after(&Peer::User { uid: 1 + uid }, 0).is_ok()).count();
    assert_eq!(looks, WATCHERS_MAX);
    assert!(recent.requests_after(&Peer::own(), 0).is_ok() && recent.requests_after(&BOB, 0).is_err());
    assert!(run(&recent, &ALICE, ""), "the operator looks");
}

#[test]
fn a_request_of_no_model_is_not_kept_and_others_get_the_notes_as_well() {
    struct Counts(AtomicU64);
    impl TraceSink for Counts {
        fn finished(&self, trace: Gathered) {
            self.0.fetch_add(trace.notes.len() as u64, Ordering::Relaxed);
        }
    }
    let (recent, next) = (Recent::new(), Arc::new(Counts(AtomicU64::new(0))));
    recent.requests_after(&Peer::own(), 0).expect("may look");
    let sink = recent.sink(&ALICE, Some(Arc::clone(&next) as _)).expect("a sink");
    let levels = TraceLevels { timestamps: true, tensors: false };
    let trace = RequestTrace::begin(levels, recent.budget(), sink, None).expect("room");
    trace.note("HTTP_RECV_START", 1);
    drop(trace);
    assert_eq!(next.0.load(Ordering::Relaxed), 1);
    assert!(recent.requests_after(&Peer::own(), 0).expect("may look").is_empty());
}
