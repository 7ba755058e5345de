//! What do other crates need from a configuration?

use nerite_tensor::{DataType, Name};

use crate::datatype::tensor_data_type;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_instance_group::Kind;
use crate::proto::{
    ModelDynamicBatching, ModelEnsembling, ModelInput, ModelInstanceGroup, ModelOutput, ModelSequenceBatching,
    ModelTensorReshape,
};
use crate::{ModelConfig, VersionPolicy};

/// An input or output, for clients and backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: Name,
    /// Its datatype. `None` if the configuration does not set it yet.
    pub data_type: Option<DataType>,
    /// The shape that clients send, without the batch dimension. -1 means any size.
    pub dims: Vec<i64>,
    /// The shape that the model gets instead of `dims`, also without the batch dimension.
    pub reshape: Option<Vec<i64>>,
    /// Whether a request may omit it. Inputs only.
    pub optional: bool,
    /// Whether requests of different shapes may share a batch. Inputs only.
    pub ragged: bool,
    /// The file with labels for classification. Empty for none. Outputs only.
    pub label_filename: String,
}

impl TensorSpec {
    /// The shape in the model's metadata: `dims`, after -1 if the model batches.
    pub fn shape(&self, batching: bool) -> Vec<i64> {
        batching.then_some(-1).into_iter().chain(self.dims.iter().copied()).collect()
    }

    /// The shape of one item that the model itself expects.
    pub fn model_dims(&self) -> &[i64] {
        self.reshape.as_deref().unwrap_or(&self.dims)
    }
}

impl From<&ModelInput> for TensorSpec {
    fn from(input: &ModelInput) -> Self {
        Self {
            name: input.name.as_str().into(),
            data_type: tensor_data_type(input.data_type),
            dims: input.dims.clone(),
            reshape: shape_of(input.reshape.as_ref()),
            optional: input.optional,
            ragged: input.allow_ragged_batch,
            label_filename: String::new(),
        }
    }
}

impl From<&ModelOutput> for TensorSpec {
    fn from(output: &ModelOutput) -> Self {
        Self {
            name: output.name.as_str().into(),
            data_type: tensor_data_type(output.data_type),
            dims: output.dims.clone(),
            reshape: shape_of(output.reshape.as_ref()),
            optional: false,
            ragged: false,
            label_filename: output.label_filename.clone(),
        }
    }
}

fn shape_of(reshape: Option<&ModelTensorReshape>) -> Option<Vec<i64>> {
    reshape.map(|reshape| reshape.shape.clone())
}

impl ModelConfig {
    /// The instance group of the instance with this name. The groups of the configuration must have names already.
    pub fn group_of(&self, instance: &str) -> Option<&ModelInstanceGroup> {
        let is_of = |rest: &str| rest.strip_prefix('_').is_some_and(|number| number.parse::<u32>().is_ok());
        self.instance_group.iter().find(|group| instance.strip_prefix(&group.name).is_some_and(is_of))
    }

    /// The host policy of the instance with this name, on this GPU or on the host.
    pub fn host_policy(&self, instance: &str, device: Option<u32>) -> String {
        let group = self.group_of(instance);
        match (group.map(|group| group.host_policy.as_str()).unwrap_or_default(), device) {
            ("", Some(device)) => format!("gpu_{device}"),
            ("", None) if group.is_some_and(|group| group.kind() == Kind::Model) => "model".to_owned(),
            ("", None) => "cpu".to_owned(),
            (named, _) => named.to_owned(),
        }
    }

    /// The model's backend. Empty for an ensemble.
    pub fn backend_name(&self) -> &str {
        &self.backend
    }

    /// The platform in the model's metadata. If it is not set, the backend.
    pub fn platform(&self) -> &str {
        if self.platform.is_empty() { &self.backend } else { &self.platform }
    }

    /// The inputs, in the order of the configuration.
    pub fn inputs(&self) -> Vec<TensorSpec> {
        self.input.iter().map(TensorSpec::from).collect()
    }

    /// The outputs, in the order of the configuration.
    pub fn outputs(&self) -> Vec<TensorSpec> {
        self.output.iter().map(TensorSpec::from).collect()
    }

    /// Whether its tensors have a batch dimension.
    pub fn batches(&self) -> bool {
        self.max_batch_size > 0
    }

    /// Whether a request may have any number of responses.
    pub fn decoupled(&self) -> bool {
        self.model_transaction_policy.is_some_and(|policy| policy.decoupled)
    }

    /// Whether responses may come from the cache.
    pub fn caches_responses(&self) -> bool {
        self.response_cache.is_some_and(|cache| cache.enable)
    }

    /// A parameter for the backend, by its key.
    pub fn parameter(&self, key: &str) -> Option<&str> {
        self.parameters.get(key).map(|parameter| parameter.string_value.as_str())
    }

    /// Which versions to serve.
    pub fn versions(&self) -> VersionPolicy {
        VersionPolicy::of(self)
    }

    /// The settings of the dynamic batcher, if the model uses it.
    pub fn dynamic_batching(&self) -> Option<&ModelDynamicBatching> {
        match &self.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(dynamic)) => Some(dynamic),
            _ => None,
        }
    }

    /// The settings of the sequence batcher, if the model uses it.
    pub fn sequence_batching(&self) -> Option<&ModelSequenceBatching> {
        match &self.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(sequence)) => Some(sequence),
            _ => None,
        }
    }

    /// The steps of an ensemble, if it is one.
    pub fn ensemble_scheduling(&self) -> Option<&ModelEnsembling> {
        match &self.scheduling_choice {
            Some(SchedulingChoice::EnsembleScheduling(ensemble)) => Some(ensemble),
            _ => None,
        }
    }

    /// Whether it is composed of other models.
    pub fn is_ensemble(&self) -> bool {
        self.ensemble_scheduling().is_some()
    }
}

#[cfg(test)]
mod tests;
