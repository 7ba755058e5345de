//! Does a request fit its model, and which memory does it mean?
//!
//! The checks come in Triton's order, because a request with two faults must be told the same one. Region names become
//! Buffers and Slots here and are not seen again.

mod raw;
mod shape;
#[cfg(test)]
mod tests;

use nerite_config::TensorSpec;
use nerite_memory::{Buffer, Slot};
use nerite_request::limits::{Counted, LISTED_BYTES_MAX, TensorsMax, check_count};
use nerite_request::names::{ByName, first_repeated};
use nerite_request::{InferInput, InferRequest, RegionRef, Source, Status, Wanted};
use nerite_tensor::Tensor;

use shape::check_input;
pub(crate) use shape::reshaped;

/// What admission needs to know of a model.
#[derive(Clone, Copy, Debug)]
pub struct Contract<'m> {
    /// The model's name.
    pub model: &'m str,
    /// Largest batch; 0 for a model without batch dimension.
    pub batch_max: i32,
    /// What it takes.
    pub inputs: &'m [TensorSpec],
    /// What it gives.
    pub outputs: &'m [TensorSpec],
}

/// How the name of a region becomes memory.
pub trait Regions {
    /// A window to read from.
    fn buffer(&self, region: &RegionRef) -> Result<Buffer, Status>;
    /// A window to write to.
    fn slot(&self, region: &RegionRef) -> Result<Slot, Status>;
}

/// A request that fits its model.
#[derive(Debug)]
pub struct Admitted {
    /// Inputs in the client's order, in the shapes the model sees.
    pub inputs: Vec<Tensor>,
    /// Outputs wanted, each with its place.
    pub wanted: Vec<Wanted>,
    /// Rows: the batch dimension, 1 without one.
    pub rows: u32,
}

/// Checks `ask` against the model and turns its names into memory.
pub fn admit(
    infer_request: &mut InferRequest,
    contract: &Contract<'_>,
    regions: &dyn Regions,
) -> Result<Admitted, Status> {
    let raw = infer_request.raw_input.is_some();
    if let Some(body) = infer_request.raw_input.take() {
        infer_request.inputs = vec![raw::input_of(&Prefix(&infer_request.id), body, contract)?];
    }
    let most = TensorsMax::of_model(contract.inputs.len(), contract.outputs.len());
    check_count(Counted::Inputs, infer_request.inputs.len(), most.inputs)?;
    check_count(Counted::Outputs, infer_request.outputs.len(), most.outputs)?;
    let request = Prefix(&infer_request.id);
    let specs = ByName::new(contract.inputs, |spec| &spec.name);
    let inputs = take_inputs(&request, std::mem::take(&mut infer_request.inputs), regions)?;
    let wanted = take_outputs(&request, infer_request, contract, regions)?;
    check_inputs(&request, &inputs, contract)?;
    let rows = check_batch(&request, &inputs, &specs, contract)?;
    let admitted = inputs.into_iter().map(|input| {
        let spec = specs.find(&input.name).ok_or_else(|| unexpected_input(&input.name, contract))?;
        check_input(&request, input, spec, contract, raw)
    });
    // The list is made where the other one was.
    let inputs = admitted.collect::<Result<Vec<_>, Status>>()?;
    Ok(Admitted { inputs, wanted, rows })
}

/// `[request id: x] `, with which Triton begins the texts of these checks.
struct Prefix<'a>(&'a str);

impl std::fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[request id: {}] ", if self.0.is_empty() { "<id_unknown>" } else { self.0 })
    }
}

fn unexpected_input(name: &str, contract: &Contract<'_>) -> Status {
    Status::invalid(format!("unexpected inference input '{name}' for model '{}'", contract.model))
}

/// Duplicates and regions, in the client's order.
fn take_inputs(request: &Prefix<'_>, inputs: Vec<InferInput>, regions: &dyn Regions) -> Result<Vec<Tensor>, Status> {
    let repeated = first_repeated(&inputs, |input| &input.name);
    let mut taken: Vec<Tensor> = Vec::with_capacity(inputs.len());
    for (at, InferInput { name, datatype, shape, source }) in inputs.into_iter().enumerate() {
        if repeated == Some(at) {
            return Err(Status::invalid(format!("{request}input '{name}' already exists in request")));
        }
        let data = match source {
            Source::Inline(data) => data,
            Source::Region(region) => regions.buffer(&region)?,
        };
        taken.push(Tensor { name, datatype, shape, data });
    }
    Ok(taken)
}

/// Duplicates, regions and names; none asked for means all.
fn take_outputs(
    request: &Prefix<'_>,
    infer_request: &InferRequest,
    contract: &Contract<'_>,
    regions: &dyn Regions,
) -> Result<Vec<Wanted>, Status> {
    if infer_request.outputs.is_empty() {
        return Ok(contract.outputs.iter().map(|o| Wanted { name: o.name.as_str().into(), slot: None }).collect());
    }
    let repeated = first_repeated(&infer_request.outputs, |output| &output.name);
    let mut wanted: Vec<Wanted> = Vec::with_capacity(infer_request.outputs.len());
    for (at, output) in infer_request.outputs.iter().enumerate() {
        let name = output.name.clone();
        if repeated == Some(at) {
            return Err(Status::invalid(format!("{request}output '{name}' already exists in request")));
        }
        let slot = output.region.as_ref().map(|region| regions.slot(region)).transpose()?;
        wanted.push(Wanted { name, slot });
    }
    let specs = ByName::new(contract.outputs, |spec| &spec.name);
    match wanted.iter().find(|w| specs.find(&w.name).is_none()) {
        Some(stranger) => Err(Status::invalid(format!(
            "unexpected inference output '{}' for model '{}'",
            stranger.name, contract.model
        ))),
        None => Ok(wanted),
    }
}

fn check_inputs(request: &Prefix<'_>, inputs: &[Tensor], contract: &Contract<'_>) -> Result<(), Status> {
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
    // With nothing missing Triton's list opens without its bracket; clients may look for that.
    let missing_list = if missing_list.is_empty() { "]".to_owned() } else { format!("[{missing_list}]") };
    Err(Status::invalid(format!(
        "{request}{expected}. Got input(s) [{got_list}], but missing required input(s) {missing_list}. Please provide all \
         required input(s)."
    )))
}

/// Names as Triton lists them; of very many the first, and the number of the others.
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

/// Unknown inputs and the batch dimension, over all inputs. Gives the rows.
fn check_batch(
    request: &Prefix<'_>,
    inputs: &[Tensor],
    specs: &ByName<'_, TensorSpec>,
    contract: &Contract<'_>,
) -> Result<u32, Status> {
    let model = contract.model;
    let mut rows: Option<i64> = None;
    for input in inputs {
        if specs.find(&input.name).is_none() {
            return Err(unexpected_input(&input.name, contract));
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
        return Err(Status::invalid(format!("{request}inference request batch-size must be <= {max} for '{model}'")));
    }
    // A negative batch size is refused with the other dimensions, input by input.
    Ok(u32::try_from(rows).unwrap_or(0))
}
