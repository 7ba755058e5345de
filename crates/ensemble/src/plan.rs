//! Which steps does an ensemble run, and which tensors connect them?

use std::collections::BTreeMap;

use nerite_config::proto::model_ensembling;
use nerite_config::{ModelConfig, TensorSpec};
use nerite_request::names::ByName;

use crate::batch_dimension::BatchDimension;

/// The platform of an ensemble.
const ENSEMBLE: &str = "ensemble";

/// A tensor of an ensemble, by its position in [`Plan::tensors`].
pub type TensorIndex = usize;

/// The steps of an ensemble, and the tensors that connect them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The names of all tensors, each once.
    pub tensors: Vec<String>,
    /// The steps, in the order of the configuration.
    pub steps: Vec<Step>,
    /// The tensors that a request brings.
    pub inputs: Vec<TensorIndex>,
    /// The tensors that a request may want, in the order of the configuration.
    pub outputs: Vec<TensorIndex>,
    /// What happens to the batch dimension of each of `outputs`.
    pub output_batches: Vec<BatchDimension>,
    /// Whether any step answers several times.
    pub is_decoupled: bool,
    /// Whether the outputs of each step may lie where a model's process can still write to them. A response to a request with such tensors is not
    /// cached for all clients. So this is false for a step with a response cache, and for an ensemble, because its steps may have one. It is also
    /// false for a step whose outputs such a step reads.
    pub may_share: Vec<bool>,
    /// Whether each tensor may be placed in the input memory of a model that reads it. This is false if `may_share` is false for its writer, if any
    /// step of the ensemble answers several times, and for an output that its model keeps as a state.
    pub in_input_memory: Vec<bool>,
    /// How often a step may be in flight for one request; 0 for any number.
    pub in_flight_max: u32,
    /// The steps that take each tensor.
    pub readers: Vec<Vec<usize>>,
    /// The step that makes each tensor; `None` for tensors that a request brings.
    pub writers: Vec<Option<usize>>,
}

/// One model that an ensemble runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The model's name.
    pub model: String,
    /// Its version; `None` for the highest that is ready.
    pub version: Option<i64>,
    /// The tensors that the model takes.
    pub inputs: Vec<StepInput>,
    /// The tensors that the model makes.
    pub outputs: Vec<StepOutput>,
}

/// A tensor that a step takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepInput {
    /// The model's name for it.
    pub name: String,
    /// The tensor.
    pub tensor: TensorIndex,
    /// What happens to its batch dimension.
    pub batch: BatchDimension,
}

/// A tensor that a step makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutput {
    /// The model's name for it.
    pub name: String,
    /// The tensor.
    pub tensor: TensorIndex,
}

impl Plan {
    /// The plan of a validated ensemble; `members` are the configurations of its steps' models.
    pub fn new(config: &ModelConfig, members: &[impl AsRef<ModelConfig>]) -> Plan {
        let mut names = Names::default();
        let inputs = config.input.iter().map(|input| names.intern(&input.name)).collect();
        let outputs = config.output.iter().map(|output| names.intern(&output.name)).collect();
        let ensemble = config.ensemble_scheduling();
        let in_flight_max = ensemble.map_or(0, |ensemble| ensemble.max_inflight_requests);
        let steps = ensemble.map_or(&[][..], |ensemble| &ensemble.step);
        let steps = steps.iter().map(|step| Step {
            model: step.model_name.clone(),
            version: step_version(step),
            inputs: sorted(&step.input_map)
                .map(|(name, tensor)| StepInput {
                    name: name.to_owned(),
                    tensor: names.intern(tensor),
                    batch: BatchDimension::Kept,
                })
                .collect(),
            outputs: sorted(&step.output_map)
                .map(|(name, tensor)| StepOutput { name: name.to_owned(), tensor: names.intern(tensor) })
                .collect(),
        });
        let steps: Vec<Step> = steps.collect();
        let is_decoupled = members.iter().any(|member| member.as_ref().decoupled());
        let tensors = names.list;
        let plan = Plan { tensors, steps, inputs, outputs, is_decoupled, in_flight_max, ..Plan::default() };
        plan.linked().with_batches(config, members).with_shares(members)
    }

