//! Which peers are marked because threads waited for their requests?

use super::*;
use crate::stall::MARKING_NS;
use crate::thread_time::thread_cpu_ns;
use crate::{Started, noting_waits};

const WAIT: Duration = Duration::from_nanos(MARKING_NS + STALL_NS);
/// A busy machine may keep a thread off its processors for as long as a wait that counts.
const TRIES: usize = 20;

#[expect(clippy::disallowed_methods, reason = "the thread of the test waits")]
fn wait() {
    std::thread::sleep(WAIT);
}

/// Uses the processor for as long as [`wait`] waits.
fn compute() {
    let begun_ns = thread_cpu_ns();
    while thread_cpu_ns() - begun_ns < MARKING_NS + STALL_NS {}
}

/// Does `work` in a poll of this flow.
fn poll(flow: &Flow, work: impl FnOnce() + Send + 'static) {
    runtime().block_on(async { tokio::spawn(fair(FrontEnd::Http, flow, async move { work() })).await.unwrap() });
}

#[test]
#[ignore = "alone: compares elapsed and processor time of a poll"]
fn a_poll_that_waits_marks_its_peer_and_one_that_computes_does_not() {
    let queue = FairQueue::default();
    let computes = (0..TRIES).any(|n| {
        let flow = queue.open(&format!("computes {n}"));
        poll(&flow, compute);
        !flow.is_stalling()
    });
    assert!(computes);
    let (waits, same, other) = (queue.open("waits"), queue.open("waits"), queue.open("other"));
    poll(&waits, wait);
    assert!(waits.is_stalling() && same.is_stalling() && !other.is_stalling());
}

#[test]
#[ignore = "alone: compares elapsed and processor time of a poll"]
fn a_wait_for_the_request_of_another_connection_marks_that_one() {
    let queue = FairQueue::default();
    let (polls, of) = (queue.open("polls"), queue.open("of"));
    let (own, late) = (of.clone(), queue.open("late"));
    let late_too = late.clone();
    poll(&polls, move || {
        charging(Some(&own), wait);
        let started = Started::at(now_ns());
        wait();
        started.ended_late(Some(&late_too));
    });
    assert!(!polls.is_stalling() && of.is_stalling() && late.is_stalling());
    assert!(late.served_ns() >= STALL_NS && polls.served_ns() < STALL_NS, "it is charged for it as well");
}

#[test]
fn a_peer_is_marked_before_its_poll_ends() {
    let flow = FairQueue::default().open("one");
    let own = flow.clone();
    poll(&flow, move || {
        assert!(Started::with_late_poll().is_none());
        let started = Started::at(now_ns());
        wait();
        started.ended_late(None);
        assert!(own.is_stalling() && Started::with_late_poll().is_some());
    });
}

#[test]
fn a_wait_on_a_worker_marks_the_peer_of_the_work() {
    let flow = FairQueue::default().open("one");
    charging(Some(&flow), wait);
    Started::at(now_ns() - 2 * MARKING_NS).ended_late(Some(&flow));
    assert!(!flow.is_stalling(), "outside of a poll nothing is known of the thread");
    noting_waits(&flow, wait);
    assert!(flow.is_stalling());
}

#[test]
fn a_mark_stays_when_the_peer_has_closed_its_connections() {
    let queue = FairQueue::default();
    noting_waits(&queue.open("one"), wait);
    assert_eq!(queue.stalling_peers(), 1);
    (0..2 * PEERS_MIN).for_each(|n| drop(queue.open(&format!("other {n}"))));
    assert!(queue.open("one").is_stalling() && !queue.open("another").is_stalling());
}

#[test]
fn the_marks_that_are_kept_are_bounded() {
    let queue = FairQueue::default();
    for n in 0..KEPT_MARKS_MAX + 10 {
        queue.open(&format!("{n}")).note_wait(now_ns(), MARKING_NS);
    }
    assert_eq!(queue.stalling_peers(), KEPT_MARKS_MAX);
    assert!(!queue.open("0").is_stalling() && queue.open(&format!("{}", KEPT_MARKS_MAX + 9)).is_stalling());
}
