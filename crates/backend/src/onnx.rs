//! What do the runtimes for ONNX models share?
//!
//! Where the model file is. Which inputs and outputs its graph has. How graph and configuration complete and check each other. Which shape an output
//! will have before it is computed. Which inputs must not change while the model runs. Whether the inputs' shapes determine how long a run takes.

mod cost;
mod nodes;
mod ports;
mod untrusted_inputs;

use std::path::{Path, PathBuf};

use nerite_config::{ConfigError, ModelConfig, check_onnx, complete_onnx, needs_graph};
use nerite_memory::{Access, Buffer, Reason};
use nerite_request::{Code, Status};
use nerite_tensor::Tensor;

use crate::LoadContext;

pub use cost::cost_bound;
pub use nodes::{Node, Nodes};
pub use ports::{Dim, Port, Ports};
pub use untrusted_inputs::UntrustedInputs;

/// The backend's name in `config.pbtxt`.
pub const BACKEND: &str = "onnxruntime";
/// Triton's default of the setting `default-max-batch-size`.
const MAX_BATCH_SIZE_DEFAULT: i32 = 4;

/// The model's file: `default_model_filename` or `model.onnx`, or the file of that name in a directory of that name.
pub fn model_file(context: &LoadContext) -> Result<PathBuf, Status> {
    let named = context.config.default_model_filename.as_str();
    let path = context.version_dir.join(if named.is_empty() { "model.onnx" } else { named });
    let path = if path.is_dir() { path.join("model.onnx") } else { path };
    if !path.exists() {
        return Err(Status::unavailable(format!(
            "unable to find '{}' for model instance '{}_0_0'",
            path.display(),
            context.model
        )));
    }
    Ok(path)
}

/// Notes the files of constants beside a model's file. The engines open them on their own, and read or map each once.
pub fn watch_external(context: &LoadContext, model_file: &Path, nodes: &Nodes) {
    for file in &nodes.external_files {
        // If the file is missing, the engine's own error is better. A change is noticed at the end of the load.
        let _ = context.files.watch(&model_file.with_file_name(file));
    }
}

/// Completes the configuration from the graph. `ports` is called only if there is something to complete.
pub fn complete(
    context: &LoadContext,
    ports: impl FnOnce(&LoadContext) -> Result<Ports, Status>,
) -> Result<ModelConfig, Status> {
    let config = (*context.config).clone();
    if !needs_graph(&config) {
        return Ok(config);
    }
    let rows_max = match context.settings.get("default-max-batch-size") {
        Some(text) => text.trim().parse().map_err(|_| {
            Status::invalid(format!(
                "the setting default-max-batch-size of backend {BACKEND} is '{text}', not a number"
            ))
        })?,
        None => MAX_BATCH_SIZE_DEFAULT,
    };
    let graph = ports(context)?.signature();
    complete_onnx(config, &graph, rows_max).map(|done| done.config).map_err(|e| status(&e))
}

/// Checks the configuration against the graph, gives scalars the shapes that the configuration says, makes inputs of the initializers that it lists,
/// and puts all ports into its order. Returns the names of those initializers: a request may replace their values.
pub fn check(context: &LoadContext, ports: &mut Ports) -> Result<Vec<String>, Status> {
    check_onnx(&context.config, &ports.signature()).map_err(|e| status(&e))?;
    ports.shape_scalars(&context.config);
    let opened = ports.open(&context.config);
    ports.arrange(&context.config);
    Ok(opened)
}

/// A parameter of the model, or else the backend's setting of that name.
pub fn knob<'a>(context: &'a LoadContext, key: &str) -> Option<&'a str> {
    context.config.parameter(key).or_else(|| context.settings.get(key).map(String::as_str)).map(str::trim)
}

/// A knob that is a whole number.
pub fn number(context: &LoadContext, key: &str) -> Result<Option<i64>, Status> {
    let Some(text) = knob(context, key) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        Status::invalid(format!("parameter '{key}' of model '{}' is '{text}', not a number", context.model))
    })
}

/// Threads for one operator of one instance: as configured, or as many that instances × threads does not exceed the cores.
pub fn threads(context: &LoadContext) -> Result<usize, Status> {
    let configured = number(context, "intra_op_thread_count")?.unwrap_or(0);
    let fitted = (context.cores / context.instances.max(1)).max(1);
    Ok(usize::try_from(configured).ok().filter(|threads| *threads > 0).unwrap_or(fitted))
}

/// An input's bytes for a runtime on this host: aligned, and copied where they must not change while it reads them.
pub fn snapshot(input: &Tensor, untrusted_inputs: &UntrustedInputs) -> Result<Buffer, Status> {
    match copy_reason(input, untrusted_inputs)? {
        None => Ok(input.data.clone()),
        Some(reason) => private_copy(input, reason),
    }
}

/// Why a runtime on this host needs a copy of an input's bytes; `None` if it may read them where they lie.
pub fn copy_reason(input: &Tensor, untrusted_inputs: &UntrustedInputs) -> Result<Option<Reason>, Status> {
    if !input.data.place().is_host() {
        return Err(Status::unsupported(format!(
            "input '{}' lies in {:?}, this model runs on the host",
            input.name,
            input.data.place()
        )));
    }
    if input.data.access() == Access::Shared && untrusted_inputs.contains(&input.name) {
        return Ok(Some(Reason::Indices));
    }
    Ok((!input.data.is_aligned(input.datatype.align())).then_some(Reason::Unaligned))
}

/// A copy of an input's bytes in memory of this process. They must lie on this host.
pub fn private_copy(input: &Tensor, reason: Reason) -> Result<Buffer, Status> {
    let refuse = |refused| Status::no_memory(format_args!("a copy of input '{}'", input.name), refused);
    input.data.try_private(reason).map_err(refuse)
}

fn status(error: &ConfigError) -> Status {
    let code = match error {
        ConfigError::Invalid { .. } | ConfigError::Override { .. } => Code::InvalidArg,
        ConfigError::Unsupported { .. } => Code::Unsupported,
        ConfigError::Internal { .. } | ConfigError::Text { .. } => Code::Internal,
    };
    Status::new(code, error.to_string())
}
