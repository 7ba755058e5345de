//! Where do sequences run while instances come and go?

use nerite_schedule::{InstanceId, Scheduler};

use crate::sequences::{IDLE_US, RUN_US, Simulation, direct, oldest, send};

/// `a:s` sends a request of sequence `a` with START, `a:e` one with END, and `a:` one without either. `!2` cancels request 2, counted from 0. `+` adds an
/// instance, and `x1` removes instance 1. `>` lets the running requests end, and `~` lets sequences end that are idle. Returns where the requests ran:
/// `2@0` is request 2 on instance 0, and `x1` says that no sequence is bound to instance 1 any more. `|` ends what followed from one step.
fn shown(scheduler: impl Scheduler + Send + 'static, instances: usize, steps: &str) -> String {
    let mut simulation = Simulation::new(scheduler, instances, 1);
    let (mut tickets, mut leaving, mut shown) = (Vec::new(), Vec::new(), Vec::new());
    for step in steps.split_whitespace() {
        let ran = simulation.ran.len();
        let number = || step[1..].parse::<usize>().unwrap();
        match step.as_bytes()[0] {
            b'+' => simulation.add(),
            b'x' => {
                leaving.push(InstanceId(number()));
                simulation.remove(InstanceId(number()));
            }
            b'!' => {
                simulation.driver.cancel(tickets[number()], simulation.now_us);
                simulation.take();
            }
            b'>' => simulation.pass_until(simulation.now_us + RUN_US),
            b'~' => simulation.pass_until(simulation.now_us + IDLE_US),
            sequence => tickets.push(send(&mut simulation, u64::from(sequence), &step[2..])),
        }
        let mut now: Vec<_> =
            simulation.ran[ran..].iter().map(|(number, _, instance, ..)| format!("{number}@{instance}")).collect();
        let (left, stay) = leaving.into_iter().partition(|at| !simulation.is_leaving(*at));
        let left: Vec<InstanceId> = left;
        leaving = stay;
        now.extend(left.iter().map(|at| format!("x{}", at.0)));
        shown.push(now.join(" "));
    }
    shown.join("|")
}

/// Checks both strategies, with one sequence on each instance.
#[track_caller]
fn check(instances: usize, steps: &str, expect: &str) {
    assert_eq!(shown(direct(instances, 1, 0, 0.0), instances, steps), expect, "direct: {steps}");
    assert_eq!(shown(oldest(instances, 1, 1, 0), instances, steps), expect, "oldest: {steps}");
}

#[test]
fn an_added_instance_takes_sequences_of_the_backlog_at_once() {
    check(1, "a:s b:s c:s > +", "0@0||||1@1");
    check(1, "a:s b:s c:s > + + > b:", "0@0||||1@1|2@2||3@1");
    check(0, "a:s +", "|0@0");
}

#[test]
fn a_removed_instance_takes_no_sequence_and_ends_with_its_last_one() {
    check(2, "a:s b:s > x1 c:s b: > b:e > a: > a:e >", "0@0|1@1||||3@1||4@1|x1|5@0||6@0|2@0");
    // It had none.
    check(2, "a:s > x1 b:s", "0@0||x1|");
    // Its sequence was idle for too long.
    check(2, "a:s b:s > a:e > x1 ~ b:", "0@0|1@1||2@0|||x1|");
    // A request of its sequence was cancelled.
    check(2, "a:s b:s b: x1 !2 >", "0@0|1@1||||x1");
    // It runs what waits.
    check(2, "a:s b:s b: b:e x1 > > >", "0@0|1@1||||2@1|3@1|x1");
}

#[test]
fn others_run_on_and_the_number_is_used_again() {
    check(2, "a:s b:s > x0 a: b: > a:e b: > + c:s >", "0@0|1@1|||2@0|3@1||4@0|5@1|x0||6@0|");
    // As long as its sequence is not over, the number is not free.
    check(2, "a:s b:s > x0 + c:s a: > a:e > + d:s", "0@0|1@1||||2@2|3@0||4@0|x0||5@0");
}

#[test]
fn a_sequence_that_follows_one_on_a_removed_instance_runs_elsewhere() {
    check(2, "a:s b:s b:s x1 > >", "0@0|1@1|||x1|");
    check(2, "a:s b:s b:s x1 + > >", "0@0|1@1||||2@2 x1|");
    // The earlier one is idle.
    check(2, "a:s b:s > x1 + b:s", "0@0|1@1||||2@2 x1");
    // It waits in the place of the earlier one, before `c`.
    check(2, "a:s b:s b:s c:s x1 > a:e > >", "0@0|1@1||||x1|4@0|2@0|");
}
