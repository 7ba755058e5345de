//! Is each step started once and in time, and does its answer reach the right branch?

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::batch_dimension::BatchDimension;
use crate::plan::{StepInput, StepOutput};

/// A plan of steps written `a b > c d`: inputs and outputs; the request brings `inputs` and may want `outputs`.
fn plan(inputs: &str, steps: &[&str], outputs: &str) -> Arc<Plan> {
    planned(inputs, steps, outputs, false)
}

/// As [`plan`], where a step may answer several times.
fn decoupled(inputs: &str, steps: &[&str], outputs: &str) -> Arc<Plan> {
    planned(inputs, steps, outputs, true)
}

fn planned(inputs: &str, steps: &[&str], outputs: &str, is_decoupled: bool) -> Arc<Plan> {
    let mut tensors: Vec<String> = Vec::new();
    let mut intern = |name: &str| {
        tensors.iter().position(|known| known == name).unwrap_or_else(|| {
            tensors.push(name.to_owned());
            tensors.len() - 1
        })
    };
    let mut all = |names: &str| names.split_whitespace().map(&mut intern).collect::<Vec<_>>();
    let (inputs, outputs) = (all(inputs), all(outputs));
    let step = |text: &&str| {
        let (from, to) = text.split_once('>').expect("a step is written with an arrow");
        let inputs = all(from)
            .into_iter()
            .map(|tensor| StepInput { name: String::new(), tensor, batch: BatchDimension::Kept })
            .collect();
        let outputs = all(to).into_iter().map(|tensor| StepOutput { name: String::new(), tensor }).collect();
        Step { inputs, outputs, ..Step::default() }
    };
    let steps = steps.iter().map(step).collect();
    Arc::new(Plan { tensors, steps, inputs, outputs, is_decoupled, ..Plan::default() }.linked())
}

/// A flow. Each tensor is a text that names the step that made it.
struct TestFlow {
    plan: Arc<Plan>,
    flow: Flow<String>,
}

impl TestFlow {
    fn of(plan: &Arc<Plan>, brought: &str, wanted: &str) -> TestFlow {
        let index = |name: &str| plan.tensor(name).expect("a tensor of the plan");
        let brought = brought.split_whitespace().map(|name| (index(name), name.to_owned())).collect();
        let wanted = wanted.split_whitespace().map(index).collect();
        TestFlow { plan: Arc::clone(plan), flow: Flow::begin(Arc::clone(plan), brought, wanted) }
    }

    /// What is to be done now: `0@0(a,b)` step 0 in branch 0 with its inputs, `=(x,y)` a response.
    fn shown(&mut self) -> String {
        let mut shown = Vec::new();
        while let Some(action) = self.flow.next_action() {
            let join = |values: Vec<String>| values.join(",");
            shown.push(match action {
                Action::Start { branch, step, inputs } => {
                    format!("{step}@{branch}({})", join(inputs.into_iter().map(|(_, value)| value).collect()))
                }
                Action::Send(outputs) => format!("=({})", join(outputs.into_iter().map(|(_, value)| value).collect())),
            });
        }
        shown.join(" ")
    }

    /// A step answers with all its outputs, called `{answer}{tensor}`.
    fn answer(&mut self, branch: Branch, step: usize, answer: &str, is_last: bool, is_only: bool) -> String {
        let names = self.plan.steps[step].outputs.iter().map(|output| &self.plan.tensors[output.tensor]);
        let outputs = names.enumerate().map(|(at, name)| (at, format!("{answer}{name}"))).collect();
        self.flow.answered(branch, step, outputs, is_last, is_only);
        self.shown()
    }

    fn once(&mut self, step: usize) -> String {
        self.answer(0, step, "", true, true)
    }
}

#[test]
fn steps_run_when_their_inputs_are_there() {
    let plan = plan("a", &["a > b", "a > c", "b c > d"], "d");
    let mut test = TestFlow::of(&plan, "a", "d");
    assert_eq!(test.shown(), "0@0(a) 1@0(a)");
    assert_eq!(test.once(1), "");
    assert_eq!(test.once(0), "2@0(b,c)");
    assert!(!test.flow.is_done());
    assert_eq!(test.once(2), "=(d)");
    assert!(test.flow.is_done());
}

#[test]
fn only_what_is_wanted_runs() {
    let plan = plan("a", &["a > b", "b > c", "a > x"], "b c x");
    assert_eq!(TestFlow::of(&plan, "a", "x").shown(), "2@0(a)");
    let mut test = TestFlow::of(&plan, "a", "b");
    assert_eq!(test.shown(), "0@0(a)");
    assert_eq!(test.once(0), "=(b)");
    assert!(test.flow.is_done());
}

