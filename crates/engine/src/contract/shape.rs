//! Does one input have the datatype, shape and size that the model takes?

use nerite_config::TensorSpec;
use nerite_request::Status;
use nerite_request::limits::EMPTY_DIMS_PRODUCT_MAX;
use nerite_tensor::strings::{self, StringsError};
use nerite_tensor::{DataType, Shape, Tensor, byte_size, element_count, show_shape};

use super::{Contract, Prefix};

const BATCH_NOTE: &str = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be \
                          prepended to each input shape. If you want to specify the full shape including the batch dim \
                          in your input dims config, try setting max_batch_size to zero. See the model configuration \
                          docs for more info on max_batch_size.";

/// Checks datatype, shape and size. `raw` says that the client sent the input without a name. The input gets the shape that the model sees.
pub(super) fn check_input(
    request: Prefix<'_>,
    input: &mut Tensor,
    spec: &TensorSpec,
    contract: &Contract<'_>,
    raw: bool,
) -> Result<(), Status> {
    let model = contract.model;
    let name = &input.name;
    if let Some(expected) = spec.data_type.filter(|expected| *expected != input.datatype) {
        return Err(Status::invalid(format!(
            "{request}inference input '{name}' data-type is '{}', but model '{model}' expects '{expected}'",
            input.datatype
        )));
    }
    let batching = contract.batch_max > 0;
    let own = if batching { input.shape.get(1..).unwrap_or_default() } else { &input.shape[..] };
    if own.iter().any(|dim| *dim < 0) {
        return Err(Status::invalid(format!(
            "{request}All input dimensions should be specified for input '{name}' for model '{model}', got {}",
            show_shape(&input.shape)
        )));
    }
    if !fits(own, &spec.dims) {
        return Err(Status::invalid(format!(
            "{request}unexpected shape for input '{name}' for model '{model}'. Expected {}, got {}. {}",
            show_shape(&spec.shape(batching)),
            show_shape(&input.shape),
            if batching { BATCH_NOTE } else { "" }
        )));
    }
    if product_without_elements(&input.shape).is_some_and(|product| product > EMPTY_DIMS_PRODUCT_MAX) {
        return Err(Status::invalid(format!(
            "{request}input '{name}' for model '{model}' has no elements, so its dimensions other than 0 must have a product of at most \
             {EMPTY_DIMS_PRODUCT_MAX}, got the shape {}",
            show_shape(&input.shape)
        )));
    }
    // Triton uses this name for the data of a raw request, in which the client gives no name.
    let shown = if raw { "raw_input" } else { &input.name };
    check_size(request, shown, input, own, contract)?;
    if let Some(reshape) = &spec.reshape {
        let reshaped = reshaped(own, &spec.dims, reshape);
        input.shape = input.shape.iter().copied().take(usize::from(batching)).chain(reshaped).collect();
    }
    Ok(())
}

fn fits(shape: &[i64], dims: &[i64]) -> bool {
    shape.len() == dims.len() && shape.iter().zip(dims).all(|(have, want)| *want == -1 || have == want)
}

/// The product of the dimensions other than 0, if the shape has no elements.
fn product_without_elements(shape: &[i64]) -> Option<u64> {
    let others = shape.iter().map(|dim| dim.unsigned_abs()).filter(|dim| *dim != 0);
    shape.contains(&0).then(|| others.fold(1, u64::saturating_mul))
}

fn check_size(
    request: Prefix<'_>,
    name: &str,
    input: &Tensor,
    own: &[i64],
    contract: &Contract<'_>,
) -> Result<(), Status> {
    let (model, got) = (contract.model, input.data.len());
    let mismatch = |expected: usize| {
        Status::invalid(format!(
            "{request}input byte size mismatch for input '{name}' for model '{model}'. Expected {expected}, got {got}"
        ))
    };
    let overflow = |e: nerite_tensor::ShapeError| Status::invalid(format!("{request}input '{name}': {e}"));
    if input.datatype == DataType::Bytes {
        let expected = element_count(&input.shape).map_err(overflow)?;
        let checked = check_strings(input, expected, contract);
        // If memory was lost during the check, the result of the check is not reliable.
        if let Some(fault) = input.data.fault() {
            return Err(Status::invalid(fault));
        }
        return checked.map_err(|text| Status::invalid(format!("{request}{text}")));
    }
    let expected = byte_size(input.datatype, &input.shape).map_err(overflow)?.unwrap_or(0);
    // Triton computes the expected size for one item if a batch is empty. So an empty batch is always refused.
    if contract.batch_max > 0 && input.shape.first() == Some(&0) {
        return Err(mismatch(byte_size(input.datatype, own).map_err(overflow)?.unwrap_or(0)));
    }
    if got == expected { Ok(()) } else { Err(mismatch(expected)) }
}

