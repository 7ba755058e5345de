//! How does the server send a child its model's directory and configuration?

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_backend::{LoadContext, LoadStop, ModelFiles, Models};
use nerite_config::{from_json, to_json};
use nerite_request::Status;
use serde_json::{Value, json};

/// The context as JSON.
pub(crate) fn to_value(context: &LoadContext) -> Result<Value, Status> {
    let config: Value = serde_json::from_str(&to_json(&context.config))
        .map_err(|error| Status::internal(format!("the configuration of model '{}': {error}", context.model)))?;
    Ok(json!({
        "model": context.model,
        "version": context.version,
        "model_dir": absolute(&context.model_dir)?,
        "version_dir": absolute(&context.version_dir)?,
        "config": config,
        "settings": context.settings,
        "host_policies": context.host_policies,
        "cores": context.cores,
        "instances": context.instances,
    }))
}

/// The context from JSON.
pub(crate) fn from_value(value: &Value) -> Result<LoadContext, Status> {
    let wrong = |what: &str| Status::internal(format!("the server told no {what} of the model"));
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| wrong(key));
    let count = |key: &str| value.get(key).and_then(Value::as_u64).ok_or_else(|| wrong(key));
    let settings = value.get("settings").and_then(Value::as_object).ok_or_else(|| wrong("settings"))?;
    let settings: BTreeMap<String, String> =
        settings.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let policies = value.get("host_policies").cloned().ok_or_else(|| wrong("host policies"))?;
    let host_policies = serde_json::from_value(policies).map_err(|_| wrong("host policies"))?;
    let config = value.get("config").ok_or_else(|| wrong("config"))?;
    let config = from_json(&config.to_string()).map_err(|error| Status::internal(error.to_string()))?;
    Ok(LoadContext {
        model: text("model")?,
        version: value.get("version").and_then(Value::as_i64).ok_or_else(|| wrong("version"))?,
        model_dir: PathBuf::from(text("model_dir")?),
        version_dir: PathBuf::from(text("version_dir")?),
        config: Arc::new(config),
        settings,
        host_policies,
        cores: count("cores")? as usize,
        instances: count("instances")? as usize,
        models: Models::none(),
        files: ModelFiles::default(),
        is_sent: false,
        stop: LoadStop::default(),
    })
}

fn absolute(path: &Path) -> Result<String, Status> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Status::unsupported(format!(
            "the path '{}' is not UTF-8, which isolated models need; rename it",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::ffi::OsStrExt;

    use nerite_backend::conformance::context;

    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let text = "name: 'm' backend: 'onnxruntime' max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: [ -1, 3 ] }
            output { name: 'y' data_type: TYPE_STRING dims: [ 2 ] reshape { shape: [ ] } } instance_group { count: 2 kind: KIND_CPU }
            parameters { key: 'isolated' value { string_value: 'true' } } optimization { graph { level: -1 } }
            dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 18446744073709551615 }
            version_policy { specific { versions: [ 1, 9223372036854775807 ] } }
            model_warmup { name: 'w' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }
            model_operations { op_library_filename: 'a.so' } cc_model_filenames { key: 'a' value: 'b' }";
        let config = nerite_config::parse_text("m/config.pbtxt", text.as_bytes()).unwrap();
        let mut before = context(Path::new("/models/ä \"m\""), config);
        before.settings.insert("default-max-batch-size".into(), "4".into());
        before.cores = 3;
        let after = from_value(&to_value(&before).unwrap()).unwrap();
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        assert!(from_value(&json!({ "model": "m" })).is_err());
        before.model_dir = PathBuf::from(std::ffi::OsStr::from_bytes(b"/\xff"));
        assert!(
            to_value(&before).unwrap_err().message.ends_with("is not UTF-8, which isolated models need; rename it")
        );
    }
}
