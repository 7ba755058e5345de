//! Do a configuration and its graph agree?

use super::{GraphSignature, TensorSignature};
use crate::error::refuse;
use crate::proto::model_sequence_batching::control;
use crate::proto::{DataType, ModelInput, ModelOutput};
use crate::shape::shown;
use crate::{ConfigError, ModelConfig, tensor_data_type};

/// Checks, before instances start, that the graph has the inputs and outputs of the configuration.
pub fn check_onnx(config: &ModelConfig, graph: &GraphSignature) -> Result<(), ConfigError> {
    check_controls(config, graph)?;
    let expected = input_count(config);
    if graph.inputs.len() != expected {
        refuse!(
            "unable to load model '{}', configuration expects {expected} inputs, model provides {}",
            config.name,
            graph.inputs.len()
        );
    }
    for input in &config.input {
        check_input(config, input, graph)?;
    }
    for output in &config.output {
        check_output(config, output, &graph.outputs)?;
    }
    Ok(())
}

/// Refuses an input that the model does not have. `allowed` is sorted.
pub fn check_input_allowed(input: &str, allowed: &[&str]) -> Result<(), ConfigError> {
    if !allowed.contains(&input) {
        refuse!("unexpected inference input '{input}', allowed inputs are: {}", allowed.join(", "));
    }
    Ok(())
}

/// Refuses an output that the model does not have. `allowed` is sorted.
pub fn check_output_allowed(output: &str, allowed: &[&str]) -> Result<(), ConfigError> {
    if !allowed.contains(&output) {
        refuse!("unexpected inference output '{output}', allowed outputs are: {}", allowed.join(", "));
    }
    Ok(())
}

/// The number of inputs without an initialiser that the graph must have: those of requests, and those that the server makes itself.
fn input_count(config: &ModelConfig) -> usize {
    let of_batches: usize = config.batch_input.iter().map(|input| input.target_name.len()).sum();
    let of_sequences = config.sequence_batching().map_or(0, |sequence| {
        let controls: usize = sequence.control_input.iter().map(|input| input.control.len()).sum();
        controls + sequence.state.len()
    });
    config.input.iter().filter(|input| !input.optional).count() + of_batches + of_sequences
}

/// Checks that the control tensors of a sequence batcher have the shape `[1]` and the type that the batcher writes.
fn check_controls(config: &ModelConfig, graph: &GraphSignature) -> Result<(), ConfigError> {
    let Some(sequence) = config.sequence_batching() else { return Ok(()) };
    for input in &sequence.control_input {
        for control in &input.control {
            let Some(tensor) = graph.inputs.iter().find(|tensor| tensor.name == input.name) else {
                return Err(ConfigError::Internal {
                    text: format!(
                        "configuration specified sequence control '{}', but model does not \
                         provide that input",
                        input.name
                    ),
                });
            };
            let dims = tensor.dims.get(usize::from(config.batches())..).unwrap_or_default();
            if dims != [1] {
                refuse!(
                    "unable to load model '{}', sequence control '{}' in model has dims {} but \
                     dims [1] is expected",
                    config.name,
                    input.name,
                    shown(dims)
                );
            }
            let specified = match control.kind() {
                control::Kind::ControlSequenceCorrid => control.data_type(),
                _ if !control.int32_false_true.is_empty() => DataType::TypeInt32,
                _ if !control.fp32_false_true.is_empty() => DataType::TypeFp32,
                _ => DataType::TypeBool,
            };
            if specified != tensor.data_type {
                refuse!(
                    "unable to load model '{}', sequence control '{}', the model expects \
                     data-type {} but the model configuration specifies data-type {}",
                    config.name,
                    input.name,
                    onnx_name(tensor.data_type),
                    specified.as_str_name()
                );
            }
        }
    }
    Ok(())
}

fn check_input(config: &ModelConfig, input: &ModelInput, graph: &GraphSignature) -> Result<(), ConfigError> {
    let model = &config.name;
    let name = &input.name;
    if input.optional && config.max_batch_size != 0 {
        refuse!(
            "unable to load model '{model}', optional input '{name}' is not supported for models \
             that support batching"
        );
    }
    let all = || graph.inputs.iter().chain(&graph.initializers);
    let Some(tensor) = all().find(|tensor| tensor.name == *name) else {
        return check_input_allowed(name, &names(all()));
    };
    check_type(config, "input", name, input.data_type, tensor)?;
    let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
    if input.allow_ragged_batch {
        if input.optional {
            refuse!(
                "unable to load model '{model}', configuration expects model provides input with \
                 shape [-1] for ragged input '{name}', which is not supported for optional input"
            );
        }
        if tensor.dims != [-1] {
            refuse!(
                // Triton's text has two spaces here.
                "unable to load model '{model}', configuration expects model provides input with \
                 shape [-1]  for ragged input '{name}', model provides {}",
                shown(&tensor.dims)
            );
        }
        return Ok(());
    }
    check_dims(config, tensor, dims, |graph, config| graph == -1 || graph == config)
}

