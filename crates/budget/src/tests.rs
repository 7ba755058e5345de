//! Do accounts keep within their budgets in any order of events?
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::*;
use crate::account::{ReadDecision, ReadPermit};

const MIB: usize = 1 << 20;

#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counting_waker() -> (Arc<WakeCount>, Waker) {
    let wakes = Arc::new(WakeCount::default());
    (Arc::clone(&wakes), Waker::from(wakes))
}

/// Budgets of these sizes, in MiB.
fn budgets(all: u64, peer: u64, connection: u64) -> Budgets {
    let bytes = |mib: u64| Some(mib << 20);
    Budgets::new(Limits::new(0, bytes(all), bytes(peer), bytes(connection)))
}

fn may_read(account: &Account) -> bool {
    account.read_permit().decide(Waker::noop(), false) == ReadDecision::Read
}

#[test]
fn a_dropped_charge_is_released_and_a_peer_is_forgotten() {
    let budgets = budgets(100, 100, 100);
    let account = budgets.open("a");
    let small = account.charge(100);
    let booked = || budgets.0.all.used();
    assert_eq!((booked(), budgets.counts().used), (limits::STEP_BYTES, limits::CONNECTION_BYTES + 100));
    let mut large = account.charge(3 * MIB);
    assert!((3 * MIB as u64..4 * MIB as u64).contains(&booked()));
    large.resize(MIB);
    assert!(booked() < 2 * MIB as u64);
    drop((small, account));
    assert_eq!(budgets.counts().used, limits::CONNECTION_BYTES + MIB as u64, "a charge keeps its account");
    drop(large);
    assert_eq!((booked(), budgets.counts().used), (0, 0));
}

#[test]
fn above_the_low_mark_one_body_may_finish_and_the_others_wait() {
    let budgets = budgets(1000, 100, 100);
    let (one, two, light) = (budgets.open("a"), budgets.open("a"), budgets.open("a"));
    let (_first, mut second) = (one.charge(45 * MIB), two.charge(40 * MIB));
    let (mut reads, mut waits) = (one.read_permit(), two.read_permit());
    let (wakes, waker) = counting_waker();
    assert_eq!(reads.decide(Waker::noop(), false), ReadDecision::Read);
    assert_eq!(waits.decide(&waker, false), ReadDecision::Wait);
    assert!(may_read(&light) && may_read(&budgets.open("b")));
    let before = wakes.0.load(Ordering::SeqCst);
    reads.done();
    assert_eq!(wakes.0.load(Ordering::SeqCst), before + 1);
    assert_eq!(waits.decide(&waker, false), ReadDecision::Read);
    assert_ne!(reads.decide(Waker::noop(), false), ReadDecision::Read);
    second.resize(MIB);
    assert_eq!(reads.decide(Waker::noop(), false), ReadDecision::Read);
}

#[test]
fn above_the_high_mark_no_heavy_holder_reads_until_the_ended_one_has_released() {
    let budgets = budgets(1000, 100, 100);
    let (one, two) = (budgets.open("a"), budgets.open("a"));
    let (_first, mut second) = (one.charge(45 * MIB), two.charge(60 * MIB));
    assert!(two.shed().is_some() && one.shed().is_none());
    let (mut reads, light) = (one.read_permit(), budgets.open("a"));
    assert_eq!(reads.decide(Waker::noop(), false), ReadDecision::Wait);
    assert!(!one.read_permit().may_read_socket(Waker::noop()) && light.read_permit().may_read_socket(Waker::noop()));
    second.resize(54 * MIB);
    assert_eq!(reads.decide(Waker::noop(), false), ReadDecision::Read);
    assert!(one.read_permit().may_read_socket(Waker::noop()) && !two.read_permit().may_read_socket(Waker::noop()));
}