#[test]
fn an_output_that_does_not_come_is_left_out_of_what_follows() {
    let plan = plan("a", &["a > b c", "b c > d"], "c d");
    let mut test = TestFlow::of(&plan, "a", "c d");
    assert_eq!(test.shown(), "0@0(a)");
    test.flow.answered(0, 0, vec![(0, "b".to_owned())], true, true);
    assert_eq!(test.shown(), "1@0(b)");
    assert_eq!(test.once(1), "=(d)");
}

#[test]
fn an_optional_input_that_was_not_brought_is_not_waited_for() {
    let plan = plan("a o", &["a o > b"], "b");
    assert_eq!(TestFlow::of(&plan, "a", "b").shown(), "0@0(a)");
}

#[test]
fn each_answer_of_a_decoupled_step_runs_what_depends_on_it() {
    let plan = decoupled("a", &["a > b", "b > c"], "c");
    let mut test = TestFlow::of(&plan, "a", "c");
    assert_eq!(test.shown(), "0@0(a)");
    assert_eq!(test.answer(0, 0, "1", false, false), "1@1(1b)");
    assert_eq!(test.answer(0, 0, "2", false, false), "1@2(2b)");
    assert_eq!(test.answer(2, 1, "2", true, true), "=(2c)");
    test.flow.ended(0, 0);
    assert!(!test.flow.is_done());
    assert_eq!(test.answer(1, 1, "1", true, true), "=(1c)");
    assert!(test.flow.is_done());
    assert_eq!((test.flow.sent(), test.flow.branches.len()), (2, 1));
}

#[test]
fn a_step_is_in_flight_as_often_as_it_may_be() {
    let plan = Plan { in_flight_max: 2, ..(*decoupled("a", &["a > b", "b > c"], "c")).clone() };
    let mut test = TestFlow::of(&Arc::new(plan), "a", "c");
    assert_eq!(test.shown(), "0@0(a)");
    for answer in ["b1", "b2", "b3", "b4"] {
        test.flow.answered(0, 0, vec![(0, answer.to_owned())], false, false);
    }
    test.flow.ended(0, 0);
    assert_eq!(test.shown(), "1@1(b1) 1@2(b2)");
    assert!(!test.flow.is_done());
    // Each run that ends starts the one that has waited longest.
    test.flow.answered(2, 1, vec![(0, "c2".to_owned())], true, true);
    assert_eq!(test.shown(), "1@3(b3) =(c2)");
    test.flow.ended(1, 1);
    assert_eq!(test.shown(), "1@4(b4)");
    test.flow.answered(3, 1, vec![(0, "c3".to_owned())], true, true);
    test.flow.answered(4, 1, vec![(0, "c4".to_owned())], true, true);
    assert_eq!(test.shown(), "=(c3) =(c4)");
    assert!(test.flow.is_done());
}

#[test]
fn what_comes_late_reaches_the_branches_and_runs_once() {
    // Step 1 does not depend on the decoupled step 0; step 2 needs both, step 3 only step 1.
    let plan = decoupled("a", &["a > b", "a > c", "b e > d", "c > e"], "d");
    let mut test = TestFlow::of(&plan, "a", "d");
    assert_eq!(test.shown(), "0@0(a) 1@0(a)");
    assert_eq!(test.answer(0, 0, "1", false, false), "");
    assert_eq!(test.answer(0, 0, "2", true, false), "");
    assert_eq!(test.once(1), "3@0(c)");
    assert_eq!(test.once(3), "2@1(1b,e) 2@2(2b,e)");
    assert_eq!(test.answer(1, 2, "1", true, true), "=(1d)");
    assert_eq!(test.answer(2, 2, "2", true, true), "=(2d)");
    assert!(test.flow.is_done());
}

/// A request with a decoupled step 0, which has answered once. `goes_on` applies the events that follow. After them, the branch of the answer, its
/// tensor and all that came from it must be dropped, while step 0 still runs.
#[track_caller]
fn check_forgotten(steps: &[&str], outputs: &str, goes_on: impl FnOnce(&mut Flow<Arc<str>>, &Arc<str>)) {
    let plan = decoupled("a", steps, outputs);
    let tensor: Arc<str> = Arc::from("b");
    let mut flow = Flow::begin(Arc::clone(&plan), vec![(0, Arc::from("a"))], plan.outputs.clone());
    flow.answered(0, 0, vec![(0, Arc::clone(&tensor))], false, false);
    assert_eq!(flow.branches.len(), 2, "the answer is needed");
    goes_on(&mut flow, &tensor);
    while flow.next_action().is_some() {}
    assert_eq!((flow.branches.len(), Arc::strong_count(&tensor)), (1, 1), "{steps:?}");
    assert!(!flow.is_done());
}

