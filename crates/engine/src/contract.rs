//! Does a request fit its model?
//!
//! The checks are in Triton's order, so a request with two faults gets the same error as from Triton. In a client's request, `api` has already
//! replaced the names of regions by memory. A request from within the server has its memory from the start.

mod raw;
mod shape;
mod string_count;

use std::collections::HashSet;

use nerite_config::TensorSpec;
use nerite_memory::Buffer;
pub use nerite_request::Prefix;
use nerite_request::limits::LISTED_BYTES_MAX;
use nerite_request::names::{ByName, first_repeated};
use nerite_request::{InferInput, Inputs, NamedOutputs, Status, Wanted, WantedOutputs};
use nerite_tensor::Tensor;

use shape::check_input;
pub(crate) use shape::reshaped;
use string_count::string_bytes;

/// The tensors that a model takes and gives. Requests are checked against it.
#[derive(Clone, Copy, Debug)]
pub struct Contract<'m> {
    /// The model's name.
    pub model: &'m str,
    /// Largest batch; 0 for a model without batch dimension.
    pub batch_max: i32,
    /// The inputs that the model takes.
    pub inputs: &'m [TensorSpec],
    /// The outputs that the model gives.
    pub outputs: &'m [TensorSpec],
}

/// The tensors of a request that is not checked yet.
#[derive(Debug)]
pub struct Tensors {
    /// Inputs in the client's order.
    pub inputs: Inputs,
    /// Requested outputs, each with its memory. Empty means all outputs.
    pub wanted: NamedOutputs,
    /// Whether the only input came without a name.
    pub is_raw: bool,
}

/// Tensors that fit their model.
#[derive(Debug)]
pub struct CheckedTensors {
    /// Inputs in the order of the model's configuration, with its names, and in the shapes the model sees.
    pub inputs: Inputs,
    /// Requested outputs in the client's order, with the configuration's names and indices. Each has its memory.
    pub wanted: WantedOutputs,
    /// Rows: the batch dimension, 1 without one.
    pub rows: u32,
    /// Bytes that the strings of all BYTES inputs may take beside their own bytes.
    pub string_bytes: usize,
}

/// Who made the tensors of a request.
#[derive(Clone, Copy)]
enum Sender {
    Client,
    Server,
}

impl Contract<'_> {
    /// The model's one input, with `body` as its data, for a request that does not describe its tensors.
    pub fn raw_input(&self, request: Prefix<'_>, body: Buffer) -> Result<InferInput, Status> {
        raw::input_of(request, body, self)
    }

    /// Checks tensors that a client sent, of which none is named twice.
    pub fn check(&self, request: Prefix<'_>, tensors: Tensors) -> Result<CheckedTensors, Status> {
        self.check_from(request, tensors, Sender::Client)
    }

    fn check_from(&self, request: Prefix<'_>, tensors: Tensors, sender: Sender) -> Result<CheckedTensors, Status> {
        let Tensors { inputs, wanted, is_raw } = tensors;
        let wanted = self.check_wanted(wanted)?;
        let specs = ByName::new(self.inputs, |spec| &spec.name);
        check_inputs(request, &inputs, self)?;
        let rows = check_batch(request, &inputs, &specs, self)?;
        let string_bytes = match sender {
            Sender::Client => string_bytes(&inputs, self)?,
            Sender::Server => 0,
        };
        let inputs = inputs.arranged(self.inputs.len(), |input| {
            let index = specs.index_of(&input.name).ok_or_else(|| self.unexpected_input(&input.name))?;
            let spec = &self.inputs[index];
            check_input(request, input, spec, self, is_raw)?;
            input.name = spec.name.clone();
            Ok::<_, Status>(index)
        })?;
        Ok(CheckedTensors { inputs, wanted, rows, string_bytes })
    }

    /// As [`Contract::check`], for tensors of the server and its models, of which nothing was checked before. Their strings are not limited: a model
    /// may make more strings than its client sent, and the client cannot change that. As in Triton, an output that is named twice is wanted once.
    pub fn check_all(&self, request: Prefix<'_>, mut tensors: Tensors) -> Result<CheckedTensors, Status> {
        let Tensors { inputs, wanted, .. } = &mut tensors;
        if let Some(input) = first_repeated(inputs, |input| &input.name).and_then(|at| inputs.get(at)) {
            return Err(request.repeated_input(&input.name));
        }
        if first_repeated(wanted, |wanted| &wanted.name).is_some() {
            let mut seen = HashSet::new();
            wanted.retain(|wanted| seen.insert(wanted.name.clone()));
        }
        self.check_from(request, tensors, Sender::Server)
    }

    /// Gives the wanted outputs their indices and names in the configuration. An empty list means all outputs.
    fn check_wanted(&self, wanted: NamedOutputs) -> Result<WantedOutputs, Status> {
        if wanted.is_empty() {
            return Ok(self.outputs.iter().map(|o| Wanted { name: o.name.clone(), slot: None }).collect());
        }
        let specs = ByName::new(self.outputs, |spec| &spec.name);
        let known = |Wanted { name, slot }| {
            let index = specs.index_of(&name).ok_or_else(|| self.unexpected("output", &name, self.outputs))?;
            Ok((index, Wanted { name: self.outputs[index].name.clone(), slot }))
        };
        wanted.into_iter().map(known).collect()
    }

    fn unexpected_input(&self, name: &str) -> Status {
        self.unexpected("input", name, self.inputs)
    }

    /// The error for a name that is none of `known`: Triton's text, and then those that exist.
    fn unexpected(&self, what: &str, name: &str, known: &[TensorSpec]) -> Status {
        let allowed = quoted(known.iter().map(|spec| spec.name.as_str()));
        let model = self.model;
        Status::invalid(format!(
            "unexpected inference {what} '{name}' for model '{model}', allowed {what}s are: [{allowed}]"
        ))
    }
}

