//! Is a sequence over when one of its waiting requests is cancelled, or a running one is cut short?

use nerite_schedule::{Rejection, Scheduler};

use crate::sequences::{RUN_US, Simulation, direct, oldest, send};

/// `a:s` sends a request of sequence `a` with START, `a:e` one with END, and `a:` one without either. `!2` cancels request 2, counted from 0. `/2` says
/// that request 2, which runs, does not run to its end. `>` lets the running requests end. After the last step there is time for eight runs.
pub(super) fn do_steps(simulation: &mut Simulation, steps: &str) {
    let mut tickets = Vec::new();
    for step in steps.split_whitespace() {
        if let Some((sequence, flags)) = step.split_once(':') {
            tickets.push(send(simulation, u64::from(sequence.as_bytes()[0]), flags));
        } else if let Some(number) = step.strip_prefix('!') {
            simulation.driver.cancel(tickets[number.parse::<usize>().unwrap()], simulation.now_us);
            simulation.take();
        } else if let Some(number) = step.strip_prefix('/') {
            let number = number.parse::<usize>().unwrap();
            let state = simulation.ran.iter().find(|(ran, ..)| *ran == number).unwrap().1;
            simulation.cut_short(state);
        } else {
            simulation.pass_until(simulation.now_us + RUN_US);
        }
    }
    simulation.pass_until(simulation.now_us + 8 * RUN_US);
}

/// Checks which requests ran, were cancelled, and were refused because their sequence had not started.
#[track_caller]
fn check_with(scheduler: impl Scheduler + Send + 'static, steps: &str, expect: [&[usize]; 3]) {
    let mut simulation = Simulation::new(scheduler, 1, 2);
    do_steps(&mut simulation, steps);
    let mut ran: Vec<usize> = simulation.ran.iter().map(|(number, ..)| *number).collect();
    ran.sort_unstable();
    let rejected = |why| -> Vec<usize> {
        simulation.rejected.iter().filter(|(_, found)| **found == why).map(|(number, _)| *number).collect()
    };
    let found = [ran, rejected(Rejection::Cancelled), rejected(Rejection::MissingStart)];
    assert_eq!(found, expect, "{steps}: {:?}", simulation.rejected);
}

/// Checks both strategies, with and without a slot for a second sequence.
#[track_caller]
fn check(steps: &str, ran: &[usize], cancelled: &[usize], refused: &[usize]) {
    let expect = [ran, cancelled, refused];
    for places in [1, 2] {
        check_with(direct(1, places, 0, 0.0), steps, expect);
        check_with(oldest(1, places, 1, 0), steps, expect);
    }
}

#[test]
fn all_waiting_requests_of_a_sequence_are_cancelled_with_any_of_them() {
    for cancelled in ["!1", "!2", "!3", "!1 !2 !3", "!3 !1"] {
        check(&format!("a:s b:s b: b:e {cancelled} a:e"), &[0, 4], &[1, 2, 3], &[]);
    }
}

#[test]
fn a_running_request_is_not_cancelled_with_its_sequence() {
    check("a:s a: a: a:e !1", &[0], &[1, 2, 3], &[]);
    check("a:s > a: a: a: !2", &[0, 1], &[2, 3], &[]);
    check("a:s a:e !0", &[0, 1], &[], &[]);
    check("a:s > !0 a:e", &[0, 1], &[], &[]);
}

#[test]
fn a_cancelled_sequence_needs_a_start() {
    check("a:s a: !1 a: > a:", &[0], &[1], &[2, 3]);
    check("a:s a: !1 a:s a:e", &[0, 2, 3], &[1], &[]);
    check("a:s b:s !1 b: b:s b:e a:e", &[0, 3, 4, 5], &[1], &[2]);
}

#[test]
fn a_cancelled_sequence_leaves_its_slot() {
    check("a:s a: !1 b:s b:e c:s c:e", &[0, 2, 3, 4, 5], &[1], &[]);
    check("a:s b:s b:e c:s c:e a: !5", &[0, 1, 2, 3, 4], &[5], &[]);
}

#[test]
fn other_sequences_go_on() {
    check("a:s b:s c:s b: c: !1 a:e", &[0, 2, 4, 5], &[1, 3], &[]);
    // The second START of a sequence begins another one.
    check("a:s b:s b: b:s b:e !1 a:e", &[0, 3, 4, 5], &[1, 2], &[]);
    check("a:s b:s b: b:s b:e !3 a:e", &[0, 1, 2, 5], &[3, 4], &[]);
}

#[test]
fn a_sequence_ends_with_a_request_that_was_cut_short() {
    check("a:s a: a: a:e /0", &[0], &[1, 2, 3], &[]);
    check("a:s > a: a: /1 > a:e", &[0, 1], &[2], &[3]);
    check("a:s /0 > a: a:s a:e", &[0, 2, 3], &[], &[1]);
    check("a:s /0 a: b:s b:e", &[0, 2, 3], &[], &[1]);
    // Its last request leaves no hole behind, and the next sequence of that name is another one.
    check("a:s a:e > a:s a:e /1", &[0, 1, 2, 3], &[], &[]);
}