fn check_output(config: &ModelConfig, output: &ModelOutput, graph: &[TensorSignature]) -> Result<(), ConfigError> {
    let Some(tensor) = graph.iter().find(|tensor| tensor.name == output.name) else {
        return check_output_allowed(&output.name, &names(graph.iter()));
    };
    check_type(config, "output", &output.name, output.data_type, tensor)?;
    // The server divides a scattered output, so its shape differs from the graph's.
    if config.batch_output.iter().any(|batch| batch.target_name.contains(&output.name)) {
        return Ok(());
    }
    let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
    check_dims(config, tensor, dims, |graph, config| graph == config)
}

fn check_type(
    config: &ModelConfig,
    direction: &str,
    name: &str,
    number: i32,
    tensor: &TensorSignature,
) -> Result<(), ConfigError> {
    let specified = DataType::try_from(number).unwrap_or_default();
    if specified == DataType::TypeInvalid {
        return Err(ConfigError::Internal {
            text: format!(
                "unsupported datatype {} for {direction} '{name}' for model '{}'",
                specified.as_str_name(),
                config.name
            ),
        });
    }
    if specified != tensor.data_type {
        refuse!(
            "unable to load model '{}', configuration expects datatype {} for {direction} \
             '{name}', model provides TYPE_{}",
            config.name,
            specified.as_str_name(),
            // Triton's text has the wire name here, so TYPE_STRING is TYPE_BYTES.
            tensor_data_type(tensor.data_type as i32).map_or("<invalid>", nerite_tensor::DataType::name)
        );
    }
    Ok(())
}

/// Compares shapes. `same` compares a dimension of the graph with one of the configuration.
fn check_dims(
    config: &ModelConfig,
    tensor: &TensorSignature,
    dims: &[i64],
    same: impl Fn(i64, i64) -> bool,
) -> Result<(), ConfigError> {
    let (model, name) = (&config.name, &tensor.name);
    let shape = &tensor.dims;
    if shape.is_empty() {
        if dims.iter().any(|&dim| dim != 1) {
            refuse!(
                "unable to load model '{model}', scalar tensor '{name}', should only provide 1 \
                 in the model configuration when the model doesn't support batching. Model \
                 configuration provided: {}.",
                shown(dims)
            );
        }
        return Ok(());
    }
    if config.batches() && shape.first() != Some(&-1) {
        refuse!(
            "model '{model}', tensor '{name}': for the model to support batching the shape should \
             have at least 1 dimension and the first dimension must be -1; but shape expected by \
             the model is {}",
            shown(shape)
        );
    }
    let full: Vec<i64> = config.batches().then_some(-1).into_iter().chain(dims.iter().copied()).collect();
    let agree = shape.len() == full.len() && shape.iter().zip(&full).all(|(&g, &c)| same(g, c));
    if agree {
        return Ok(());
    }
    let how = if config.batches() {
        format!(
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit \
             tensor shape, making complete shape {})",
            shown(&full)
        )
    } else {
        format!("(shape {})", shown(&full))
    };
    // The numbers of dimensions say nothing if they are equal.
    let differing = shape.iter().zip(&full).position(|(&g, &c)| !same(g, c)).filter(|_| shape.len() == full.len());
    let differing = differing.map_or(String::new(), |at| {
        format!("; dimension {at} is {} in the model and {} in the configuration", shape[at], full[at])
    });
    refuse!(
        "model '{model}', tensor '{name}': the model expects {} dimensions (shape {}) but the \
         model configuration specifies {} dimensions {how}{differing}",
        shape.len(),
        shown(shape),
        full.len()
    );
}

fn names<'a>(tensors: impl Iterator<Item = &'a TensorSignature>) -> Vec<&'a str> {
    let mut names: Vec<&str> = tensors.map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// ONNX's name of a datatype.
fn onnx_name(data_type: DataType) -> &'static str {
    match data_type {
        DataType::TypeInvalid => "UNDEFINED",
        DataType::TypeFp32 => "FLOAT",
        DataType::TypeFp64 => "DOUBLE",
        DataType::TypeFp16 => "FLOAT16",
        DataType::TypeBf16 => "BFLOAT16",
        other => other.as_str_name().trim_start_matches("TYPE_"),
    }
}
