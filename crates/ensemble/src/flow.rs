//! Which steps of one request may run now, and what may be sent?
//!
//! This code is pure: tensors are values of any type, and no function waits. If a step's model answers several times, each answer starts a branch. It
//! has the tensors known so far and those of the answer. The steps that depend on them run once for each branch.
//!
//! ```text
//!   root    a ──► [step 0, decoupled] ──► answer 1 ──► branch 1   b ──► [step 1] ──► c ──► sent
//!                                    └──► answer 2 ──► branch 2   b ──► [step 1] ──► c ──► sent
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::plan::{Plan, Step, TensorIndex};

/// The number of a branch: tensors that belong together. The root is 0.
pub type Branch = u64;

/// The progress of one request through the steps.
#[derive(Debug)]
pub struct Flow<T> {
    plan: Arc<Plan>,
    /// For each step, whether it has to run.
    is_needed: Vec<bool>,
    /// The outputs that are sent.
    wanted: Vec<TensorIndex>,
    branches: BTreeMap<Branch, State<T>>,
    last_branch: Branch,
    /// How many starts of steps have not ended: those in flight, and those that are held back.
    running: usize,
    /// How often each step is in flight.
    in_flight: Vec<u32>,
    /// Starts of each step that wait because of [`Plan::in_flight_max`].
    held_back: Vec<VecDeque<Action<T>>>,
    sent: usize,
    actions: VecDeque<Action<T>>,
    /// How many steps still have to read each tensor. If no step answers several times, a tensor is dropped after its last reader has started.
    unread: Vec<usize>,
}

#[derive(Debug)]
struct State<T> {
    parent: Option<Branch>,
    /// Branches that came from it and still exist.
    children: usize,
    tensors: Vec<Value<T>>,
    /// The progress of each step, as this branch sees it.
    progress: Vec<Progress>,
    /// Steps that were started in this very branch and have not ended.
    running: usize,
    is_sent: bool,
}

/// The progress of a step, as one branch sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It has not been started.
    Waits,
    /// The step was started, in this branch or in one that this branch came from, and has not answered. If it answers only once, this branch gets the
    /// answer.
    Runs,
    /// This branch has all that it gets from the step. Later answers start other branches.
    Over,
}

#[derive(Clone, Debug)]
enum Value<T> {
    /// Its value is not known yet.
    Pending,
    Known(T),
    /// It has no value. The request or its model left it out, or no step needs it any more.
    Absent,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// Run a step.
    Start {
        /// The branch whose tensors the step reads.
        branch: Branch,
        /// The step's position in the plan.
        step: usize,
        /// The known inputs: positions among the step's inputs, and tensors.
        inputs: Vec<(usize, T)>,
    },
    /// Send a response with these outputs.
    Send(Vec<(TensorIndex, T)>),
}

impl<T: Clone> Flow<T> {
    /// The flow of a request that brought the tensors `brought` and wants the outputs `wanted`.
    pub fn begin(plan: Arc<Plan>, brought: Vec<(TensorIndex, T)>, wanted: Vec<TensorIndex>) -> Flow<T> {
        let is_needed = plan.needed_for(&wanted);
        let mut tensors = vec![Value::Pending; plan.tensors.len()];
        // An optional input that the request left out is absent.
        for input in &plan.inputs {
            tensors[*input] = Value::Absent;
        }
        for (tensor, value) in brought {
            tensors[tensor] = Value::Known(value);
        }
        let progress = vec![Progress::Waits; plan.steps.len()];
        let root = State { parent: None, children: 0, tensors, progress, running: 0, is_sent: false };
        let unread =
            plan.readers.iter().map(|readers| readers.iter().filter(|step| is_needed[**step]).count()).collect();
        let steps = 0..plan.steps.len();
        let (in_flight, held_back) = (vec![0; steps.len()], steps.clone().map(|_| VecDeque::new()).collect());
        let mut flow = Flow {
            plan,
            is_needed,
            wanted,
            branches: BTreeMap::from([(0, root)]),
            last_branch: 0,
            running: 0,
            in_flight,
            held_back,
            sent: 0,
            actions: VecDeque::new(),
            unread,
        };
        flow.advance(0, steps);
        flow
    }

    /// Whether a step has to run for the outputs that are wanted.
    pub fn needs(&self, step: usize) -> bool {
        self.is_needed[step]
    }

    /// The next action, if there is one.
    pub fn next_action(&mut self) -> Option<Action<T>> {
        self.actions.pop_front()
    }