    /// The same plan, with what happens to batch dimensions filled in.
    fn with_batches(mut self, config: &ModelConfig, members: &[impl AsRef<ModelConfig>]) -> Plan {
        let batches = |step: usize| members.get(step).is_some_and(|member| member.as_ref().batches());
        let of_writer = |writer: Option<usize>| writer.map_or(config.batches(), batches);
        let by_writer: Vec<bool> = self.writers.iter().map(|writer| of_writer(*writer)).collect();
        for (step, member) in self.steps.iter_mut().zip(members) {
            let member = member.as_ref();
            let by_name = ByName::new(&member.input, |declared| &declared.name);
            for input in &mut step.inputs {
                let declared = by_name.find(&input.name);
                let dims = declared.map_or(&[][..], |declared| &declared.dims);
                input.batch = BatchDimension::between(by_writer[input.tensor], member.batches(), dims);
            }
        }
        let outputs = config.outputs();
        let of_output = |(spec, tensor): (&TensorSpec, &TensorIndex)| {
            BatchDimension::between(by_writer[*tensor], config.batches(), spec.model_dims())
        };
        self.output_batches = outputs.iter().zip(&self.outputs).map(of_output).collect();
        self
    }

    /// The same plan, with `may_share` and `in_input_memory` filled in.
    fn with_shares(self, members: &[impl AsRef<ModelConfig>]) -> Plan {
        let is_plain = |step: &usize| {
            let member = members.get(*step).map(AsRef::as_ref);
            member.is_some_and(|member| !member.caches_responses() && member.platform != ENSEMBLE)
        };
        let may_share = |(number, step): (usize, &Step)| {
            is_plain(&number) && step.outputs.iter().all(|output| self.readers[output.tensor].iter().all(is_plain))
        };
        let may_share: Vec<bool> = self.steps.iter().enumerate().map(may_share).collect();
        let mut in_input_memory = vec![false; self.tensors.len()];
        if !self.is_decoupled {
            let sharing = self.steps.iter().zip(members).zip(&may_share).filter(|(_, may_share)| **may_share);
            let each = sharing.flat_map(|((step, member), _)| outputs_but_states(step, member.as_ref()));
            each.for_each(|tensor| in_input_memory[tensor] = true);
        }
        Plan { may_share, in_input_memory, ..self }
    }

    /// The same plan, with its readers and writers filled in.
    pub fn linked(self) -> Plan {
        let (mut readers, mut writers) = (vec![Vec::new(); self.tensors.len()], vec![None; self.tensors.len()]);
        for (number, step) in self.steps.iter().enumerate() {
            for input in &step.inputs {
                readers[input.tensor].push(number);
            }
            for output in &step.outputs {
                writers[output.tensor] = Some(number);
            }
        }
        Plan { readers, writers, ..self }
    }

    /// The tensor of that name.
    #[cfg(test)]
    pub fn tensor(&self, name: &str) -> Option<TensorIndex> {
        self.tensors.iter().position(|known| known == name)
    }

    /// The index of a tensor among the outputs of the ensemble. `None` if it is none of them.
    pub fn output_index(&self, tensor: TensorIndex) -> Option<usize> {
        self.outputs.iter().position(|output| *output == tensor)
    }

    /// The steps that have to run for these outputs: those that write one of them, and what they need.
    pub fn needed_for(&self, wanted: &[TensorIndex]) -> Vec<bool> {
        let mut is_needed = vec![false; self.steps.len()];
        let mut missing = wanted.to_vec();
        while let Some(tensor) = missing.pop() {
            if let Some(step) = self.writers[tensor].filter(|step| !is_needed[*step]) {
                is_needed[step] = true;
                missing.extend(self.steps[step].inputs.iter().map(|input| input.tensor));
            }
        }
        is_needed
    }
}

/// The outputs of a step that its model does not keep as states.
fn outputs_but_states(step: &Step, member: &ModelConfig) -> impl Iterator<Item = TensorIndex> {
    let states = member.sequence_batching().map_or(&[][..], |sequences| &sequences.state);
    let is_state = |name: &str| states.iter().any(|state| state.output_name == name);
    step.outputs.iter().filter(move |output| !is_state(&output.name)).map(|output| output.tensor)
}

/// The version that a step names. `None` for the highest that is ready, which the configuration writes as -1.
pub fn step_version(step: &model_ensembling::Step) -> Option<i64> {
    Some(step.model_version).filter(|version| *version != -1)
}

