//! Which tensor is a body that has no description of its tensors?

use nerite_memory::{Buffer, Reason, Slot};
use nerite_request::{InferInput, Source, Status};
use nerite_tensor::{DataType, Shape, element_count};

use super::{Contract, Prefix};

/// The model's one input, with `body` as its data: a batch of one, the one free dimension worked out from the size.
pub(super) fn input_of(request: Prefix<'_>, body: Buffer, contract: &Contract<'_>) -> Result<InferInput, Status> {
    let [spec] = contract.inputs else {
        return Err(Status::invalid(format!(
            "{request}Raw request must only have 1 input (found 1) to be deduced but got {} inputs in '{}' model configuration",
            contract.inputs.len(),
            contract.model
        )));
    };
    let datatype = spec.data_type.unwrap_or(DataType::Bytes);
    let batch = (contract.batch_max > 0).then_some(1);
    let mut shape: Shape = batch.into_iter().chain(spec.dims.iter().copied()).collect();
    if datatype == DataType::Bytes {
        if spec.dims[..] != [1] {
            return Err(Status::invalid(format!(
                "{request}For BYTE datatype raw input '{}', the model must have input shape [1]",
                spec.name
            )));
        }
        shape = batch.into_iter().chain([1]).collect();
        let data = with_length(&body)?;
        return Ok(InferInput { name: spec.name.clone(), datatype, shape, source: Source::Inline(data) });
    }
    if spec.dims.iter().filter(|dim| **dim == -1).count() > 1 {
        return Err(Status::invalid(format!(
            "{request}The shape of the raw input '{}' can not be deduced because there are more than one variable-sized dimension",
            spec.name
        )));
    }
    let fixed: Vec<i64> = shape.iter().copied().filter(|dim| *dim != -1).collect();
    let fixed = element_count(&fixed).unwrap_or(1).max(1) as usize * datatype.size().unwrap_or(1);
    let free = (body.len() / fixed) as i64;
    for dim in &mut shape {
        if *dim == -1 {
            *dim = free;
        }
    }
    Ok(InferInput { name: spec.name.clone(), datatype, shape, source: Source::Inline(body) })
}

fn with_length(body: &Buffer) -> Result<Buffer, Status> {
    let len = u32::try_from(body.len()).map_err(|_| {
        Status::invalid(format!("a BYTES element has at most 4294967295 bytes, the body has {}", body.len()))
    })?;
    let slot = Slot::try_heap(body.len() + 4);
    let mut slot = slot.map_err(|refused| Status::no_memory("the input", refused))?;
    let fits = "the slot was made for length and body";
    slot.write(0, &len.to_le_bytes(), Reason::Strings).expect(fits);
    slot.fill_from(4, body, Reason::Strings).expect(fits);
    Ok(slot.filled().into_buffer())
}