    /// Notes that a step's model answered with these outputs: positions among the step's outputs, and tensors. Its other outputs are absent.
    /// `is_last`: no answer follows. `is_only`: there was no answer before either.
    pub fn answered(&mut self, branch: Branch, step: usize, outputs: Vec<(usize, T)>, is_last: bool, is_only: bool) {
        if is_last {
            self.step_ended(branch, step);
        }
        // With its first answer, the branch and those that came from it stop waiting for the step.
        let is_first = self.settle(branch, step);
        let into = if is_only { Some(branch) } else { self.branch_off(branch) };
        let Some(into) = into.filter(|into| self.branches.contains_key(into)) else { return };
        let plan = Arc::clone(&self.plan);
        let mut values: Vec<Option<T>> = vec![None; plan.steps[step].outputs.len()];
        for (position, value) in outputs {
            values[position] = Some(value);
        }
        for (output, value) in plan.steps[step].outputs.iter().zip(values) {
            self.set(into, output.tensor, &value.map_or(Value::Absent, Value::Known));
        }
        let given = &plan.steps[step].outputs;
        for reached in self.descendants(into) {
            self.advance(reached, given.iter().flat_map(|output| plan.readers[output.tensor].iter().copied()));
        }
        self.forget(into);
        self.forget_within(branch, is_first);
    }

    /// A step ended without another answer.
    pub fn ended(&mut self, branch: Branch, step: usize) {
        self.step_ended(branch, step);
        let is_first = self.settle(branch, step);
        self.forget_within(branch, is_first);
    }

    /// Makes a branch that has all tensors of `parent`.
    fn branch_off(&mut self, parent: Branch) -> Option<Branch> {
        let state = self.branches.get_mut(&parent)?;
        state.children += 1;
        let (tensors, progress) = (state.tensors.clone(), state.progress.clone());
        self.last_branch += 1;
        let made = State { parent: Some(parent), children: 0, tensors, progress, running: 0, is_sent: false };
        self.branches.insert(self.last_branch, made);
        Some(self.last_branch)
    }

    /// Notes that a step answered or ended: the branch and those that came from it no longer wait for the step. Returns whether they waited until
    /// now.
    fn settle(&mut self, branch: Branch, step: usize) -> bool {
        if self.branches.get(&branch).is_none_or(|state| state.progress[step] == Progress::Over) {
            return false;
        }
        for reached in self.descendants(branch) {
            if let Some(state) = self.branches.get_mut(&reached) {
                state.progress[step] = Progress::Over;
            }
        }
        true
    }

    /// Notes that a step has no more answers. A start of it that was held back may proceed.
    fn step_ended(&mut self, branch: Branch, step: usize) {
        if let Some(state) = self.branches.get_mut(&branch) {
            state.running -= 1;
        }
        self.running -= 1;
        self.in_flight[step] -= 1;
        if let Some(start) = self.held_back[step].pop_front() {
            self.start(step, start);
        }
    }

    /// Starts a step, or holds it back while the allowed number of its runs are in flight.
    fn start(&mut self, step: usize, start: Action<T>) {
        let max = self.plan.in_flight_max;
        if max > 0 && self.in_flight[step] >= max {
            return self.held_back[step].push_back(start);
        }
        self.in_flight[step] += 1;
        self.actions.push_back(start);
    }

    /// Whether no step runs and no action is left.
    pub fn is_done(&self) -> bool {
        self.running == 0 && self.actions.is_empty()
    }

    /// The number of responses that the actions so far have sent.
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Sets a pending tensor in a branch and in all that came from it.
    fn set(&mut self, branch: Branch, tensor: TensorIndex, value: &Value<T>) {
        for reached in self.descendants(branch) {
            if let Some(state) = self.branches.get_mut(&reached)
                && matches!(state.tensors[tensor], Value::Pending)
            {
                state.tensors[tensor] = value.clone();
            }
        }
    }

    /// The branch, and all that came from it. A branch has a greater number than the one that it came from.
    fn descendants(&self, branch: Branch) -> Vec<Branch> {
        let mut found = vec![branch];
        for (number, state) in self.branches.range(branch + 1..) {
            if state.parent.is_some_and(|parent| found.binary_search(&parent).is_ok()) {
                found.push(*number);
            }
        }
        found
    }

