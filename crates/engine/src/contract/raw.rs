//! Which tensor is the body of a request that does not describe its tensors?

use nerite_config::raw_input;
use nerite_memory::{Buffer, Reason, Slot};
use nerite_request::{InferInput, Source, Status};
use nerite_tensor::{DataType, Shape};

use super::{Contract, Prefix};

/// The model's one input, with `body` as its data. The batch size is 1. A free dimension is computed from the size of the body.
pub(super) fn input_of(request: Prefix<'_>, body: Buffer, contract: &Contract<'_>) -> Result<InferInput, Status> {
    let Contract { model, batch_max, inputs, .. } = *contract;
    let found = raw_input(model, batch_max, inputs, 1, body.len());
    let (spec, datatype, shape) = found.map_err(|text| Status::invalid(format!("{request}{text}")))?;
    let data = if datatype == DataType::Bytes { with_length(&body)? } else { body };
    Ok(InferInput { name: spec.name.clone(), datatype, shape: Shape::from_vec(shape), source: Source::Inline(data) })
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
