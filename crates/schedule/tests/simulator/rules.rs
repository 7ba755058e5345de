//! Do batches form as a model's own rule says, and does every request end whatever the rule says?

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use nerite_schedule::{BatchPolicy, Batcher, JoinRule, Rejection};
use proptest::prelude::*;

use crate::batcher::{check_ends, policies};
use crate::simulation::{End, Job, Simulation, events};

/// The answers of a rule, and what it was told.
#[derive(Clone, Copy, Debug)]
enum Says {
    /// Yes, as long as the rows of a batch do not exceed this number.
    Volume(u32),
    /// No.
    Never,
    /// Another answer to each question.
    Anything(u64),
}

struct Rule {
    says: Says,
    /// The numbers of the jobs in the batch that forms, if one does.
    forming: Option<Vec<usize>>,
    rows: u32,
    /// The batches that were formed.
    formed: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl Rule {
    fn new(says: Says) -> (Rule, Arc<Mutex<Vec<Vec<usize>>>>) {
        let formed = Arc::default();
        (Rule { says, forming: None, rows: 0, formed: Arc::clone(&formed) }, formed)
    }
}

impl JoinRule<Job> for Rule {
    fn begins(&mut self, first: &Job) {
        (self.forming, self.rows) = (Some(vec![first.number]), first.rows);
    }

    fn may_join(&mut self, batch: &[&Job], next: &Job) -> bool {
        let forming = self.forming.as_mut().expect("a batch begins before others join it");
        // A strategy is told only the next job.
        assert!(batch.first().is_none_or(|head| head.number == forming[0]), "the batch has another head");
        let says = match &mut self.says {
            Says::Volume(limit) => self.rows + next.rows <= *limit,
            Says::Never => false,
            Says::Anything(seed) => {
                *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *seed >> 63 == 1
            }
        };
        if says {
            forming.push(next.number);
            self.rows += next.rows;
        }
        says
    }