#[test]
fn above_the_high_mark_the_largest_connection_of_the_largest_peer_is_ended() {
    let budgets = budgets(100, 100, 100);
    let (small, large, other) = (budgets.open("a"), budgets.open("a"), budgets.open("b"));
    let (wakes, waker) = counting_waker();
    assert!(large.shed_or_wake(&waker).is_none());
    let _charges = (small.charge(20 * MIB), large.charge(30 * MIB), other.charge(40 * MIB));
    assert!([&small, &large, &other].iter().all(|account| account.shed().is_none()));
    let more = other.charge(5 * MIB);
    let _more = small.charge(6 * MIB);
    assert_eq!(large.shed().map(|shed| (shed.reason, shed.peer.as_str())), Some((ShedReason::All, "a")));
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert!(small.shed().is_none() && other.shed().is_none());
    assert!(matches!(large.read_permit().decide(Waker::noop(), false), ReadDecision::End(_)));
    let counts = budgets.counts();
    assert_eq!(counts.shed, [("connection", 0), ("peer", 0), ("all", 1), ("stalled", 0)]);
    assert_eq!((counts.used, counts.leaving), (small.held() + other.held(), large.held()));
    drop(more);
}

#[test]
fn a_connection_and_a_peer_have_budgets_of_their_own() {
    let budgets = budgets(1000, 100, 50);
    let (one, two, three) = (budgets.open("a"), budgets.open("a"), budgets.open("b"));
    let _charge = one.charge(51 * MIB);
    assert_eq!(one.shed().map(|shed| shed.reason), Some(ShedReason::Connection));
    // The first one is ending, so that the second may use all.
    let _charge = (two.charge(45 * MIB), three.charge(45 * MIB));
    let others: Vec<_> = (0..3).map(|_| budgets.open("a")).collect();
    let _charges: Vec<_> = others.iter().map(|other| other.charge(25 * MIB)).collect();
    assert_eq!(two.shed().map(|shed| shed.reason), Some(ShedReason::Peer));
    assert!(others.iter().all(|other| other.shed().is_none()) && three.shed().is_none());
}

#[test]
fn after_a_stall_the_largest_connection_is_ended() {
    let budgets = budgets(1000, 100, 100);
    let (one, two) = (budgets.open("a"), budgets.open("a"));
    let (mut first, _second) = (one.charge(40 * MIB), two.charge(45 * MIB));
    let (mut idle, mut waits) = (one.read_permit(), two.read_permit());
    assert_eq!(idle.decide(Waker::noop(), false), ReadDecision::Read);
    assert_eq!(waits.decide(Waker::noop(), false), ReadDecision::Wait);
    first.grow(2 * MIB);
    waits.check_stall();
    assert!(two.shed().is_none(), "a budget changed");
    waits.check_stall();
    assert_eq!(two.shed().map(|shed| shed.reason), Some(ShedReason::Stalled));
}

#[test]
fn a_stall_is_resolved_where_only_the_rounding_is_past_the_mark() {
    let budgets = budgets(1000, 100, 100);
    let kib = 1 << 10;
    let (one, two, _idle) = (budgets.open("a"), budgets.open("a"), budgets.open("a"));
    let bytes = 75 * MIB / 2 - limits::CONNECTION_BYTES as usize - 30 * kib;
    let _charges = (one.charge(bytes), two.charge(bytes));
    assert!(budgets.0.all.used() > 75 << 20 && one.held() + two.held() + limits::CONNECTION_BYTES < 75 << 20);
    let mut waits = one.read_permit();
    waits.check_stall();
    waits.check_stall();
    assert!(one.shed().is_some() || two.shed().is_some());
}

#[test]
fn a_connection_that_is_being_ended_does_not_end_others() {
    let budgets = budgets(1000, 100, 1000);
    let (first, second) = (budgets.open("a"), budgets.open("a"));
    let mut large = first.charge(60 * MIB);
    let _small = second.charge(45 * MIB);
    assert!(first.shed().is_some() && second.shed().is_none());
    // However its bytes change, they count as leaving.
    for mib in [80, 20, 0, 90] {
        large.resize(mib * MIB);
        assert_eq!(budgets.0.all.staying(), (45 << 20) + limits::STEP_BYTES, "{mib}");
    }
    first.close();
    drop((large, first));
    assert_eq!(budgets.0.all.staying(), budgets.0.all.used());
    let _more = second.charge(54 * MIB);
    assert!(second.shed().is_none());
    let _more = second.charge(MIB);
    assert!(second.shed().is_some());
}

