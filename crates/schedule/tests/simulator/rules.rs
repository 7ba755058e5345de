//! Do batches form as a model's own rule says, and does every request end whatever the rule says?

use nerite_schedule::{BatchPolicy, Batcher};
use proptest::prelude::*;

use crate::batcher::{check_ends, policies};
use crate::simulation::{Job, Simulation, events};

/// The answers of a rule.
#[derive(Clone, Copy, Debug)]
enum Says {
    /// Yes to a request with as many rows as the first one of the batch.
    SameRows,
    /// No.
    Never,
    /// Another answer for each two requests.
    Anything(u64),
}

impl Says {
    fn may_join(self, first: &Job, next: &Job) -> bool {
        match self {
            Says::SameRows => first.rows == next.rows,
            Says::Never => false,
            Says::Anything(seed) => {
                let pair = (first.number * 1000 + next.number) as u64;
                (seed ^ pair).wrapping_mul(6_364_136_223_846_793_005) >> 63 == 1
            }
        }
    }
}

fn says() -> impl Strategy<Value = Says> {
    prop_oneof![Just(Says::SameRows), Just(Says::Never), any::<u64>().prop_map(Says::Anything)]
}

fn simulation(policy: &BatchPolicy, instances: usize, run_us: u64, says: Says) -> Simulation {
    Simulation::new(Batcher::new(policy.clone()), instances, run_us, policy.rows_max)
        .with_join_rule(move |first, next| says.may_join(first, next))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn every_request_ends_once_in_its_order_whatever_the_rule_says(
        events in events(), policy in policies(), says in says(), instances in 1usize..4, run_us in 1u64..200,
    ) {
        let held_back = policy.hold_back > 1;
        let mut simulation = simulation(&policy, instances, run_us, says);
        simulation.delay_us = (!held_back).then_some(policy.delay_us);
        simulation.do_all(&events);
        if held_back {
            simulation.driver.stop(2_000_000);
            simulation.take();
            simulation.pass_until(3_000_000);
        }
        check_ends(&simulation, &policy, held_back);
        for (batch, at_us) in &simulation.batches {
            check_joined(&simulation, says, policy.by_spans, batch, *at_us);
        }
    }
}

/// Checks that the rule let every other request of a batch join the first one. `by_spans`: the batch is sorted by address, so any may be the first.
fn check_joined(simulation: &Simulation, says: Says, by_spans: bool, batch: &[usize], at_us: u64) {
    let job = |number: usize| &simulation.jobs[number].0;
    let is_first =
        |first: usize| batch.iter().all(|number| *number == first || says.may_join(job(first), job(*number)));
    let firsts = if by_spans { batch } else { &batch[..1] };
    assert!(firsts.iter().any(|first| is_first(*first)), "the rule does not allow {batch:?} at {at_us}");
}

/// Requests with these rows come while an instance runs, and then run as listed.
#[track_caller]
fn check(says: Says, rows: &str, expect: &str) {
    let policy = BatchPolicy { rows_max: 100, preferred: vec![100], ..BatchPolicy::default() };
    let mut simulation = simulation(&policy, 1, 10, says);
    simulation.arrive(1, None);
    for one in rows.split_whitespace() {
        simulation.arrive(one.parse().unwrap(), None);
    }
    simulation.pass_until(1000);
    let shown = |batch: &[usize]| batch.iter().map(usize::to_string).collect::<Vec<_>>().join("+");
    let ran: Vec<String> = simulation.batches[1..].iter().map(|(batch, _)| shown(batch)).collect();
    assert_eq!(ran.join(" "), expect, "{says:?} {rows}");
}

#[test]
fn a_batch_takes_what_the_rule_lets_in() {
    check(Says::SameRows, "1 1 2 2 2 1", "1+2 3+4+5 6");
    check(Says::SameRows, "1 1 1", "1+2+3");
}

#[test]
fn a_rule_that_lets_nothing_in_stops_nobody() {
    check(Says::Never, "1 1 1", "1 2 3");
}