/// An answer of a step: one of its outputs.
fn one(flow: &mut Flow<Arc<str>>, branch: Branch, step: usize, is_last: bool, is_only: bool) {
    flow.answered(branch, step, vec![(0, Arc::from("answer"))], is_last, is_only);
}

#[test]
fn a_branch_is_forgotten_once_nothing_can_come_of_it() {
    let two = ["a > b", "b > c"];
    // One answer; an answer and an end; a last answer after another; no answer at all.
    check_forgotten(&two, "c", |flow, _| one(flow, 1, 1, true, true));
    check_forgotten(&two, "c", |flow, tensor| {
        one(flow, 1, 1, false, false);
        while flow.next_action().is_some() {}
        assert_eq!((flow.branches.len(), Arc::strong_count(tensor)), (2, 2), "step 1 may go on");
        flow.ended(1, 1);
    });
    check_forgotten(&two, "c", |flow, _| {
        one(flow, 1, 1, false, false);
        one(flow, 1, 1, true, false);
    });
    check_forgotten(&two, "c", |flow, _| flow.ended(1, 1));
    // A branch that came from the answer outlives the steps of the answer itself.
    check_forgotten(&["a > b", "b > c", "c > d"], "d", |flow, _| {
        one(flow, 1, 1, false, false);
        flow.ended(1, 1);
        assert_eq!(flow.branches.len(), 3, "step 2 runs");
        one(flow, 2, 2, true, true);
    });
    // The outputs of the two steps never meet in one branch, so no response is sent.
    check_forgotten(&["a > b", "b > c", "b > d"], "c d", |flow, _| {
        one(flow, 1, 1, false, false);
        flow.ended(1, 1);
        one(flow, 1, 2, false, false);
        flow.ended(1, 2);
    });
}

#[test]
fn a_branch_that_waits_for_a_step_goes_with_it() {
    // Step 1 does not depend on the decoupled step 0, and is needed with each of its answers.
    let steps = ["a > b", "a > c", "b c > d"];
    check_forgotten(&steps, "d", |flow, _| flow.ended(0, 1));
    check_forgotten(&steps, "d", |flow, _| {
        one(flow, 0, 1, false, false);
        flow.ended(0, 1);
    });
    check_forgotten(&steps, "d", |flow, _| {
        one(flow, 0, 1, true, true);
        assert_eq!(flow.branches.len(), 2, "step 2 runs");
        one(flow, 1, 2, true, true);
    });
    // Only the response still waits.
    check_forgotten(&["a > b", "a > c"], "b c", |flow, _| flow.ended(0, 1));
    check_forgotten(&["a > b", "a > c"], "b c", |flow, _| one(flow, 0, 1, true, true));
    // The missing tensor comes through a second step.
    check_forgotten(&["a > b", "a > c", "c > e", "b e > d"], "d", |flow, _| {
        one(flow, 0, 1, true, true);
        assert_eq!(flow.branches.len(), 2, "step 2 runs");
        one(flow, 0, 2, true, true);
        one(flow, 1, 3, true, true);
    });
    check_forgotten(&["a > b", "a > c", "c > e", "b e > d"], "d", |flow, _| {
        one(flow, 0, 1, true, true);
        flow.ended(0, 2);
    });
}

#[test]
fn a_tensor_goes_with_its_last_reader() {
    let plan = plan("a", &["a > b", "b > c", "b c > d"], "c d");
    let tensor = Arc::new(());
    let brought = vec![(0, Arc::clone(&tensor))];
    let mut flow = Flow::begin(Arc::clone(&plan), brought, plan.outputs.clone());
    drop(flow.next_action());
    assert_eq!(Arc::strong_count(&tensor), 1);
    flow.answered(0, 0, vec![(0, Arc::clone(&tensor))], true, true);
    drop(flow.next_action());
    // Step 2 reads it as well.
    assert_eq!(Arc::strong_count(&tensor), 2);
    flow.answered(0, 1, vec![(0, Arc::new(()))], true, true);
    drop(flow.next_action());
    assert_eq!(Arc::strong_count(&tensor), 1);
}