    fn ends(&mut self) {
        self.formed.lock().unwrap().extend(self.forming.take());
    }
}

fn says() -> impl Strategy<Value = Says> {
    prop_oneof![(1u32..9).prop_map(Says::Volume), Just(Says::Never), any::<u64>().prop_map(Says::Anything)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn every_request_ends_once_in_its_order_whatever_the_rule_says(
        events in events(), policy in policies(), says in says(), instances in 1usize..4, run_us in 1u64..200,
    ) {
        let held_back = policy.hold_back > 1;
        let (rule, formed) = Rule::new(says);
        let mut simulation = Simulation::new(Batcher::new(policy.clone()), instances, run_us, policy.rows_max).with_join_rule(rule);
        simulation.delay_us = (!held_back).then_some(policy.delay_us);
        simulation.do_all(&events);
        if held_back {
            simulation.driver.stop(2_000_000);
            simulation.take();
            simulation.pass_until(3_000_000);
        }
        check_ends(&simulation, &policy, held_back);
        check_said(&simulation, says, policy.by_spans, &formed.lock().unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn every_request_ends_once_in_its_order_however_long_a_strategy_takes(
        events in events(), policy in policies(), says in says(), instances in 1usize..4, run_us in 1u64..200, takes_us in 0u64..300,
    ) {
        let held_back = policy.hold_back > 1;
        let (rule, formed) = Rule::new(says);
        let mut simulation =
            Simulation::new(Batcher::new(policy.clone()), instances, run_us, policy.rows_max).consulting(rule, takes_us);
        simulation.do_all(&events);
        if held_back {
            simulation.driver.stop(2_000_000);
            simulation.take();
            simulation.pass_until(3_000_000);
        }
        check_ends(&simulation, &policy, held_back);
        check_said(&simulation, says, policy.by_spans, &formed.lock().unwrap());
    }
}

#[test]
fn requests_end_at_their_deadlines_while_a_strategy_says_nothing() {
    let policy = BatchPolicy { rows_max: 8, preferred: vec![8], ..BatchPolicy::default() };
    let (rule, _) = Rule::new(Says::Volume(8));
    let mut simulation = Simulation::new(Batcher::new(policy), 2, 10, 8).consulting(rule, 1_000_000);
    simulation.arrive(1, Some(50));
    let second = simulation.arrive(1, None);
    simulation.arrive(1, Some(70));
    simulation.pass_until(60);
    simulation.driver.cancel(second, 60);
    simulation.take();
    simulation.arrive(1, None);
    simulation.pass_until(999_999);
    let rejected = |why, at_us| Some(End::Rejected { why, at_us });
    assert_eq!(simulation.ends.get(&0).copied(), rejected(Rejection::TimedOut, 50));
    assert_eq!(simulation.ends.get(&1).copied(), rejected(Rejection::Cancelled, 60));
    assert_eq!(simulation.ends.get(&2).copied(), rejected(Rejection::TimedOut, 70));
    assert!(simulation.batches.is_empty());
    // The first answer is about a batch that was given up. The second is about the request that came last.
    simulation.pass_until(2_000_000);
    assert_eq!(simulation.batches, [(vec![3], 2_000_000)]);
}

#[test]
fn requests_that_come_and_go_behind_the_first_do_not_keep_it_from_starting() {
    let policy = BatchPolicy { rows_max: 8, preferred: vec![8], ..BatchPolicy::default() };
    let (rule, _) = Rule::new(Says::Volume(8));
    let mut simulation = Simulation::new(Batcher::new(policy), 1, 10, 8).consulting(rule, 100);
    simulation.arrive(1, None);
    let mut other = simulation.arrive(1, None);
    // It leaves while the strategy is asked about it.
    for round in 0..20 {
        let now_us = 150 + 200 * round;
        simulation.pass_until(now_us);
        simulation.driver.cancel(other, now_us);
        simulation.take();
        other = simulation.arrive(1, None);
    }
    assert_eq!(simulation.batches.first(), Some(&(vec![0], 150)));
}

#[test]
fn requests_that_end_together_close_a_batch_before_the_first_of_them() {
    let policy = BatchPolicy { rows_max: 8, preferred: vec![8], ..BatchPolicy::default() };
    let (rule, _) = Rule::new(Says::Volume(8));
    let mut simulation = Simulation::new(Batcher::new(policy), 1, 10, 8).consulting(rule, 100);
    // The strategy is asked about the fifth request when two requests before it end.
    for patience_us in [None, None, Some(450), Some(450), None, None] {
        simulation.arrive(1, patience_us);
    }
    simulation.pass_until(450);
    assert_eq!(simulation.batches, [(vec![0, 1], 450)]);
    simulation.pass_until(10_000);
    assert_eq!(simulation.batches[1..].iter().map(|(batch, _)| batch.as_slice()).collect::<Vec<_>>(), [[4, 5]]);
}

/// Checks that the rule was told each batch in its order and to its end, and that its answers were obeyed. The requests
/// of a complete batch may be sorted by address.
fn check_said(simulation: &Simulation, says: Says, by_spans: bool, formed: &[Vec<usize>]) {
    let same = |first: &[usize], batch: &[usize]| {
        first == batch || by_spans && BTreeSet::from_iter(first) == BTreeSet::from_iter(batch)
    };
    // A batch that ran may be a preferred size of a formed one. Batches that were formed and given up did not run.
    let mut formed = formed.iter();
    for (batch, at_us) in &simulation.batches {
        let is_of = |one: &Vec<usize>| one.get(..batch.len()).is_some_and(|first| same(first, batch));
        assert!(formed.any(is_of), "the rule did not hear of {batch:?} at {at_us}");
        let rows: u32 = batch.iter().map(|number| simulation.jobs[*number].0.rows).sum();
        match says {
            Says::Volume(limit) => assert!(batch.len() == 1 || rows <= limit, "{batch:?} has {rows} rows"),
            Says::Never => assert_eq!(batch.len(), 1, "{batch:?}"),
            Says::Anything(_) => {}
        }
    }
}

/// Requests with these rows come while an instance runs, and then run as listed.
#[track_caller]
fn check(says: Says, rows: &str, expect: &str) {
    let policy = BatchPolicy { rows_max: 100, preferred: vec![100], ..BatchPolicy::default() };
    let (rule, formed) = Rule::new(says);
    let mut simulation = Simulation::new(Batcher::new(policy), 1, 10, 100).with_join_rule(rule);
    simulation.arrive(1, None);
    for one in rows.split_whitespace() {
        simulation.arrive(one.parse().unwrap(), None);
    }
    simulation.pass_until(1000);
    let shown = |batch: &[usize]| batch.iter().map(usize::to_string).collect::<Vec<_>>().join("+");
    let ran: Vec<String> = simulation.batches[1..].iter().map(|(batch, _)| shown(batch)).collect();
    assert_eq!(ran.join(" "), expect, "{says:?} {rows}");
    let formed: Vec<String> = formed.lock().unwrap()[1..].iter().map(|batch| shown(batch)).collect();
    assert_eq!(formed.join(" "), expect, "the rule hears of each batch once");
}

#[test]
fn a_batch_takes_what_the_rule_lets_in() {
    check(Says::Volume(4), "1 2 1 1 4 9 1", "1+2+3 4 5 6 7");
    check(Says::Volume(100), "1 1 1", "1+2+3");
    // A request that fits into no batch runs alone.
    check(Says::Volume(2), "3 3 1 1", "1 2 3+4");
    check(Says::Volume(0), "1 1", "1 2");
}

#[test]
fn a_rule_that_lets_nothing_in_stops_nobody() {
    check(Says::Never, "1 1 1", "1 2 3");
}

#[test]
fn a_rule_hears_again_of_a_batch_that_lost_a_request() {
    let policy = BatchPolicy { rows_max: 8, preferred: vec![8], delay_us: 100, ..BatchPolicy::default() };
    let (rule, formed) = Rule::new(Says::Volume(3));
    let mut simulation = Simulation::new(Batcher::new(policy), 1, 10, 8).with_join_rule(rule);
    let first = simulation.arrive(2, None);
    simulation.arrive(1, None);
    simulation.driver.cancel(first, 0);
    simulation.take();
    simulation.arrive(2, None);
    simulation.pass_until(1000);
    assert_eq!(simulation.batches, [(vec![1, 2], 100)]);
    assert_eq!(*formed.lock().unwrap(), [[1, 2]]);
}