fn check_inputs(request: Prefix<'_>, inputs: &[Tensor], contract: &Contract<'_>) -> Result<(), Status> {
    let most = contract.inputs.len();
    let least = contract.inputs.iter().filter(|spec| !spec.optional).count();
    let sent = ByName::new(inputs, |input| &input.name);
    let missing = || contract.inputs.iter().filter(|spec| !spec.optional && sent.find(&spec.name).is_none());
    let got = inputs.len();
    if (least..=most).contains(&got) && (least == most || missing().next().is_none()) {
        return Ok(());
    }
    let got_list = quoted(inputs.iter().map(|input| input.name.as_str()));
    let missing_list = quoted(missing().map(|spec| spec.name.as_str()));
    let expected = if least == most {
        format!("expected {most} inputs but got {got} inputs for model '{}'", contract.model)
    } else {
        format!(
            "expected number of inputs between {least} and {most} but got {got} inputs for model '{}'",
            contract.model
        )
    };
    let remedy = if missing_list.is_empty() {
        // Triton's text goes on with an empty list of missing inputs, whose opening bracket is missing.
        let known = quoted(contract.inputs.iter().map(|spec| spec.name.as_str()));
        format!("but the model has only input(s) [{known}].")
    } else {
        format!("but missing required input(s) [{missing_list}]. Please provide all required input(s).")
    };
    Err(Status::invalid(format!("{request}{expected}. Got input(s) [{got_list}], {remedy}")))
}

/// Names in the form of Triton's list. A long list is cut, and ends with the number of the other names.
fn quoted<'n>(mut names: impl Iterator<Item = &'n str>) -> String {
    let mut list = String::new();
    while let Some(name) = names.next() {
        if list.len() + name.len() > LISTED_BYTES_MAX {
            list.push_str(&format!(" and {} more", 1 + names.count()));
            break;
        }
        let comma = if list.is_empty() { "" } else { "," };
        list.push_str(&format!("{comma}'{name}'"));
    }
    list
}

/// Checks for unknown inputs, and the batch dimension of all inputs. Returns the number of rows.
fn check_batch(
    request: Prefix<'_>,
    inputs: &[Tensor],
    specs: &ByName<'_, TensorSpec>,
    contract: &Contract<'_>,
) -> Result<u32, Status> {
    let model = contract.model;
    let mut rows: Option<i64> = None;
    for input in inputs {
        if specs.find(&input.name).is_none() {
            return Err(contract.unexpected_input(&input.name));
        }
        if contract.batch_max <= 0 {
            continue;
        }
        let Some(&batch) = input.shape.first() else {
            return Err(Status::invalid(format!(
                "{request}input '{}' has no shape but model requires batch dimension for '{model}'",
                input.name
            )));
        };
        if rows.is_some_and(|earlier| earlier != batch) {
            return Err(Status::invalid(format!(
                "{request}input '{}' batch size does not match other inputs for '{model}'",
                input.name
            )));
        }
        rows = Some(batch);
    }
    let rows = rows.unwrap_or(1);
    if contract.batch_max > 0 && rows > i64::from(contract.batch_max) {
        let max = contract.batch_max;
        return Err(Status::invalid(format!(
            "{request}inference request batch-size must be <= {max} for '{model}', got {rows}; to raise it, set max_batch_size in the model's \
             configuration (one that sets none is completed by --backend-config=default-max-batch-size)"
        )));
    }
    // A negative batch size is refused with the other dimensions, input by input.
    Ok(u32::try_from(rows).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_in_an_error_has_an_end() {
        let name = "x".repeat(LISTED_BYTES_MAX / 2 - 10);
        let names = [&name[..], &name[..], "y", "z"];
        assert_eq!(quoted(names[2..].iter().copied()), "'y','z'");
        let list = quoted(names.into_iter().cycle().take(10));
        assert!(list.len() < 2 * LISTED_BYTES_MAX && list.ends_with(" more"), "{}", &list[list.len() - 20..]);
    }
}
