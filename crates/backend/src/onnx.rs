//! What do the runtimes for ONNX models share?
//!
//! They share the rules about model files and graphs: where the model file is, which inputs and outputs its graph has, and how graph and
//! configuration are checked against each other. The graph completes the configuration. It also says which shape an output will have, which inputs
//! must not change while the model runs, and whether the inputs' shapes determine how long a run takes.

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
use crate::limits::MODEL_THREADS_MAX;

pub use cost::cost_bound;
pub use nodes::{Node, Nodes};
pub use ports::{Dim, Port, Ports};
pub use untrusted_inputs::UntrustedInputs;

/// The backend's name in `config.pbtxt`.
pub const BACKEND: &str = "onnxruntime";
/// Triton's default of the setting `default-max-batch-size`.
const MAX_BATCH_SIZE_DEFAULT: i32 = 4;

/// The model's file: `default_model_filename`, by default `model.onnx`. If that is a directory, it is the file `model.onnx` in it.
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

/// Notes the files with external data beside a model's file. The engines open these files by themselves, and read or map each of them once.
pub fn watch_external(context: &LoadContext, model_file: &Path, nodes: &Nodes) {
    for file in &nodes.external_files {
        // An error is ignored: if the file is missing, the engine's own error is better. If it changed, the end of the load fails.
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

/// Checks the configuration against the graph, and adapts `ports` to it. Scalars get the shapes that the configuration says. Initializers that it
/// lists become inputs. All ports are put into its order. Returns the names of the listed initializers, whose values a request may replace.
pub fn check(context: &LoadContext, ports: &mut Ports) -> Result<Vec<String>, Status> {
    check_onnx(&context.config, &ports.signature()).map_err(|e| status(&e))?;
    ports.shape_scalars(&context.config);
    let opened = ports.open(&context.config);
    ports.arrange(&context.config);
    Ok(opened)
}

/// A parameter of the model, or else the backend's setting of that name.
pub fn parameter_or_setting<'a>(context: &'a LoadContext, key: &str) -> Option<&'a str> {
    context.config.parameter(key).or_else(|| context.settings.get(key).map(String::as_str)).map(str::trim)
}

/// The value of [`parameter_or_setting`] as a whole number.
pub fn number(context: &LoadContext, key: &str) -> Result<Option<i64>, Status> {
    let Some(text) = parameter_or_setting(context, key) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        Status::invalid(format!("parameter '{key}' of model '{}' is '{text}', not a number", context.model))
    })
}

/// The number of threads for one operator of one instance: as configured, or else the largest number for which instances × threads does not exceed
/// the cores.
pub fn threads(context: &LoadContext) -> Result<usize, Status> {
    let fitted = (context.cores / context.instances.max(1)).max(1);
    Ok(configured_threads(context, "intra_op_thread_count")?.unwrap_or(fitted))
}

/// The number of threads of each instance, by the [`parameter_or_setting`] of this name. `None` if the runtime chooses it: it is absent, or not above 0.
pub fn configured_threads(context: &LoadContext, key: &str) -> Result<Option<usize>, Status> {
    let Some(threads) = number(context, key)?.filter(|threads| *threads > 0) else { return Ok(None) };
    let (threads, instances) = (usize::try_from(threads).unwrap_or(usize::MAX), context.instances.max(1));
    let all = threads.saturating_mul(instances);
    if all > MODEL_THREADS_MAX {
        return Err(Status::invalid(format!(
            "parameter '{key}' of model '{}' is {threads}, which makes {all} threads of its {instances} instances, at most {MODEL_THREADS_MAX} are \
             possible; lower it, or the 'count' of instances",
            context.model
        )));
    }
    Ok(Some(threads))
}

/// An input's bytes for a runtime on this host. They are copied if they are not aligned, or if they must not change while the runtime reads them.
pub fn snapshot(input: &Tensor, untrusted_inputs: &UntrustedInputs) -> Result<Buffer, Status> {
    match copy_reason(input, untrusted_inputs)? {
        None => Ok(input.data.clone()),
        Some(reason) => private_copy(input, reason),
    }
}

/// The reason why a runtime on this host needs a copy of an input's bytes. `None` if it may read them where they lie.
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

/// A copy of an input's bytes in memory of this process. The input must lie on this host.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(count: &str, instances: usize, expect: Result<usize, &str>) {
        let text =
            format!("name: 'm' parameters {{ key: 'intra_op_thread_count' value {{ string_value: '{count}' }} }}");
        let config = nerite_config::parse_text("", text.as_bytes()).unwrap();
        let context = LoadContext { cores: 8, instances, ..crate::conformance::context(Path::new("/none"), config) };
        let found = threads(&context).map_err(|status| status.message);
        assert_eq!(found, expect.map_err(str::to_owned));
    }

    #[test]
    fn a_configuration_asks_for_a_bounded_number_of_threads() {
        check("0", 2, Ok(4));
        check("-1", 16, Ok(1));
        check("3", 2, Ok(3));
        check("4096", 1, Ok(4096));
        check(
            "4097",
            1,
            Err(
                "parameter 'intra_op_thread_count' of model 'm' is 4097, which makes 4097 threads of its 1 instances, at most 4096 are \
                 possible; lower it, or the 'count' of instances",
            ),
        );
        check(
            "9000000000000000000",
            1024,
            Err(
                "parameter 'intra_op_thread_count' of model 'm' is 9000000000000000000, which makes 18446744073709551615 threads of its 1024 \
                 instances, at most 4096 are possible; lower it, or the 'count' of instances",
            ),
        );
    }
}
