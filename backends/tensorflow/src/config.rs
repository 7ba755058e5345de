//! What is in a model's configuration, and what does the graph add to it?

use nerite_backend_sdk::{DataType, Error};
use serde_json::{Map, Value, json};

use crate::limits::RUN_BYTES_MAX;

/// The relevant parts of a configuration.
#[derive(Debug)]
pub struct Config {
    json: Map<String, Value>,
    /// The most rows; 0 for a model without batches.
    pub max_batch_size: usize,
    /// Inputs that the configuration names.
    pub inputs: Vec<Tensor>,
    /// Outputs that the configuration names.
    pub outputs: Vec<Tensor>,
    /// The most bytes of a run.
    pub run_bytes_max: u64,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its datatype.
    pub datatype: DataType,
    /// Its dimensions without that of the rows. Variable ones are `None`.
    pub dims: Vec<Option<usize>>,
}

impl Config {
    /// Parses the server's JSON.
    pub fn parse(text: &str) -> Result<Config, Error> {
        let parsed =
            serde_json::from_str(text).map_err(|cause| Error::internal(format!("the configuration: {cause}")))?;
        let Value::Object(json) = parsed else { return Err(Error::internal("the configuration is no object")) };
        let platform = json.get("platform").and_then(Value::as_str).unwrap_or_default();
        if platform != "tensorflow_graphdef" {
            return Err(Error::unsupported(format!(
                "platform '{platform}' is not in this backend, which runs frozen graphs (tensorflow_graphdef, model.graphdef)"
            )));
        }
        let run_bytes_max =
            json.get("parameters").and_then(|all| all.get("run_bytes_max")?.get("string_value")?.as_str());
        let run_bytes_max = run_bytes_max.map_or(Ok(RUN_BYTES_MAX), str::parse);
        Ok(Config {
            max_batch_size: json.get("max_batch_size").and_then(number).unwrap_or(0).max(0) as usize,
            inputs: tensors(&json, "input")?,
            outputs: tensors(&json, "output")?,
            run_bytes_max: run_bytes_max.map_err(|_| Error::invalid("parameter run_bytes_max is no number"))?,
            json,
        })
    }

    /// The file of the graph.
    pub fn file(&self) -> Result<&str, Error> {
        let named = self.json.get("default_model_filename").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = named.unwrap_or("model.graphdef");
        if name.contains('/') {
            return Err(Error::invalid(format!("default_model_filename '{name}' is no name of a file")));
        }
        Ok(name)
    }

    /// The configuration, completed with the inputs and outputs of the graph.
    pub fn completed(&self, max_batch_size: usize, inputs: &[Tensor], outputs: &[Tensor]) -> String {
        let mut json = self.json.clone();
        let list =
            |tensors: &[Tensor]| tensors.iter().map(|tensor| entry(tensor, max_batch_size)).collect::<Vec<Value>>();
        json.insert("input".to_owned(), list(inputs).into());
        json.insert("output".to_owned(), list(outputs).into());
        json.insert("max_batch_size".to_owned(), max_batch_size.into());
        let is_scheduled =
            ["dynamic_batching", "sequence_batching", "ensemble_scheduling"].iter().any(|key| json.contains_key(*key));
        if max_batch_size > 1 && !is_scheduled {
            json.insert("dynamic_batching".to_owned(), json!({}));
        }
        Value::Object(json).to_string()
    }
}

fn entry(tensor: &Tensor, max_batch_size: usize) -> Value {
    let dims: Vec<i64> = tensor.dims.iter().map(|dim| dim.map_or(-1, |dim| dim as i64)).collect();
    let mut entry = json!({ "name": tensor.name, "data_type": tensor.datatype.config_name(), "dims": dims });
    if dims.is_empty() {
        // A configuration has no scalars. A tensor with one element replaces them. Behind a dimension for rows it can be reshaped.
        entry["dims"] = json!([1]);
        if max_batch_size > 0 {
            entry["reshape"] = json!({ "shape": [] });
        }
    }
    entry
}

/// A number. Some servers write it as a string.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

fn tensors(json: &Map<String, Value>, side: &str) -> Result<Vec<Tensor>, Error> {
    let list = json.get(side).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let one = |value: &Value| {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let name = text("name").to_owned();
        let datatype = DataType::of_config(text("data_type")).filter(|known| crate::plan::is_known(*known));
        let datatype = datatype.ok_or_else(|| {
            Error::unsupported(format!(
                "{side} '{name}' has the data_type {}, which this engine lacks",
                text("data_type")
            ))
        })?;
        let reshape = value.get("reshape").and_then(|reshape| reshape.get("shape"));
        let dims =
            reshape.or_else(|| value.get("dims")).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let dims = dims.iter().map(|dim| number(dim).and_then(|dim| usize::try_from(dim).ok())).collect();
        Ok(Tensor { name, datatype, dims })
    };
    list.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GRAPH: &str = r#""platform": "tensorflow_graphdef""#;

    #[track_caller]
    fn refused(text: &str, expect: &str) {
        let found = Config::parse(text).and_then(|config| config.file().map(str::to_owned)).unwrap_err();
        assert!(found.text().contains(expect), "{found}");
    }

    #[test]
    fn a_configuration_is_read_and_completed() {
        let text = format!(
            r#"{{ {GRAPH}, "max_batch_size": 8, "input": [{{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", 3]}}],
                "parameters": {{"run_bytes_max": {{"string_value": "100"}}}} }}"#
        );
        let config = Config::parse(&text).unwrap();
        let x = Tensor { name: "x".into(), datatype: DataType::Fp32, dims: vec![None, Some(3)] };
        assert_eq!((config.max_batch_size, config.run_bytes_max, config.file().unwrap()), (8, 100, "model.graphdef"));
        assert_eq!((&config.inputs, config.outputs.len()), (&vec![x.clone()], 0));
        let again = Config::parse(&config.completed(4, &[x.clone()], &[x.clone()])).unwrap();
        assert_eq!((again.inputs, again.outputs, again.max_batch_size), (vec![x.clone()], vec![x], 4));
    }

    #[test]
    fn invalid_configurations_are_refused() {
        refused("[]", "no object");
        refused(r#"{"platform": "tensorflow_savedmodel"}"#, "platform 'tensorflow_savedmodel' is not in this backend");
        refused(
            &format!(r#"{{ {GRAPH}, "input": [{{"name": "x", "data_type": "TYPE_BF16"}}] }}"#),
            "'x' has the data_type TYPE_BF16",
        );
        refused(&format!(r#"{{ {GRAPH}, "default_model_filename": "../x" }}"#), "'../x' is no name of a file");
        refused(&format!(r#"{{ {GRAPH}, "parameters": {{"run_bytes_max": {{"string_value": "x"}}}} }}"#), "no number");
    }
}
