//! Which tensor does the data of a request become if the request has no name, datatype and shape for it?

use nerite_tensor::{DataType, element_count};

use crate::TensorSpec;

/// The model's only input for `bytes` bytes of data, with its datatype and its shape: a batch of one, and the one free dimension worked out from the
/// size. `found` is the number of inputs of the request. The error is Triton's text.
pub fn raw_input<'s>(
    model: &str,
    batch_max: i32,
    inputs: &'s [TensorSpec],
    found: usize,
    bytes: usize,
) -> Result<(&'s TensorSpec, DataType, Vec<i64>), String> {
    let ([spec], 1) = (inputs, found) else {
        return Err(format!(
            "Raw request must only have 1 input (found {found}) to be deduced but got {} inputs in '{model}' model configuration",
            inputs.len()
        ));
    };
    let datatype = spec.data_type.unwrap_or(DataType::Bytes);
    let batch = (batch_max > 0).then_some(1);
    if datatype == DataType::Bytes && spec.dims[..] != [1] {
        return Err(format!("For BYTE datatype raw input '{}', the model must have input shape [1]", spec.name));
    }
    if spec.dims.iter().filter(|dim| **dim == -1).count() > 1 {
        return Err(format!(
            "The shape of the raw input '{}' can not be deduced because there are more than one variable-sized dimension",
            spec.name
        ));
    }
    let fixed: Vec<i64> = spec.dims.iter().copied().filter(|dim| *dim != -1).collect();
    let fixed = element_count(&fixed).unwrap_or(1).max(1) as usize;
    let free = (bytes / fixed.saturating_mul(datatype.size().unwrap_or(1))) as i64;
    let dims = spec.dims.iter().map(|dim| if *dim == -1 { free } else { *dim });
    Ok((spec, datatype, batch.into_iter().chain(dims).collect()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(inputs: &[(&str, &[i64])], batch_max: i32, bytes: usize, expected: Result<(&str, &[i64]), &str>) {
        let text: Vec<_> = inputs
            .iter()
            .map(|(datatype, dims)| format!("{{ name: 'x' data_type: {datatype} dims: {dims:?} }}"))
            .collect();
        let config = crate::parse_text("", format!("input [{}]", text.join(",")).as_bytes()).unwrap();
        let (inputs, datatype) =
            (config.inputs(), expected.map(|(datatype, shape)| (datatype.to_owned(), shape.to_vec())));
        let found = raw_input("m", batch_max, &inputs, 1, bytes);
        let found = found.map(|(_, datatype, shape)| (datatype.to_string(), shape));
        assert_eq!(found, datatype.map_err(str::to_owned));
    }

    #[test]
    fn the_free_dimension_follows_from_the_size() {
        check(&[("TYPE_FP32", &[-1])], 0, 16, Ok(("FP32", &[4])));
        check(&[("TYPE_FP32", &[-1])], 8, 16, Ok(("FP32", &[1, 4])));
        check(&[("TYPE_INT8", &[2, -1, 3])], 0, 30, Ok(("INT8", &[2, 5, 3])));
        check(&[("TYPE_FP32", &[2, 2])], 0, 12, Ok(("FP32", &[2, 2])));
        check(&[("TYPE_FP32", &[0, -1])], 0, 12, Ok(("FP32", &[0, 3])));
        check(&[("TYPE_INT64", &[i64::MAX, i64::MAX, -1])], 0, 12, Ok(("INT64", &[i64::MAX, i64::MAX, 1])));
        check(&[("TYPE_STRING", &[1])], 4, 5, Ok(("BYTES", &[1, 1])));
    }

    #[test]
    fn what_cannot_be_deduced_is_refused() {
        let many = "The shape of the raw input 'x' can not be deduced because there are more than one variable-sized dimension";
        check(&[("TYPE_FP32", &[-1, -1])], 0, 16, Err(many));
        let text = "For BYTE datatype raw input 'x', the model must have input shape [1]";
        check(&[("TYPE_STRING", &[-1])], 0, 5, Err(text));
        let two =
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration";
        check(&[("TYPE_FP32", &[1]), ("TYPE_FP32", &[1])], 0, 4, Err(two));
    }
}
