//! How does a test load an ONNX graph whose configuration says only which file it is?

use std::path::Path;
use std::sync::Arc;

use nerite_config::ModelConfig;
use nerite_request::Status;

use super::context;
use crate::{Instance, InstanceSpec, LoadContext, Runtime};

/// A context for the graph `{name}.onnx` in `folder`. Its configuration has to be completed from the graph. Its inputs and outputs have no batch
/// dimension, unless the configuration is given one.
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

/// An instance of the model, whose configuration is completed first.
pub fn completed_instance(runtime: &dyn Runtime, context: LoadContext) -> Result<Box<dyn Instance>, Status> {
    runtime.load(&completed(runtime, context)?)?.instance(&InstanceSpec::default())
}
