//! Are the inputs and outputs valid?

use std::collections::BTreeSet;

use crate::proto::model_input::Format;
use crate::proto::{BatchInput, BatchOutput, DataType, ModelTensorReshape, batch_input};
use crate::{ConfigError, ModelConfig, Padding, tensor_data_type};

const TENSORRT: &str = "tensorrt_plan";
const ANY_SIZE: i64 = -1;

/// The common fields of an input or output.
struct Tensor<'a> {
    direction: &'static str,
    name: &'a str,
    data_type: i32,
    dims: &'a [i64],
    reshape: Option<&'a ModelTensorReshape>,
    is_shape_tensor: bool,
    is_non_linear: bool,
    /// Whether it is an image. It must have three dimensions then, because channels are first or last.
    is_image: bool,
}

/// Checks inputs, outputs and the tensors that are made for each batch. Triton does so before loading if nothing is to be completed, otherwise after
/// completion.
pub fn validate_tensors(config: &ModelConfig) -> Result<(), ConfigError> {
    let inputs = config.input.iter().map(|input| Tensor {
        direction: "input",
        name: &input.name,
        data_type: input.data_type,
        dims: &input.dims,
        reshape: input.reshape.as_ref(),
        is_shape_tensor: input.is_shape_tensor,
        is_non_linear: input.is_non_linear_format_io,
        is_image: matches!(input.format(), Format::Nhwc | Format::Nchw),
    });
    let outputs = config.output.iter().map(|output| Tensor {
        direction: "output",
        name: &output.name,
        data_type: output.data_type,
        dims: &output.dims,
        reshape: output.reshape.as_ref(),
        is_shape_tensor: output.is_shape_tensor,
        is_non_linear: output.is_non_linear_format_io,
        is_image: false,
    });
    inputs
        .chain(outputs)
        .try_for_each(|tensor| check_tensor(config, &tensor))
        .and_then(|()| check_batch_tensors(config))
        .map_err(|text| ConfigError::invalid(format!("{text} for {}", config.name)))?;
    Padding::of(config).map(drop)
}

/// The error is a text without the model's name.
type Checked = Result<(), String>;

fn check_tensor(config: &ModelConfig, tensor: &Tensor<'_>) -> Checked {
    check_shape(tensor, config.max_batch_size)?;
    if tensor.is_image && tensor.dims.len() != 3 {
        return Err("model input NHWC/NCHW require 3 dims".to_owned());
    }
    let on_tensorrt = config.platform == TENSORRT;
    if tensor.is_shape_tensor && !on_tensorrt {
        return Err("shape tensors are only supported for TensorRT platform".to_owned());
    }
    if tensor.is_non_linear && !on_tensorrt {
        return Err("Non-linear IO format is only supported for the TensorRT platform".to_owned());
    }
    if tensor.is_non_linear && tensor.dims.len() != 3 {
        return Err(format!("Non-linear IO format {} requires 3 dims", tensor.direction));
    }
    Ok(())
}

fn check_shape(tensor: &Tensor<'_>, max_batch_size: i32) -> Checked {
    if tensor.name.is_empty() {
        return Err(format!("model {} must specify 'name'", tensor.direction));
    }
    let fault = |text: &str| Err(format!("model {} '{}' {text}", tensor.direction, tensor.name));
    // A number that is not in the enumeration counts as unset.
    if tensor_data_type(tensor.data_type).is_none() {
        return fault("must specify 'data_type'");
    }
    if tensor.dims.is_empty() {
        return fault("must specify 'dims'");
    }
    let reshape = tensor.reshape.map(|reshape| &reshape.shape[..]);
    if reshape == Some(&[]) && max_batch_size == 0 {
        return fault("cannot have empty reshape for non-batching model as scalar tensors are not supported");
    }
    let impossible = |dim: &i64| *dim < 1 && *dim != ANY_SIZE;
    if tensor.dims.iter().any(impossible) {
        return fault("dimension must be integer >= 1, or -1 to indicate a variable-size dimension");
    }
    let Some(reshape) = reshape else { return Ok(()) };
    if reshape.iter().any(impossible) {
        return fault("reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension");
    }
    let (from, to) = (runs(tensor.dims), runs(reshape));
    let (Some(from), Some(to)) = (from, to) else {
        return fault("has an element count that exceeds 9223372036854775807");
    };
    match (from.len(), to.len()) {
        (1, 1) if from == to => Ok(()),
        (one, other) if one != other && one > 1 && other > 1 => {
            fault("has different number of variable-size dimensions for dims and reshape")
        }
        _ if from == to => Ok(()),
        _ => fault("has different size for dims and reshape"),
    }
}

/// The element counts of the fixed dimensions between variable ones, such as `[8, 6]` for `[2, 4, -1, 6]`. `None` if a count overflows. Without
/// dimensions there is one element, so an empty reshape equals `[1]`.
fn runs(dims: &[i64]) -> Option<Vec<i64>> {
    dims.split(|&dim| dim == ANY_SIZE)
        .map(|run| run.iter().try_fold(1_i64, |count, &dim| count.checked_mul(dim)))
        .collect()
}

fn check_batch_tensors(config: &ModelConfig) -> Checked {
    let inputs: BTreeSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
    let outputs: BTreeSet<&str> = config.output.iter().map(|output| output.name.as_str()).collect();
    for batch in &config.batch_input {
        check_batch_input(batch, &inputs)?;
    }
    for batch in &config.batch_output {
        check_batch_output(batch, &inputs, &outputs)?;
    }
    Ok(())
}

fn check_batch_input(batch: &BatchInput, inputs: &BTreeSet<&str>) -> Checked {
    let Ok(kind) = batch_input::Kind::try_from(batch.kind) else {
        return Err(format!("unknown batch input kind '{}'", batch.kind));
    };
    check_sources("batch input", kind.as_str_name(), &batch.source_input)?;
    if !matches!(batch.data_type(), DataType::TypeInt32 | DataType::TypeFp32) {
        return Err("batch input data type must be TYPE_INT32 or TYPE_FP32".to_owned());
    }
    check_known_sources(&batch.source_input, inputs)
}

fn check_batch_output(batch: &BatchOutput, inputs: &BTreeSet<&str>, outputs: &BTreeSet<&str>) -> Checked {
    let Ok(kind) = crate::proto::batch_output::Kind::try_from(batch.kind) else {
        return Err(format!("unknown batch output kind '{}'", batch.kind));
    };
    check_sources("batch output", kind.as_str_name(), &batch.source_input)?;
    check_known_sources(&batch.source_input, inputs)?;
    let mut seen = BTreeSet::new();
    for target in &batch.target_name {
        if !outputs.contains(target.as_str()) {
            return Err(format!("unknown target output name '{target}'"));
        }
        if !seen.insert(target) {
            return Err(format!("target output name '{target}' can only be specified once"));
        }
    }
    Ok(())
}

fn check_sources(what: &str, kind: &str, sources: &[String]) -> Checked {
    match sources.len() {
        1 => Ok(()),
        count => Err(format!("{what} kind '{kind}' expects 1 source input, got {count}")),
    }
}

fn check_known_sources(sources: &[String], inputs: &BTreeSet<&str>) -> Checked {
    match sources.iter().find(|source| !inputs.contains(source.as_str())) {
        Some(source) => Err(format!("unknown source input name '{source}'")),
        None => Ok(()),
    }
}
