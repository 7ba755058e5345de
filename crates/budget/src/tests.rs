//! Do accounts keep their budgets in whatever order things happen?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::*;
use crate::account::Turn;

const MIB: usize = 1 << 20;

#[derive(Default)]
struct Told(AtomicUsize);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn told() -> (Arc<Told>, Waker) {
    let told = Arc::new(Told::default());
    (Arc::clone(&told), Waker::from(told))
}

/// Budgets of so many MiB.
fn budgets(all: u64, peer: u64, connection: u64) -> Budgets {
    let bytes = |mib: u64| Some(mib << 20);
    Budgets::new(Limits::new(0, bytes(all), bytes(peer), bytes(connection)))
}

fn may_read(account: &Account) -> bool {
    account.read_permit().turn(Waker::noop(), false) == Turn::Now
}

#[test]
fn what_is_dropped_is_released_and_a_peer_is_forgotten() {
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
fn past_the_low_mark_one_may_finish_and_the_others_wait_for_it() {
    let budgets = budgets(1000, 100, 100);
    let (one, two, light) = (budgets.open("a"), budgets.open("a"), budgets.open("a"));
    let (_first, mut second) = (one.charge(45 * MIB), two.charge(40 * MIB));
    let (mut reads, mut waits) = (one.read_permit(), two.read_permit());
    let (told, waker) = told();
    assert_eq!(reads.turn(Waker::noop(), false), Turn::Now);
    assert_eq!(waits.turn(&waker, false), Turn::Later);
    assert!(may_read(&light) && may_read(&budgets.open("b")));
    let before = told.0.load(Ordering::SeqCst);
    reads.done();
    assert_eq!(told.0.load(Ordering::SeqCst), before + 1);
    assert_eq!(waits.turn(&waker, false), Turn::Now);
    assert_ne!(reads.turn(Waker::noop(), false), Turn::Now);
    second.resize(MIB);
    assert_eq!(reads.turn(Waker::noop(), false), Turn::Now);
}

#[test]
fn past_the_high_mark_nobody_reads_until_what_was_ended_is_gone() {
    let budgets = budgets(1000, 100, 100);
    let (one, two) = (budgets.open("a"), budgets.open("a"));
    let (_first, mut second) = (one.charge(45 * MIB), two.charge(60 * MIB));
    assert!(two.shed().is_some() && one.shed().is_none());
    let (mut reads, light) = (one.read_permit(), budgets.open("a"));
    assert_eq!(reads.turn(Waker::noop(), false), Turn::Later);
    assert!(!one.read_permit().socket_turn(Waker::noop()) && light.read_permit().socket_turn(Waker::noop()));
    second.resize(54 * MIB);
    assert_eq!(reads.turn(Waker::noop(), false), Turn::Now);
    assert!(one.read_permit().socket_turn(Waker::noop()) && !two.read_permit().socket_turn(Waker::noop()));
}

#[test]
fn past_the_high_mark_the_costliest_connection_of_the_costliest_peer_goes() {
    let budgets = budgets(100, 100, 100);
    let (small, large, other) = (budgets.open("a"), budgets.open("a"), budgets.open("b"));
    let (told, waker) = told();
    assert!(large.shed_or_wake(&waker).is_none());
    let _charges = (small.charge(20 * MIB), large.charge(30 * MIB), other.charge(40 * MIB));
    assert!([&small, &large, &other].iter().all(|account| account.shed().is_none()));
    let more = other.charge(5 * MIB);
    let _more = small.charge(6 * MIB);
    assert_eq!(large.shed().map(|shed| (shed.reason, shed.peer.as_str())), Some((ShedReason::All, "a")));
    assert_eq!(told.0.load(Ordering::SeqCst), 1);
    assert!(small.shed().is_none() && other.shed().is_none());
    assert!(matches!(large.read_permit().turn(Waker::noop(), false), Turn::Never(_)));
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
    // The one is leaving, so that the other may have all.
    let _charge = (two.charge(45 * MIB), three.charge(45 * MIB));
    let others: Vec<_> = (0..3).map(|_| budgets.open("a")).collect();
    let _charges: Vec<_> = others.iter().map(|other| other.charge(25 * MIB)).collect();
    assert_eq!(two.shed().map(|shed| shed.reason), Some(ShedReason::Peer));
    assert!(others.iter().all(|other| other.shed().is_none()) && three.shed().is_none());
}

#[test]
fn who_waits_while_nothing_moves_has_the_costliest_ended() {
    let budgets = budgets(1000, 100, 100);
    let (one, two) = (budgets.open("a"), budgets.open("a"));
    let (mut first, _second) = (one.charge(40 * MIB), two.charge(45 * MIB));
    let (mut idle, mut waits) = (one.read_permit(), two.read_permit());
    assert_eq!(idle.turn(Waker::noop(), false), Turn::Now);
    assert_eq!(waits.turn(Waker::noop(), false), Turn::Later);
    first.grow(2 * MIB);
    waits.waited();
    assert!(two.shed().is_none(), "something moved");
    waits.waited();
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
    waits.waited();
    waits.waited();
    assert!(one.shed().is_some() || two.shed().is_some());
}

#[test]
fn many_threads_leave_nothing_booked() {
    let budgets = budgets(100_000, 100_000, 100_000);
    let account = budgets.open("a");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let account = &account;
            scope.spawn(move || {
                for n in 0..2000 {
                    let charge = account.charge((n * 7919 + thread) % (3 * MIB));
                    let more = account.charge(n);
                    drop((charge, more));
                }
            });
        }
    });
    assert_eq!(account.held(), limits::CONNECTION_BYTES);
    assert!(budgets.0.all.used() <= 2 * limits::STEP_BYTES);
    drop(account);
    assert_eq!(budgets.0.all.used(), 0);
}

#[test]
fn who_is_shed_hears_it_once_and_who_closes_does_not() {
    let budgets = budgets(1000, 100, 100);
    let (costly, other) = (budgets.open("a"), budgets.open("a"));
    let (told, _) = told();
    for account in [&costly, &other] {
        let told = Arc::clone(&told);
        account.on_shed(move || told.wake_by_ref());
    }
    let _first = costly.charge(60 * MIB);
    assert_eq!(told.0.load(Ordering::SeqCst), 0);
    let _second = other.charge(50 * MIB);
    assert!(costly.shed().is_some() && other.shed().is_none());
    other.close();
    costly.close();
    assert_eq!(told.0.load(Ordering::SeqCst), 1);
}