fn check_strings(input: &Tensor, expected: u64, contract: &Contract<'_>) -> Result<(), String> {
    if !input.data.place().is_host() {
        return Ok(());
    }
    let of = format!("for inference input '{}' for model '{}'", input.name, contract.model);
    match strings::walk(&input.data, expected, |_| ()) {
        Ok(()) => Ok(()),
        Err(StringsError::NoMemory(refused)) => Err(format!("{refused} {of}")),
        Err(StringsError::IncompleteLength { left }) => Err(format!(
            "incomplete string length indicator {of}, expecting 4 bytes but only {left} bytes available. Please make sure \
             the string length indicator is in one buffer."
        )),
        Err(StringsError::IncompleteData { len, left }) => Err(format!(
            "incomplete string data for inference input '{}', expecting string of length {len} but only {left} bytes \
             available",
            input.name
        )),
        Err(StringsError::TooMany { found, .. }) => {
            Err(format!("unexpected number of string elements {found} {of}, expecting {expected}"))
        }
        Err(StringsError::TooFew { found, .. }) => {
            Err(format!("expected {expected} string elements {of}, got {found}"))
        }
    }
}

/// `reshape`, with the values of its free dimensions taken in order from the free dimensions of `own`.
pub fn reshaped(own: &[i64], dims: &[i64], reshape: &[i64]) -> Shape {
    let mut free = own.iter().zip(dims).filter(|(_, dim)| **dim == -1).map(|(size, _)| *size);
    reshape.iter().map(|dim| if *dim == -1 { free.next().unwrap_or(1) } else { *dim }).collect()
}

#[cfg(test)]
mod tests {
    use nerite_memory::Buffer;

    use super::*;

    #[track_caller]
    fn check(datatype: DataType, shape: &[i64], is_admitted: bool) {
        let spec = TensorSpec {
            name: "IN".into(),
            data_type: Some(datatype),
            dims: vec![-1; shape.len() - 1],
            reshape: None,
            optional: false,
            ragged: false,
            label_filename: String::new(),
        };
        let contract = Contract { model: "m", batch_max: 8, inputs: std::slice::from_ref(&spec), outputs: &[] };
        let data = Buffer::from(Vec::new());
        let mut input = Tensor { name: "IN".into(), datatype, shape: Shape::from_slice(shape), data };
        let checked = check_input(Prefix(""), &mut input, &spec, &contract, false);
        let expect = if is_admitted {
            Ok(())
        } else {
            Err(format!(
                "[request id: <id_unknown>] input 'IN' for model 'm' has no elements, so its dimensions other than 0 must have a product of at \
                 most {EMPTY_DIMS_PRODUCT_MAX}, got the shape {}",
                show_shape(shape)
            ))
        };
        assert_eq!(checked.map_err(|status| status.message), expect, "{datatype} {shape:?}");
    }

    #[test]
    fn dimensions_beside_a_zero_are_bounded_for_every_datatype() {
        const MOST: i64 = EMPTY_DIMS_PRODUCT_MAX as i64;
        for datatype in [DataType::Uint8, DataType::Fp64, DataType::Bytes] {
            check(datatype, &[1, 0], true);
            check(datatype, &[1, 0, MOST], true);
            check(datatype, &[1, MOST, 0], true);
            check(datatype, &[1, 0, MOST + 1], false);
            check(datatype, &[2, 0, MOST], false);
            check(datatype, &[1, i64::MAX, 0, i64::MAX], false);
        }
    }
}