#[test]
fn a_change_of_a_budget_wakes_a_bounded_number_of_bodies_in_turns() {
    let budgets = budgets(1000, 100, 100);
    let (one, two) = (budgets.open("a"), budgets.open("a"));
    let _charges = (one.charge(45 * MIB), two.charge(40 * MIB));
    let mut exempt = two.read_permit();
    assert_eq!(exempt.decide(Waker::noop(), false), ReadDecision::Read);
    let mut waiters: Vec<_> =
        (0..3 * limits::WOKEN_AT_ONCE_MAX).map(|_| (one.read_permit(), counting_waker())).collect();
    for (permit, (_, waker)) in &mut waiters {
        assert_eq!(permit.decide(waker, false), ReadDecision::Wait);
    }
    let wakes = |waiters: &[(ReadPermit, (Arc<WakeCount>, Waker))]| {
        waiters.iter().map(|(_, (wakes, _))| wakes.0.load(Ordering::SeqCst)).collect::<Vec<_>>()
    };
    exempt.done();
    assert_eq!(wakes(&waiters).iter().sum::<usize>(), limits::WOKEN_AT_ONCE_MAX);
    for _ in 0..2 {
        assert_eq!(exempt.decide(Waker::noop(), false), ReadDecision::Read);
        exempt.done();
    }
    assert!(wakes(&waiters).iter().all(|count| *count == 1));
    // The end of a connection concerns its own bodies only.
    two.close();
    assert!(wakes(&waiters).iter().all(|count| *count == 1));
    one.close();
    assert!(wakes(&waiters).iter().all(|count| *count == 2));
}

#[test]
fn many_threads_leave_nothing_booked() {
    let budgets = budgets(100_000, 100_000, 100_000);
    let account = budgets.open("a");
    std::thread::scope(|budget| {
        for thread in 0..4 {
            let account = &account;
            budget.spawn(move || {
                for n in 0..2000 {
                    let charge = account.charge((n * 7919 + thread) % (3 * MIB));
                    let more = account.charge(n);
                    if n == 1000 + thread {
                        account.close();
                    }
                    drop((charge, more));
                }
            });
        }
    });
    assert_eq!(account.held(), limits::CONNECTION_BYTES);
    assert!(budgets.0.all.used() <= 2 * limits::STEP_BYTES);
    assert_eq!(budgets.0.all.staying(), 0);
    drop(account);
    assert_eq!((budgets.0.all.used(), budgets.0.all.staying()), (0, 0));
}

#[test]
fn an_ended_connection_is_notified_once_and_a_closed_one_is_not() {
    let budgets = budgets(1000, 100, 100);
    let (large, other) = (budgets.open("a"), budgets.open("a"));
    let (wakes, _) = counting_waker();
    for account in [&large, &other] {
        let wakes = Arc::clone(&wakes);
        account.on_shed(move || wakes.wake_by_ref());
    }
    let _first = large.charge(60 * MIB);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    let _second = other.charge(50 * MIB);
    assert!(large.shed().is_some() && other.shed().is_none());
    other.close();
    large.close();
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
}

#[test]
fn what_a_peer_keeps_counts_in_its_budget_and_is_refused_beyond_half_of_it() {
    let budgets = budgets(1000, 100, 1000);
    let (retained, connection) = (budgets.of_peer("a"), budgets.open("a"));
    let mut first = retained.charge(40 * MIB).unwrap();
    let refused = retained.charge(11 * MIB).unwrap_err();
    assert_eq!((refused.of_all, refused.retained, refused.max), (false, 40 << 20, 50 << 20));
    assert_eq!(retained.retained(), 40 << 20, "a refused charge leaves nothing");
    // A clone of the account is the same one, and so is the account that is opened again.
    let second = budgets.of_peer("a").charge(10 * MIB).unwrap();
    assert!(first.resize(41 * MIB).is_err() && first.bytes() == 40 * MIB);
    // The rest of the budget is for connections, and one that exceeds it is ended. What is retained stays.
    let large = connection.charge(49 * MIB);
    assert!(connection.shed().is_none());
    let more = connection.charge(2 * MIB);
    assert_eq!(connection.shed().map(|shed| shed.reason), Some(ShedReason::Peer));
    assert_eq!(retained.retained(), 50 << 20);
    drop((large, more, connection, first, second, retained));
    assert_eq!((budgets.0.all.used(), budgets.0.all.staying()), (0, 0));
    assert_eq!(budgets.of_peer("a").charge(50 * MIB).map(drop), Ok(()), "nothing is left of the earlier charges");
}

