//! Which batches follow from which events?

use super::*;
use crate::{Deadline, Driver, Span, TimeoutAction};

/// A driver whose jobs are the numbers of the requests, from 1. `last` is the number of the newest one.
struct Table {
    driver: Driver<u64>,
    last: u64,
}

impl Table {
    fn new(policy: BatchPolicy) -> Table {
        Table { driver: Driver::new(Box::new(Batcher::new(policy))), last: 0 }
    }

    /// Adds a request at that time.
    #[track_caller]
    fn arrives(&mut self, now_us: u64, fill: impl FnOnce(&mut Arrival), expect: &str) {
        self.last += 1;
        let arrival = |ticket| {
            let mut arrival = Arrival::new(ticket, 1);
            fill(&mut arrival);
            arrival
        };
        self.driver.arrive(self.last, arrival, now_us);
        self.check(expect);
    }

    #[track_caller]
    fn grants(&mut self, now_us: u64, expect: &str) {
        self.driver.grant(InstanceId(0), now_us);
        self.check(expect);
    }

    /// Checks the decisions: in `1+2` requests 1 and 2 run together, in `3!` request 3 is rejected, `.` is no decision.
    #[track_caller]
    fn check(&mut self, expect: &str) {
        let mut shown = Vec::new();
        while let Some(run) = self.driver.next_run() {
            shown.push(run.jobs().map(u64::to_string).collect::<Vec<_>>().join("+"));
        }
        while let Some((job, _)) = self.driver.next_rejected() {
            shown.push(format!("{job}!"));
        }
        let shown = if shown.is_empty() { ".".to_owned() } else { shown.join(" ") };
        assert_eq!(shown, expect, "after request {}", self.last);
    }
}

fn policy(rows_max: u32) -> BatchPolicy {
    BatchPolicy { rows_max, preferred: vec![rows_max], ..BatchPolicy::default() }
}

#[test]
fn requests_that_came_while_an_instance_ran_run_together() {
    let mut table = Table::new(policy(4));
    table.grants(0, ".");
    table.arrives(1, |_| {}, "1");
    (2..=6).for_each(|_| table.arrives(2, |_| {}, "."));
    table.grants(3, "2+3+4+5");
    table.grants(4, "6");
}

#[test]
fn the_first_level_runs_first_and_joins_the_forming_batch() {
    let levels = PriorityLevels { count: 2, default_level: 2, ..PriorityLevels::default() };
    let mut table = Table::new(BatchPolicy { delay_us: 100, levels, ..policy(3) });
    table.grants(0, ".");
    table.arrives(1, |one| one.priority = 2, ".");
    table.arrives(2, |one| one.priority = 2, ".");
    assert_eq!(table.driver.wake_at_us(), Some(101));
    table.arrives(3, |one| one.priority = 1, "3+1+2");
}

#[test]
fn a_full_level_takes_no_more_and_others_do() {
    let own = QueuePolicy { requests_max: Some(1), ..QueuePolicy::default() };
    let levels = PriorityLevels { count: 2, policies: [(1, own)].into(), ..PriorityLevels::default() };
    let mut table = Table::new(BatchPolicy { requests_max: Some(4), levels, ..policy(4) });
    table.arrives(0, |one| one.priority = 1, ".");
    table.arrives(0, |one| one.priority = 1, "2!");
    table.arrives(0, |one| one.priority = 2, ".");
    table.arrives(0, |one| one.priority = 2, ".");
    table.arrives(0, |one| one.priority = 2, "5!");
    table.grants(0, "1+3+4");
}

#[test]
fn a_peer_that_fills_a_level_keeps_no_other_out() {
    let own = QueuePolicy { requests_max: Some(2), ..QueuePolicy::default() };
    let levels = PriorityLevels { default_policy: own, ..PriorityLevels::default() };
    let mut table = Table::new(BatchPolicy { levels, ..policy(2) });
    let of = |peer| move |one: &mut Arrival| one.client.peer = peer;
    table.arrives(0, of(1), ".");
    table.arrives(0, of(1), ".");
    table.arrives(0, of(1), "3!");
    table.arrives(0, of(2), ".");
    table.arrives(0, of(2), "5!");
    table.grants(0, "1+4");
    // One of peer 1 still waits.
    table.arrives(0, of(1), ".");
}

#[test]
fn where_the_order_of_arrival_holds_peers_share_the_places_and_take_no_turns() {
    let mut table = Table::new(BatchPolicy { requests_max: Some(4), ..policy(1) });
    let of = |peer| move |one: &mut Arrival| (one.client.peer, one.in_order) = (peer, true);
    for expect in [".", ".", ".", "4!"] {
        table.arrives(0, of(1), expect);
    }
    table.arrives(0, of(2), ".");
    for expect in ["1", "2", "3", "5"] {
        table.grants(0, expect);
    }
}

#[test]
fn expired_requests_are_removed_before_a_new_one_is_counted() {
    let levels = PriorityLevels {
        default_policy: QueuePolicy { requests_max: Some(1), ..QueuePolicy::default() },
        ..PriorityLevels::default()
    };
    let mut table = Table::new(BatchPolicy { levels, ..policy(4) });
    table.arrives(0, |one| one.deadline = Some(Deadline { at_us: 10, action: TimeoutAction::Reject }), ".");
    assert_eq!(table.driver.wake_at_us(), Some(10));
    table.arrives(10, |_| {}, "1!");
    table.arrives(10, |_| {}, "3!");
}

#[test]
fn when_a_request_leaves_the_forming_batch_its_delay_ends() {
    let mut table = Table::new(BatchPolicy { delay_us: 100, ..policy(3) });
    table.grants(0, ".");
    table.arrives(1, |_| {}, ".");
    table.arrives(50, |_| {}, ".");
    table.driver.cancel(Ticket(1), 60);
    table.check("1!");
    assert_eq!(table.driver.wake_at_us(), Some(150));
    table.driver.wake(150);
    table.check("2");
}

#[test]
fn a_stop_waits_for_no_delay() {
    let mut table = Table::new(BatchPolicy { delay_us: 100, hold_back: 9, ..policy(3) });
    table.grants(0, ".");
    table.arrives(1, |_| {}, ".");
    table.driver.stop(2);
    table.check("1");
    table.arrives(3, |_| {}, "2!");
}

#[test]
fn rows_that_lie_end_to_end_are_put_in_their_order() {
    let mut table = Table::new(BatchPolicy { by_spans: true, ..policy(3) });
    for offset in [8, 0, 4] {
        table.arrives(0, |one| one.spans.push(Span { allocation: 1, offset, len: 4 }), ".");
    }
    table.grants(0, "2+3+1");
}
