//! How does a batch of requests run?
//!
//! Requests whose inputs differ only in their rows run together. Others run alone.

use std::ops::Range;

use nerite_backend_sdk::{Batch, Call, DataType, Error, Input, Request, Response};
use tract_tensorflow::prelude::Tensor as EngineTensor;

use crate::model::Graphdef;
use crate::tensors::{of_numbers, of_strings, split, to_bytes};

/// Requests that run together.
struct Group {
    /// The shapes of the first one's inputs.
    dims: Vec<Vec<usize>>,
    /// Each call with its rows.
    calls: Vec<(Call, usize)>,
}

/// Answers all requests of a batch.
pub fn batch(model: &Graphdef, mut batch: Batch) {
    let mut groups: Vec<Group> = Vec::new();
    let mut rows_all = 0;
    for call in batch.take_calls() {
        if call.request().is_cancelled() {
            call.fail(Error::new(nerite_backend_sdk::Code::Cancelled, "the request was cancelled"));
            continue;
        }
        let dims = match shapes(model, call.request()) {
            Ok(dims) => dims,
            Err(error) => {
                call.fail(error);
                continue;
            }
        };
        let rows = rows(model, &dims);
        rows_all += rows as u64;
        match groups.iter_mut().find(|group| model.max_batch_size > 0 && is_joined(&group.dims, &dims)) {
            Some(group) => group.calls.push((call, rows)),
            None => groups.push(Group { dims, calls: vec![(call, rows)] }),
        }
    }
    batch.set_rows(rows_all);
    let mut is_first = true;
    for group in groups {
        run_group(model, group, is_first.then_some(&batch));
        is_first = false;
    }
}

/// Answers one request.
pub fn alone(model: &Graphdef, request: &Request, response: &mut Response) -> Result<(), Error> {
    let dims = shapes(model, request)?;
    let rows = rows(model, &dims);
    let outputs = compute(model, &dims, &[(request, rows)], None)?;
    write(model, request, response, &outputs, rows, 0..rows)
}

/// Runs requests together, and answers each.
fn run_group(model: &Graphdef, group: Group, times: Option<&Batch>) {
    let Group { mut dims, calls } = group;
    let total: usize = calls.iter().map(|(_, rows)| rows).sum();
    if model.max_batch_size > 0 {
        for dims in &mut dims {
            dims[0] = total;
        }
    }
    let requests: Vec<(&Request, usize)> = calls.iter().map(|(call, rows)| (call.request(), *rows)).collect();
    let outputs = compute(model, &dims, &requests, times);
    if outputs.is_err() && calls.len() > 1 {
        // A request of one client must not fail those of others, so each runs alone.
        for (call, _) in calls {
            call.answer(|request, response| alone(model, request, response));
        }
        return;
    }
    let mut at = 0;
    for (call, rows) in calls {
        let range = at..at + rows;
        at = range.end;
        match &outputs {
            Ok(outputs) => call.answer(|request, response| write(model, request, response, outputs, total, range)),
            Err(error) => call.fail(error.clone()),
        }
    }
}

/// The shapes of a request's inputs, in the order of the model's.
fn shapes(model: &Graphdef, request: &Request) -> Result<Vec<Vec<usize>>, Error> {
    let one = |index: usize| {
        let known = &model.inputs[index];
        let input = request.input(&known.name)?;
        if input.datatype() != known.datatype {
            let (found, wanted) = (input.datatype().name(), known.datatype.name());
            return Err(Error::invalid(format!("input '{}' is {found}, and the graph takes {wanted}", known.name)));
        }
        let dims = model.check_shape(index, input.shape())?;
        let volume = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let wanted = input.datatype().size().map(|size| volume.and_then(|volume| volume.checked_mul(size)));
        if wanted.is_some_and(|wanted| wanted != Some(input.len())) {
            let text = format!("input '{}' has {} bytes, which do not fit its shape {dims:?}", known.name, input.len());
            return Err(Error::invalid(text));
        }
        Ok(dims)
    };
    let all = (0..model.inputs.len()).map(one).collect::<Result<Vec<_>, Error>>()?;
    let rows = rows(model, &all);
    if model.max_batch_size > 0 && all.iter().any(|dims| dims.first() != Some(&rows)) {
        return Err(Error::invalid("the inputs of a request differ in their rows"));
    }
    Ok(all)
}