/// The entries of a map of names, always in the same order.
fn sorted<'m>(map: impl IntoIterator<Item = (&'m String, &'m String)>) -> impl Iterator<Item = (&'m str, &'m str)> {
    let sorted: BTreeMap<&str, &str> = map.into_iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
    sorted.into_iter()
}

#[derive(Default)]
struct Names {
    list: Vec<String>,
    known: BTreeMap<String, TensorIndex>,
}

impl Names {
    fn intern(&mut self, name: &str) -> TensorIndex {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let index = self.list.len();
        self.list.push(name.to_owned());
        self.known.insert(name.to_owned(), index);
        index
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const OF_NUMBERS: &str = "output { name: 'OUT' data_type: TYPE_FP32 dims: [ -1 ] }";

    /// The plan of steps with these configurations, one after the other: tensor `t0` is the input, and the last one the output.
    fn chain(members: &[&str]) -> Plan {
        let step = |at: usize| {
            format!(
                "step {{ model_name: 'm{at}' model_version: -1 input_map {{ key: 'IN' value: 't{at}' }} \
                 output_map {{ key: 'OUT' value: 't{}' }} }}",
                at + 1
            )
        };
        let steps: String = (0..members.len()).map(step).collect();
        let parse = |text: &str| nerite_config::parse_text("config.pbtxt", text.as_bytes()).unwrap();
        let ensemble = parse(&format!("platform: 'ensemble' ensemble_scheduling {{ {steps} }}"));
        let members: Vec<_> = members.iter().map(|text| std::sync::Arc::new(parse(text))).collect();
        Plan::new(&ensemble, &members)
    }

    /// Whether the tensor between two steps may be placed in the second one's memory.
    #[track_caller]
    fn check(first: &str, second: &str, expected: bool) {
        let plan = chain(&[first, second]);
        assert_eq!(plan.in_input_memory[plan.tensor("t1").unwrap()], expected, "{first} and {second}");
        assert!(!plan.in_input_memory[plan.tensor("t0").unwrap()], "the request brings it");
    }

    /// Which of the tensors between steps may be placed in the memory of the next one.
    #[track_caller]
    fn check_between(members: &[&str], expected: &[bool]) {
        let plan = chain(members);
        let between = (1..members.len()).map(|at| plan.in_input_memory[plan.tensor(&format!("t{at}")).unwrap()]);
        assert_eq!(between.collect::<Vec<_>>(), expected, "{members:?}");
    }

    #[test]
    fn a_step_with_a_cache_keeps_only_its_own_tensors_out_of_the_memory_of_models() {
        for apart in ["response_cache { enable: true }", "platform: 'ensemble'"] {
            let apart = &*format!("{OF_NUMBERS} {apart}");
            check_between(&[OF_NUMBERS, OF_NUMBERS, apart, OF_NUMBERS], &[true, false, false]);
            check_between(&[apart, OF_NUMBERS, OF_NUMBERS], &[false, true]);
        }
        let decoupled = &*format!("{OF_NUMBERS} model_transaction_policy {{ decoupled: true }}");
        check_between(&[OF_NUMBERS, OF_NUMBERS, decoupled], &[false, false]);
    }

    #[test]
    fn what_may_be_placed_in_the_memory_of_the_next_model() {
        let more = |text: &str| format!("{OF_NUMBERS} {text}");
        check(OF_NUMBERS, OF_NUMBERS, true);
        check("output { name: 'OUT' data_type: TYPE_STRING dims: [ -1 ] }", OF_NUMBERS, true);
        for (state, expected) in [("OUT", false), ("NEXT", true)] {
            let state = format!("state {{ input_name: 'S' output_name: '{state}' data_type: TYPE_FP32 dims: [ -1 ] }}");
            check(&more(&format!("sequence_batching {{ {state} }}")), OF_NUMBERS, expected);
        }
        check(&more("sequence_batching { }"), OF_NUMBERS, true);
        for anywhere in ["response_cache { enable: true }", "platform: 'ensemble'"] {
            check(&more(anywhere), OF_NUMBERS, false);
            check(OF_NUMBERS, &more(anywhere), false);
        }
        check(OF_NUMBERS, &more("model_transaction_policy { decoupled: true }"), false);
    }
}