proptest! {
    /// Layers of steps, each taking some tensors of earlier layers; answers come in any order. Each step runs once, the response is sent
    /// once and has all outputs.
    #[test]
    fn every_step_runs_once_and_all_outputs_are_sent(
        steps in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..4), 1..12),
        order in prop::collection::vec(any::<prop::sample::Index>(), 12),
    ) {
        let mut names = vec!["t0".to_owned()];
        let mut texts = Vec::new();
        for (number, inputs) in steps.iter().enumerate() {
            let from: std::collections::BTreeSet<&str> = inputs.iter().map(|index| index.get(&names).as_str()).collect();
            texts.push(format!("{} > t{}", from.into_iter().collect::<Vec<_>>().join(" "), number + 1));
            names.push(format!("t{}", number + 1));
        }
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let outputs = names[1..].join(" ");
        let plan = plan("t0", &texts, &outputs);
        let mut flow = Flow::begin(Arc::clone(&plan), vec![(0, "t0".to_owned())], plan.outputs.clone());
        let (mut running, mut runs, mut sent) = (Vec::new(), BTreeMap::<usize, usize>::new(), 0);
        for turn in 0..=steps.len() {
            while let Some(action) = flow.next_action() {
                match action {
                    Action::Start { step, inputs, .. } => {
                        prop_assert_eq!(inputs.len(), plan.steps[step].inputs.len());
                        *runs.entry(step).or_default() += 1;
                        running.push(step);
                    }
                    Action::Send(tensors) => {
                        prop_assert_eq!(tensors.len(), steps.len());
                        sent += 1;
                    }
                }
            }
            if running.is_empty() {
                break;
            }
            let step = running.swap_remove(order[turn % order.len()].index(running.len()));
            flow.answered(0, step, vec![(0, format!("t{}", step + 1))], true, true);
        }
        prop_assert!(flow.is_done());
        prop_assert_eq!(sent, 1);
        prop_assert!(runs.len() == steps.len() && runs.values().all(|count| *count == 1));
    }

    /// A chain of decoupled steps. Each takes the tensor before its own and some of the earlier ones. It answers
    /// several times, and ends with its last answer or separately. Answers and ends come in any order. A tensor is the
    /// numbers of the answers that led to it.
    #[test]
    fn every_answer_of_a_decoupled_step_runs_what_follows_once(
        steps in prop::collection::vec((0usize..4, any::<bool>(), prop::collection::vec(any::<prop::sample::Index>(), 0..3)), 1..5),
        order in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let text = |(number, (_, _, earlier)): (usize, &(usize, bool, Vec<prop::sample::Index>))| {
            let mut from: std::collections::BTreeSet<usize> = earlier.iter().map(|index| index.index(number + 1)).collect();
            from.insert(number);
            let from: Vec<String> = from.into_iter().map(|tensor| format!("t{tensor}")).collect();
            format!("{} > t{}", from.join(" "), number + 1)
        };
        let texts: Vec<String> = steps.iter().enumerate().map(text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let plan = decoupled("t0", &texts, &format!("t{}", steps.len()));
        let brought = vec![(plan.inputs[0], Vec::new())];
        let mut flow: Flow<Vec<usize>> = Flow::begin(Arc::clone(&plan), brought, plan.outputs.clone());
        let (mut running, mut runs, mut responses) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0.. {
            while let Some(action) = flow.next_action() {
                match action {
                    Action::Start { branch, step, inputs } => {
                        let given: Vec<Vec<usize>> = inputs.into_iter().map(|(_, path)| path).collect();
                        let path = given.iter().max_by_key(|path| path.len()).expect("an input").clone();
                        prop_assert_eq!((given.len(), path.len()), (plan.steps[step].inputs.len(), step));
                        prop_assert!(given.iter().all(|earlier| path.starts_with(earlier)), "{given:?} belong together");
                        runs.push(path.clone());
                        running.push((branch, step, path, 0));
                    }
                    Action::Send(tensors) => {
                        prop_assert_eq!(tensors.len(), 1);
                        responses.extend(tensors.into_iter().map(|(_, path)| path));
                    }
                }
            }
            if running.is_empty() {
                break;
            }
            prop_assert!(!flow.is_done());
            let at = order[turn % order.len()].index(running.len());
            let (branch, step, path, answered) = &mut running[at];
            let (branch, step, (count, ends_apart, _)) = (*branch, *step, &steps[*step]);
            let is_over = if *answered == *count {
                flow.ended(branch, step);
                true
            } else {
                let made = [&path[..], &[*answered]].concat();
                *answered += 1;
                let is_last = *answered == *count && !ends_apart;
                flow.answered(branch, step, vec![(0, made)], is_last, is_last && *answered == 1);
                is_last
            };
            if is_over {
                running.swap_remove(at);
            }
        }
        let mut paths = vec![Vec::new()];
        let mut expected_runs = Vec::new();
        for (count, _, _) in &steps {
            expected_runs.extend(paths.iter().cloned());
            paths = paths.iter().flat_map(|path| (0..*count).map(|answer| [&path[..], &[answer]].concat())).collect();
        }
        for list in [&mut runs, &mut responses, &mut expected_runs, &mut paths] {
            list.sort_unstable();
        }
        prop_assert_eq!(runs, expected_runs);
        prop_assert_eq!(flow.sent(), responses.len());
        prop_assert_eq!(responses, paths);
        prop_assert!(flow.is_done());
        prop_assert_eq!(flow.branches.len(), 1, "all others are forgotten");
    }
}
