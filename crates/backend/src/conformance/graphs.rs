//! How does a test load an ONNX graph whose configuration names only the file?

use std::path::Path;
use std::sync::Arc;

use nerite_config::ModelConfig;
use nerite_request::Status;

use super::context;
use crate::{Instance, InstanceSpec, LoadContext, Runtime};

/// A context for the graph `{name}.onnx` in `folder`. The configuration must still be completed from the graph. Inputs and outputs have no batch
/// dimension, unless the caller sets one in the configuration.
pub fn graph_context(folder: &Path, name: &str) -> LoadContext {
    let config = ModelConfig {
        name: name.to_owned(),
        backend: "onnxruntime".to_owned(),
        default_model_filename: format!("{name}.onnx"),
        ..ModelConfig::default()
    };
    let mut context = context(folder, config);
    context.version_dir.clone_from(&context.model_dir);
    context.settings.insert("default-max-batch-size".to_owned(), "0".to_owned());
    context
}

/// The context, with its configuration completed by `runtime`.
pub fn completed(runtime: &dyn Runtime, context: LoadContext) -> Result<LoadContext, Status> {
    Ok(LoadContext { config: Arc::new(runtime.complete(&context)?), ..context })
}

/// Completes the configuration, loads the model and makes an instance of it.
pub fn completed_instance(runtime: &dyn Runtime, context: LoadContext) -> Result<Box<dyn Instance>, Status> {
    runtime.load(&completed(runtime, context)?)?.instance(&InstanceSpec::default())
}
