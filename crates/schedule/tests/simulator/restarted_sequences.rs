//! Does a sequence that starts before the END of an earlier one with the same id run behind it?

use nerite_schedule::Scheduler;

use crate::cancelled_sequences::do_steps;
use crate::sequences::{Simulation, direct, oldest};

/// Does these steps, and checks which requests ran one after the other. Those that ran in one batch are joined by `+`.
#[track_caller]
fn check_with(scheduler: impl Scheduler + Send + 'static, rows_max: usize, steps: &str, ran: &str) {
    let mut simulation = Simulation::new(scheduler, 1, rows_max);
    do_steps(&mut simulation, steps);
    let shown: Vec<String> = simulation
        .batches()
        .into_iter()
        .map(|mut batch| {
            batch.sort_unstable();
            batch.iter().map(usize::to_string).collect::<Vec<_>>().join("+")
        })
        .collect();
    assert_eq!(shown.join(" "), ran, "{steps}, {rows_max} rows");
}

/// Checks both strategies, with so many slots.
#[track_caller]
fn check(slots: usize, steps: &str, ran: &str) {
    check_with(direct(1, slots, 0, 0.0), slots, steps, ran);
    check_with(oldest(1, slots, slots as u32, 0), slots, steps, ran);
}

#[test]
fn the_requests_of_the_earlier_sequence_run_first() {
    for slots in [1, 2, 4] {
        check(slots, "a:s a: a: a:s a:", "0 1 2 3 4");
        check(slots, "a:s a:s a:s a:e", "0 1 2 3");
        check(slots, "a:s > a:s a:s > a:s a:", "0 1 2 3 4");
    }
}

#[test]
fn others_run_beside_them() {
    check(2, "a:s a: b:s a:s b: a:", "0 1+2 3+4 5");
    check(4, "a:s a: b:s a:s b:s a:", "0 1+2 3+4 5");
}

#[test]
fn the_new_sequence_gets_the_slot_before_the_backlog() {
    check(1, "a:s a: b:s a:s a:e b:e", "0 1 3 4 2 5");
    check(1, "a:s b:s a:s a:s > a:e b:e", "0 2 3 4 1 5");
}

#[test]
fn the_new_sequence_keeps_its_place_in_the_backlog() {
    check(1, "a:s b:s c:s b:s b:e c:e a:e", "0 6 1 3 4 2 5");
    // The earlier one is cancelled.
    check(1, "a:s b:s c:s b:s b:e c:e !1 a:e", "0 6 3 4 2 5");
    check(1, "a:s b:s b:s b:s c:e c:s !2 b:e c:e a:e", "0 8 1 3 6 5 7");
}

#[test]
fn a_new_sequence_that_is_cancelled_leaves_the_earlier_one_alone() {
    check(2, "a:s a: a:s a: !2 a:e a:s a:e", "0 1 5 6");
    check(1, "a:s a: b:s a:s !3 a:s a:e b:e", "0 1 4 5 2 6");
}

#[test]
fn a_cancelled_sequence_runs_before_the_next_one() {
    check(2, "a:s a: !1 a:s a:e", "0 2 3");
    check(2, "a:s a: !1 b:s a:s b:e a:e", "0 2+3 4+5");
}

#[test]
fn after_its_end_a_sequence_with_the_same_id_is_another_one() {
    check(2, "a:s a:e a:s a:e", "0 1+2 3");
    check(1, "a:s b:s a:e a:s a:e b:e", "0 2 1 5 3 4");
}