/// Rows of a request; 1 in a model without batches.
fn rows(model: &Graphdef, dims: &[Vec<usize>]) -> usize {
    let first = dims.first().and_then(|dims| dims.first()).copied();
    if model.max_batch_size > 0 { first.unwrap_or(1) } else { 1 }
}

/// Whether shapes differ only in the rows.
fn is_joined(a: &[Vec<usize>], b: &[Vec<usize>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.get(1..) == b.get(1..))
}

/// The outputs for the concatenated rows of some requests.
fn compute(
    model: &Graphdef,
    dims: &[Vec<usize>],
    requests: &[(&Request, usize)],
    times: Option<&Batch>,
) -> Result<Vec<EngineTensor>, Error> {
    let mut tensors = Vec::with_capacity(dims.len());
    let mut text_max = 0;
    for (known, dims) in model.inputs.iter().zip(dims) {
        let inputs =
            requests.iter().map(|(request, _)| request.input(&known.name)).collect::<Result<Vec<_>, Error>>()?;
        tensors.push(if known.datatype == DataType::Bytes {
            let bytes = joined(&inputs)?;
            let longest =
                split(&bytes, dims.iter().product()).and_then(|strings| strings.into_iter().map(<[u8]>::len).max());
            text_max = text_max.max(longest.unwrap_or(0) as u64);
            of_strings(&known.name, dims, &bytes)?
        } else {
            of_numbers(known.datatype, dims, |to| read_all(&inputs, to))?
        });
    }
    let plan = model.plan(dims, text_max)?;
    if let Some(batch) = times {
        batch.mark_input_end();
    }
    let outputs = plan.run(tensors);
    if let Some(batch) = times {
        batch.mark_infer_end();
    }
    outputs
}

/// The concatenated bytes of strings of some requests.
fn joined(inputs: &[Input<'_>]) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for input in inputs {
        bytes.append(&mut input.read()?);
    }
    Ok(bytes)
}

/// Reads the parts of a tensor directly to their places.
fn read_all(inputs: &[Input<'_>], mut to: &mut [u8]) -> Result<(), Error> {
    for input in inputs {
        let Some((part, rest)) = to.split_at_mut_checked(input.len()) else {
            return Err(Error::internal(format!("input '{}' does not fit the batch", input.name())));
        };
        input.read_into(part)?;
        to = rest;
    }
    Ok(())
}

/// Writes the rows of one request to its response.
fn write(
    model: &Graphdef,
    request: &Request,
    response: &mut Response,
    outputs: &[EngineTensor],
    rows: usize,
    range: Range<usize>,
) -> Result<(), Error> {
    let wanted = request.wanted()?;
    for (known, tensor) in model.outputs.iter().zip(outputs) {
        if !wanted.contains(&known.name) {
            continue;
        }
        let mut shape: Vec<i64> = tensor.shape().iter().map(|dim| *dim as i64).collect();
        if model.max_batch_size > 0 {
            if tensor.shape().first() != Some(&rows) {
                return Err(Error::invalid(format!("output '{}' has the shape {shape:?} for {rows} rows", known.name)));
            }
            shape[0] = range.len() as i64;
        }
        // A response contains no scalars, so they get one dimension.
        if shape.is_empty() {
            shape.push(1);
        }
        response.put(&known.name, known.datatype, &shape, &to_bytes(tensor, rows, range.clone())?)?;
    }
    Ok(())
}
