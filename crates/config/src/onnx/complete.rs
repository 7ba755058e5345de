//! What does a graph add to an incomplete configuration?

use std::fmt;

use super::{GraphSignature, TensorSignature};
use crate::error::refuse;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::{ModelDynamicBatching, ModelInput, ModelOutput, ModelTensorReshape};
use crate::{ConfigError, ModelConfig};

/// A completed configuration, and notes for the operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// It must be normalised again, because it may have a scheduler now.
    pub config: ModelConfig,
    /// Notes for the log.
    pub notes: Vec<Note>,
}

/// A note on the completion. Its text is its `Display`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// Inputs and outputs were configured, so nothing was filled in. Information.
    Skipped {
        /// The model's name.
        model: String,
    },
    /// The batch size was not set and is filled in, so requests are batched now. A warning.
    BatchSizeFilled {
        /// The model's name.
        model: String,
        /// The size that was filled in.
        max_batch_size: i32,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skipped { model } => write!(
                f,
                "skipping model configuration auto-complete for '{model}': inputs and outputs \
                 already specified"
            ),
            Self::BatchSizeFilled { model, max_batch_size } => write!(
                f,
                "autofilled max_batch_size to {max_batch_size} for model '{model}' since its \
                 graph supports batching and the configuration specifies no max_batch_size; \
                 specify it to allow larger batches"
            ),
        }
    }
}

/// Whether anything must be completed, so that the graph must be read.
pub fn needs_graph(config: &ModelConfig) -> bool {
    config.output.is_empty() || (config.input.is_empty() && config.batch_input.is_empty())
}

/// Fills in the inputs and outputs from the graph where the configuration has none, and decides on batching. A list with any entry is not changed.
/// `default_max_batch_size` is the backend's setting `default-max-batch-size`.
pub fn complete_onnx(
    mut config: ModelConfig,
    graph: &GraphSignature,
    default_max_batch_size: i32,
) -> Result<Completion, ConfigError> {
    let mut notes = Vec::new();
    if !needs_graph(&config) {
        notes.push(Note::Skipped { model: config.name.clone() });
        return Ok(Completion { config, notes });
    }
    let had_inputs = !config.input.is_empty() || !config.batch_input.is_empty();
    notes.extend(decide_batching(&mut config, graph, default_max_batch_size)?);
    let batching = config.batches();
    if !had_inputs {
        config.input = graph.inputs.iter().map(|tensor| input(tensor, batching)).collect();
    }
    if config.output.is_empty() {
        config.output = graph.outputs.iter().map(|tensor| output(tensor, batching)).collect();
    }
    Ok(Completion { config, notes })
}

/// A graph can batch if the first dimension of all its inputs and outputs is variable.
fn decide_batching(
    config: &mut ModelConfig,
    graph: &GraphSignature,
    default_max_batch_size: i32,
) -> Result<Option<Note>, ConfigError> {
    let can_batch = graph.inputs.iter().chain(&graph.outputs).all(|tensor| tensor.dims.first() == Some(&-1));
    if !can_batch {
        if config.max_batch_size != 0 {
            refuse!(
                "autofill failed for model '{}': model does not support batching while non-zero \
                 max_batch_size is specified",
                config.name
            );
        }
        return Ok(None);
    }
    let mut note = None;
    if config.max_batch_size == 0 {
        config.max_batch_size = default_max_batch_size.max(0);
        note = Some(Note::BatchSizeFilled { model: config.name.clone(), max_batch_size: config.max_batch_size });
    }
    let has_batcher = config.dynamic_batching().is_some() || config.sequence_batching().is_some();
    if config.max_batch_size > 1 && !has_batcher {
        let dynamic = SchedulingChoice::DynamicBatching(ModelDynamicBatching::default());
        config.scheduling_choice.get_or_insert(dynamic);
    }
    Ok(note)
}

fn input(tensor: &TensorSignature, batching: bool) -> ModelInput {
    let (dims, reshape) = dims(tensor, batching);
    ModelInput { name: tensor.name.clone(), data_type: tensor.data_type as i32, dims, reshape, ..Default::default() }
}

fn output(tensor: &TensorSignature, batching: bool) -> ModelOutput {
    let (dims, reshape) = dims(tensor, batching);
    ModelOutput { name: tensor.name.clone(), data_type: tensor.data_type as i32, dims, reshape, ..Default::default() }
}

/// The dimensions of one item. A configuration has no scalars: `[1]` is used instead. If requests batch, a reshape gives the model's own shape.
fn dims(tensor: &TensorSignature, batching: bool) -> (Vec<i64>, Option<ModelTensorReshape>) {
    let dims: Vec<i64> = tensor.dims.iter().copied().skip(usize::from(batching)).collect();
    if dims.is_empty() { (vec![1], batching.then(ModelTensorReshape::default)) } else { (dims, None) }
}