    /// Starts those of `steps` that can run in a branch, and sends its outputs if none of them is pending.
    fn advance(&mut self, branch: Branch, steps: impl IntoIterator<Item = usize>) {
        let plan = Arc::clone(&self.plan);
        let Some(state) = self.branches.get_mut(&branch) else { return };
        let mut begun = Vec::new();
        for number in steps {
            let step = &plan.steps[number];
            if !self.is_needed[number] || state.progress[number] != Progress::Waits {
                continue;
            }
            if let Some(inputs) = state.inputs_of(step) {
                state.progress[number] = Progress::Runs;
                state.running += 1;
                self.running += 1;
                begun.push((number, Action::Start { branch, step: number, inputs }));
            }
        }
        let (begun, starts): (Vec<usize>, Vec<_>) =
            begun.into_iter().map(|(step, start)| (step, (step, start))).unzip();
        for (step, start) in starts {
            self.start(step, start);
        }
        self.send_if_complete(branch);
        self.release(&begun);
        // Branches that came from this one get the answers too, and do not run the steps again.
        for reached in self.descendants(branch).into_iter().skip(1) {
            if let Some(state) = self.branches.get_mut(&reached) {
                for step in &begun {
                    if state.progress[*step] == Progress::Waits {
                        state.progress[*step] = Progress::Runs;
                    }
                }
            }
        }
    }

    /// Called after these steps were started. Drops the tensors that no other step reads.
    fn release(&mut self, begun: &[usize]) {
        if self.plan.is_decoupled {
            return;
        }
        let Some(root) = self.branches.get_mut(&0) else { return };
        for input in begun.iter().flat_map(|step| &self.plan.steps[*step].inputs) {
            self.unread[input.tensor] -= 1;
            if self.unread[input.tensor] == 0 && !self.wanted.contains(&input.tensor) {
                root.tensors[input.tensor] = Value::Absent;
            }
        }
    }

    /// Sends the outputs of a branch if none of them is pending.
    fn send_if_complete(&mut self, branch: Branch) {
        let Some(state) = self.branches.get_mut(&branch) else { return };
        if state.is_sent || self.wanted.iter().any(|tensor| matches!(state.tensors[*tensor], Value::Pending)) {
            return;
        }
        state.is_sent = true;
        let known = self.wanted.iter().filter_map(|tensor| match &state.tensors[*tensor] {
            Value::Known(value) => Some((*tensor, value.clone())),
            Value::Pending | Value::Absent => None,
        });
        let known = known.collect();
        self.sent += 1;
        self.actions.push_back(Action::Send(known));
    }

    /// Drops the branch if its tensors are no longer needed. With `is_all`, checks the branches that came from it as well.
    fn forget_within(&mut self, branch: Branch, is_all: bool) {
        if is_all {
            self.descendants(branch).into_iter().skip(1).rev().for_each(|reached| self.forget(reached));
        }
        self.forget(branch);
    }

    /// Drops a branch whose tensors are no longer needed, and then those that it came from.
    fn forget(&mut self, mut branch: Branch) {
        // Later answers of the root's steps need the root's tensors.
        while branch != 0
            && let Some(state) = self.branches.get(&branch)
            && !self.is_in_use(state)
        {
            let Some(parent) = state.parent else { return };
            self.branches.remove(&branch);
            if let Some(state) = self.branches.get_mut(&parent) {
                state.children -= 1;
            }
            branch = parent;
        }
    }

    /// Whether a branch can still lead to an answer, a start, or a response.
    fn is_in_use(&self, state: &State<T>) -> bool {
        if state.children > 0 || state.running > 0 {
            return true;
        }
        // A tensor can still get a value in this branch if its step runs in a branch that this one came from, or depends on such a step.
        let comes = |tensor: TensorIndex| {
            let writer = self.plan.writers[tensor];
            !matches!(state.tensors[tensor], Value::Pending)
                || writer.is_some_and(|step| state.progress[step] == Progress::Runs)
        };
        let can_start = |number: usize| {
            let inputs = &self.plan.steps[number].inputs;
            self.is_needed[number]
                && state.progress[number] == Progress::Waits
                && inputs.iter().all(|input| comes(input.tensor))
        };
        (0..self.plan.steps.len()).any(can_start) || (!state.is_sent && self.wanted.iter().all(|tensor| comes(*tensor)))
    }
}

impl<T: Clone> State<T> {
    /// The known inputs of a step. `None` while one is pending. The model decides whether it can run without absent inputs.
    fn inputs_of(&self, step: &Step) -> Option<Vec<(usize, T)>> {
        let mut known = Vec::with_capacity(step.inputs.len());
        for (position, input) in step.inputs.iter().enumerate() {
            match &self.tensors[input.tensor] {
                Value::Pending => return None,
                Value::Known(value) => known.push((position, value.clone())),
                Value::Absent => {}
            }
        }
        Some(known)
    }
}

#[cfg(test)]
mod tests;