#[test]
fn all_peers_together_keep_half_of_the_whole_budget_at_the_most() {
    let budgets = budgets(100, 80, 80);
    let [a, b] = ["a", "b"].map(|peer| budgets.of_peer(peer));
    let first = a.charge(40 * MIB).unwrap();
    let refused = b.charge(11 * MIB).unwrap_err();
    assert_eq!((refused.of_all, refused.retained, refused.max), (true, 40 << 20, 50 << 20));
    assert_eq!(b.retained(), 0, "a refused charge leaves nothing");
    assert!(b.charge(10 * MIB).is_ok());
    drop(first);
    assert!(b.charge(40 * MIB).is_ok());
}

#[test]
fn peers_that_keep_little_are_not_refused_for_what_others_keep() {
    let budgets = budgets(100, 80, 80);
    let light = limits::LIGHT_BYTES_MAX as usize;
    let [a, b, c] = ["a", "b", "c"].map(|peer| budgets.of_peer(peer));
    let _retained = (a.charge(40 * MIB).unwrap(), b.charge(10 * MIB).unwrap());
    assert!(b.charge(1).unwrap_err().of_all, "it keeps much");
    let little = c.charge(light).unwrap();
    let refused = c.charge(1).unwrap_err();
    assert_eq!((refused.of_all, refused.retained, refused.max), (true, (50 << 20) + light as u64, 50 << 20));
    drop(little);
    // The part that is reserved for such peers is limited, too.
    let peers: Vec<_> = (0..51).map(|number| budgets.of_peer(&number.to_string())).collect();
    let little: Vec<_> = peers.iter().map_while(|peer| peer.charge(light).ok()).collect();
    assert_eq!(little.len(), 50, "5/8 of 100 MiB");
}

#[test]
fn one_peer_leaves_a_part_of_what_may_be_retained_to_others() {
    let budgets = budgets(128, 128, 128);
    let [a, b] = ["a", "b"].map(|peer| budgets.of_peer(peer));
    let _first = a.charge(56 * MIB).unwrap();
    let refused = a.charge(1).unwrap_err();
    assert_eq!((refused.of_all, refused.max), (false, 56 << 20));
    assert!(b.charge(8 * MIB).is_ok());
}

#[test]
fn what_a_peer_keeps_gets_none_of_its_connections_ended_before_larger_ones_of_others() {
    let budgets = budgets(100, 90, 90);
    let _retained = budgets.of_peer("a").charge(40 * MIB).unwrap();
    let (small, large) = (budgets.open("a"), budgets.open("b"));
    let _charges = (small.charge(15 * MIB), large.charge(46 * MIB));
    assert_eq!(large.shed().map(|shed| (shed.reason, shed.peer.as_str())), Some((ShedReason::All, "b")));
    assert!(small.shed().is_none());
}

#[test]
fn no_more_connections_are_ended_than_have_to_be() {
    let budgets = budgets(100, 100, 100);
    let connections: Vec<_> = (0..9).map(|_| budgets.open("a")).collect();
    let _charges: Vec<_> = connections.iter().map(|connection| connection.charge(10 * MIB)).collect();
    // What is added at once is more than the largest two hold.
    let other = budgets.open("b");
    let _charge = other.charge(35 * MIB);
    assert_eq!(connections.iter().filter(|connection| connection.shed().is_some()).count(), 3);
    assert!(other.shed().is_none());
}

#[test]
fn many_threads_keep_no_more_than_they_may_and_leave_nothing() {
    let budgets = budgets(128, 100, 100);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let budgets = &budgets;
            scope.spawn(move || {
                for n in 0..500 {
                    // Two peers, whose accounts come and go.
                    let account = budgets.of_peer(if n % 2 == 0 { "a" } else { "b" });
                    let charge = account.charge((n * 7919 + thread) % (20 * MIB));
                    assert!(account.retained() <= 50 << 20);
                    drop(charge);
                }
            });
        }
    });
    let all = budgets.of_peer("a").charge(50 * MIB);
    assert!(all.is_ok(), "{all:?}");
    drop(all);
    assert_eq!((budgets.0.all.used(), budgets.0.all.staying()), (0, 0));
}
