//! Which tensors does the model have, and what kind of model is it?

use nerite_client::DataType;
use nerite_client::report::TensorReport;
use nerite_config::proto::model_config::SchedulingChoice;
use serde_json::Value;

use crate::caller::Caller;

/// What a load generator has to know of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) name: String,
    /// The version that is measured.
    pub(crate) version: String,
    pub(crate) inputs: Vec<TensorSpec>,
    pub(crate) outputs: Vec<TensorSpec>,
    /// Whether tensors have a dimension of the batch in front.
    pub(crate) is_batched: bool,
    pub(crate) is_sequence: bool,
    pub(crate) is_decoupled: bool,
    pub(crate) has_cache: bool,
    /// The models of an ensemble's steps, with their versions; empty: the latest.
    pub(crate) steps: Vec<(String, String)>,
}

/// An input or output.
#[derive(Clone, Debug)]
pub(crate) struct TensorSpec {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    /// Without the dimension of the batch. -1: variable.
    pub(crate) shape: Vec<i64>,
    pub(crate) is_optional: bool,
}

/// What only the configuration says.
#[derive(Debug, Default, PartialEq)]
struct Config {
    max_batch_size: i64,
    is_sequence: bool,
    is_decoupled: bool,
    has_cache: bool,
    optional: Vec<String>,
    steps: Vec<(String, i64)>,
}

impl Model {
    /// Reads metadata and configuration of the model, and those of its steps.
    pub(crate) fn read(caller: &Caller, name: &str, version: &str) -> Result<Model, String> {
        let number = match version {
            "" => None,
            text => Some(text.parse().map_err(|_| format!("-x is a number, and is '{text}'"))?),
        };
        let report = caller.model_metadata(name, number)?;
        let config = caller.config(name, number)?;
        let is_batched = config.max_batch_size > 0;
        let specs = |tensors: &[TensorReport]| {
            tensors.iter().map(|tensor| TensorSpec::new(tensor, is_batched, &config.optional)).collect()
        };
        let latest = report.versions.iter().max().map(ToString::to_string).unwrap_or_default();
        let steps = config
            .steps
            .iter()
            .map(|(model, version)| (model.clone(), if *version > 0 { version.to_string() } else { String::new() }));
        Ok(Model {
            name: name.to_owned(),
            version: if version.is_empty() { latest } else { version.to_owned() },
            inputs: specs(&report.inputs),
            outputs: specs(&report.outputs),
            is_batched,
            is_sequence: config.is_sequence,
            is_decoupled: config.is_decoupled,
            has_cache: config.has_cache,
            steps: steps.collect(),
        })
    }

    pub(crate) fn input(&self, name: &str) -> Option<&TensorSpec> {
        self.inputs.iter().find(|input| input.name == name)
    }
}

impl TensorSpec {
    fn new(report: &TensorReport, is_batched: bool, optional: &[String]) -> TensorSpec {
        TensorSpec {
            name: report.name.clone(),
            datatype: report.datatype,
            shape: report.shape.iter().copied().skip(usize::from(is_batched)).collect(),
            is_optional: optional.contains(&report.name),
        }
    }
}

impl Caller {
    /// The configuration of the latest version, as the server completed it.
    pub(crate) fn config_json(&self, name: &str) -> Result<Value, String> {
        let Caller::Http(client) = self else { return Err("the configuration is read over HTTP: -i http".to_owned()) };
        let text = client.model_config(name, None).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| format!("the model's configuration: {error}"))
    }

    fn config(&self, name: &str, version: Option<u64>) -> Result<Config, String> {
        match self {
            Caller::Http(client) => {
                let text = client.model_config(name, version).map_err(|error| error.to_string())?;
                Ok(of_json(
                    &serde_json::from_str(&text).map_err(|error| format!("the model's configuration: {error}"))?,
                ))
            }
            Caller::Grpc(client) => {
                let answer = client.model_config(name, version).map_err(|error| error.to_string())?;
                let config = answer.config.unwrap_or_default();
                let (is_sequence, steps) = match config.scheduling_choice {
                    Some(SchedulingChoice::SequenceBatching(_)) => (true, Vec::new()),
                    Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
                        (false, ensemble.step.into_iter().map(|step| (step.model_name, step.model_version)).collect())
                    }
                    _ => (false, Vec::new()),
                };
                Ok(Config {
                    max_batch_size: config.max_batch_size.into(),
                    is_sequence,
                    is_decoupled: config.model_transaction_policy.is_some_and(|policy| policy.decoupled),
                    has_cache: config.response_cache.is_some_and(|cache| cache.enable),
                    optional: config.input.into_iter().filter(|input| input.optional).map(|input| input.name).collect(),
                    steps,
                })
            }
        }
    }
}

fn of_json(config: &Value) -> Config {
    let is_optional = |input: &&Value| input["optional"].as_bool().unwrap_or_default();
    let inputs = config["input"].as_array().into_iter().flatten();
    let steps = config["ensemble_scheduling"]["step"].as_array().into_iter().flatten();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    Config {
        max_batch_size: config["max_batch_size"].as_i64().unwrap_or_default(),
        is_sequence: config.get("sequence_batching").is_some(),
        is_decoupled: config["model_transaction_policy"]["decoupled"].as_bool().unwrap_or_default(),
        has_cache: config["response_cache"]["enable"].as_bool().unwrap_or_default(),
        optional: inputs.filter(is_optional).map(|input| text(input, "name")).collect(),
        steps: steps
            .map(|step| (text(step, "model_name"), step["model_version"].as_i64().unwrap_or_default()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_in_json_says_what_kind_of_model_it_is() {
        let config = serde_json::json!({
            "max_batch_size": 8, "sequence_batching": {}, "model_transaction_policy": {"decoupled": true},
            "response_cache": {"enable": true}, "input": [{"name": "A"}, {"name": "B", "optional": true}],
            "ensemble_scheduling": {"step": [{"model_name": "m", "model_version": -1}]},
        });
        let expect = Config {
            max_batch_size: 8,
            is_sequence: true,
            is_decoupled: true,
            has_cache: true,
            optional: vec!["B".to_owned()],
            steps: vec![("m".to_owned(), -1)],
        };
        assert_eq!(of_json(&config), expect);
        assert_eq!(of_json(&serde_json::json!({})), Config::default());
    }
}
