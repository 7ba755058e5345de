//! How many strings does a request have, and what may they take?
//!
//! An empty string takes four bytes in a request, and about 64 in a runtime. So the number is bounded, and the client is charged for it.

use nerite_config::TensorSpec;
use nerite_request::Status;
use nerite_request::limits::{Counted, STRING_BYTES, STRINGS_MAX, check_count};
use nerite_tensor::strings::LENGTH_BYTES;
use nerite_tensor::{DataType, Tensor, element_count};

use super::Contract;

/// Bytes of memory that the strings of all inputs may take beside their own bytes. Err: there are more than the model or the server takes.
pub(super) fn string_bytes(inputs: &[Tensor], contract: &Contract<'_>) -> Result<usize, Status> {
    let counts = inputs.iter().filter(|input| input.datatype == DataType::Bytes).map(count_max);
    let count = counts.fold(0, usize::saturating_add);
    if count > STRINGS_MAX {
        check_count(Counted::Strings, count, STRINGS_MAX.max(configured(contract)))?;
    }
    Ok(count.saturating_mul(STRING_BYTES))
}

/// The most strings that an input can have: as many as its shape declares, or as many lengths as fit into its data if those are fewer.
fn count_max(input: &Tensor) -> usize {
    let declared = element_count(&input.shape).ok().and_then(|count| usize::try_from(count).ok());
    declared.unwrap_or(usize::MAX).min(input.data.len() / LENGTH_BYTES)
}

/// The number of strings in the inputs whose sizes the model's configuration fixes.
fn configured(contract: &Contract<'_>) -> usize {
    let rows = usize::try_from(contract.batch_max.max(1)).unwrap_or(1);
    let of_spec = |spec: &TensorSpec| {
        let count = element_count(&spec.dims).ok().and_then(|count| usize::try_from(count).ok());
        count.unwrap_or(0).saturating_mul(rows)
    };
    let strings = contract.inputs.iter().filter(|spec| spec.data_type == Some(DataType::Bytes));
    strings.map(of_spec).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use nerite_memory::Buffer;

    use super::*;

    fn strings(shape: &[i64], bytes: usize) -> Tensor {
        let shape = shape.iter().copied().collect();
        Tensor { name: "IN".into(), datatype: DataType::Bytes, shape, data: Buffer::from(vec![0; bytes]) }
    }

    #[track_caller]
    fn check(inputs: &[Tensor], dims: &[i64], batch_max: i32, expect: Result<usize, usize>) {
        let spec = TensorSpec {
            name: "IN".into(),
            data_type: Some(DataType::Bytes),
            dims: dims.to_vec(),
            reshape: None,
            optional: false,
            ragged: false,
            label_filename: String::new(),
        };
        let contract = Contract { model: "m", batch_max, inputs: &[spec], outputs: &[] };
        let found = string_bytes(inputs, &contract);
        let expect = expect.map_err(|got| {
            format!(
                "a request has at most {STRINGS_MAX} strings, got {got}; send fewer strings at once, or longer ones"
            )
        });
        assert_eq!(found.map_err(|status| status.message), expect);
    }

    #[test]
    fn strings_are_counted_over_all_inputs_and_bounded() {
        const MOST: usize = STRINGS_MAX;
        check(&[strings(&[2, 3], 24)], &[-1], 0, Ok(6 * STRING_BYTES));
        check(&[strings(&[3], 24), strings(&[4], 16)], &[-1], 0, Ok(7 * STRING_BYTES));
        // Strings that a shape declares and for which there are no bytes do not count.
        check(&[strings(&[1 << 40], 40)], &[-1], 0, Ok(10 * STRING_BYTES));
        check(&[strings(&[-1], 8)], &[-1], 0, Ok(2 * STRING_BYTES));
        check(&[strings(&[MOST as i64], 4 * MOST)], &[-1], 0, Ok(MOST * STRING_BYTES));
        check(&[strings(&[MOST as i64 + 1], 4 * MOST + 4)], &[-1], 0, Err(MOST + 1));
        check(&[strings(&[MOST as i64], 4 * MOST), strings(&[1], 4)], &[-1], 0, Err(MOST + 1));
    }

    #[test]
    fn a_model_that_has_more_strings_raises_the_limit() {
        let more = STRINGS_MAX + 1;
        let input = || strings(&[more as i64], 4 * more);
        check(&[input()], &[more as i64], 0, Ok(more * STRING_BYTES));
        check(&[input()], &[STRINGS_MAX as i64], 2, Ok(more * STRING_BYTES));
        check(&[input()], &[STRINGS_MAX as i64], 1, Err(more));
    }

    #[test]
    fn what_a_model_sends_is_not_limited() {
        use crate::contract::{Prefix, Tensors};
        let spec = |name: &str| TensorSpec {
            name: name.into(),
            data_type: Some(DataType::Bytes),
            dims: vec![-1],
            reshape: None,
            optional: false,
            ragged: false,
            label_filename: String::new(),
        };
        let (inputs, outputs) = ([spec("IN")], [spec("OUT")]);
        let contract = Contract { model: "m", batch_max: 0, inputs: &inputs, outputs: &outputs };
        let more = STRINGS_MAX + 1;
        let tensors = || Tensors {
            inputs: std::iter::once(strings(&[more as i64], 4 * more)).collect(),
            wanted: Vec::new().into(),
            is_raw: false,
        };
        assert!(contract.check(Prefix(""), tensors()).is_err());
        assert!(contract.check_all(Prefix(""), tensors()).is_ok());
    }
}
