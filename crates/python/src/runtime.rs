//! How are Python models loaded, and how does a class complete its configuration?

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nerite_backend::{DeviceAccess, LoadContext, Model, Runtime};
use nerite_config::{ModelConfig, from_json, to_json};
use nerite_process::packets::Complete;
use nerite_process::{ProcessHost, ProcessName, ProcessWork, Silence, Waits};
use nerite_request::Status;
use nerite_sandbox::Sandbox;

use crate::backend_class::{BACKEND_CLASS, environment_in};
use crate::interpreter::{Environments, Interpreter, NoPython, RunBounds};
use crate::launch::Launch;
use crate::limits::SENT_PHASE_MAX;
use crate::model::{PythonModel, file_name, model_names, template};
use crate::settings::{self, Settings, check_input_memory};

/// The runtime called `python`.
pub struct Python {
    host: ProcessHost,
    /// Models that wait for each other's answers.
    waits: Arc<Waits>,
    /// The environments of models.
    environments: Environments,
}

impl Default for Python {
    fn default() -> Python {
        Python { host: ProcessHost::new("nerite-python"), waits: Arc::default(), environments: Environments::default() }
    }
}

impl Python {
    /// Removes the environments that were unpacked for models, because the server ends. Drop does not do this, because threads hold the runtime until
    /// the process ends.
    pub fn end(&self) {
        self.environments.end();
    }

    /// How a process of this model is started. `class_dir` is the directory of the backend's class, if the model has no class of its own.
    fn launch(&self, context: &LoadContext, class_dir: Option<&Path>) -> Result<Launch, Status> {
        let Settings { interpreter, phase_max, mut execute_max, .. } = Settings::read(&context.settings)?;
        if let Some(value) = context.config.parameter("EXECUTE_TIMEOUT_SECONDS") {
            execute_max = settings::execute_max("EXECUTE_TIMEOUT_SECONDS", value)?;
        }
        let brought = class_dir.and_then(environment_in).map(|archive| archive.display().to_string());
        let environment = context.config.parameter("EXECUTION_ENV_PATH").or(brought.as_deref());
        let mut directories = vec![context.model_dir.as_path(), context.version_dir.as_path()];
        directories.extend(class_dir);
        let parameter = |key: &str| context.config.parameter(key);
        let sandbox =
            Sandbox::open(context.config.backend_name(), &context.settings, &context.model, parameter, &directories)?;
        let (environments, setting) = (&self.environments, interpreter.as_deref());
        let phase_max = context.phase_max(phase_max, SENT_PHASE_MAX);
        let bounds = RunBounds { at_most: phase_max, stop: Some(&context.stop) };
        let interpreter =
            Interpreter::choose(environments, environment, &context.model_dir, setting, bounds, sandbox.as_ref())
                .map_err(NoPython::status)?;
        Ok(Launch { interpreter: Arc::new(interpreter), phase_max, execute_max })
    }

    /// As [`Runtime::complete`], by the class in `class_dir` if the model has none of its own.
    pub(crate) fn complete_with(&self, context: &LoadContext, class_dir: Option<&Path>) -> Result<ModelConfig, Status> {
        let source = source(context, class_dir)?;
        if !may_complete(&source) {
            return Ok((*context.config).clone());
        }
        let launch = self.launch(context, class_dir)?;
        let began = Instant::now();
        let name = ProcessName::new(&context.model, ProcessWork::Configuration);
        let started = launch.start(&self.host.supervisor()?, &name);
        let (mut child, _calls) = started.map_err(|error| launch.unstarted(error, began))?;
        let (config, model) = (to_json(&context.config), model_names(context, &context.model, class_dir, &name));
        let command = Complete { config: &config, model: &model }.to_string();
        let phase = format!("model '{}': imports and auto_complete_config", context.model);
        let answer = child.first(&command, &phase, &context.stop).map_err(|silence| {
            if matches!(silence, Silence::TimedOut) {
                return launch.timed_out("complete the configuration of model", &context.model, &child.last_lines());
            }
            launch.blame(&silence, began).unwrap_or_else(|| {
                Status::internal(format!(
                    "Stub process '{}' is not healthy. ({silence} in auto_complete_config, with interpreter {}){}",
                    context.model,
                    launch.interpreter,
                    child.last_lines()
                ))
            })
        })?;
        if let Some(Some(error)) = answer.error() {
            return Err(Status::internal(error));
        }
        from_json(&answer.config())
            .map_err(|error| Status::invalid(format!("auto_complete_config of '{}': {error}", context.model)))
    }

    /// As [`Runtime::load`], with the class in `class_dir` if the model has none of its own.
    pub(crate) fn load_with(&self, context: &LoadContext, class_dir: Option<&Path>) -> Result<Arc<dyn Model>, Status> {
        source(context, class_dir)?;
        if context.config.input.is_empty() {
            log::warn!(
                "model '{}' has no inputs: neither its config.pbtxt nor auto_complete_config of its class names any, so requests with inputs \
                 are refused",
                context.model
            );
        }
        check_input_memory(context.config.parameter(DeviceAccess::PARAMETER))?;
        let mut launch = self.launch(context, class_dir)?;
        let debug = Settings::read(&context.settings)?.debug.filter(|debug| debug.model == context.model);
        if debug.is_some() {
            check_debugged(context, &launch)?;
            launch = launch.debugged();
        }
        let (supervisor, pools) = (self.host.supervisor()?, Arc::clone(self.host.pools()));
        let template = template(context, &supervisor, &launch, class_dir)?;
        Ok(Arc::new(PythonModel {
            class_dir: class_dir.map(Path::to_owned),
            template,
            supervisor,
            pools,
            launch,
            context: context.clone(),
            waits: Arc::clone(&self.waits),
            debug,
            imported: Arc::default(),
            memory: Arc::default(),
            restarts: Arc::default(),
        }))
    }
}

/// Refuses to debug a model whose process no debugger could attach to.
fn check_debugged(context: &LoadContext, launch: &Launch) -> Result<(), Status> {
    let refused = |why: &str| {
        let model = &context.model;
        Err(Status::invalid(format!("--backend-config=python,debug: model '{model}' cannot be debugged: {why}")))
    };
    if context.config.parameter("SHARE_INITIALIZE") == Some("yes") {
        return refused(
            "its instances are forks of one process, and a debugger's threads do not survive a fork; leave SHARE_INITIALIZE out",
        );
    }
    if launch.interpreter.is_confined() {
        return refused(
            "its sandbox takes the network from it, which a debugger attaches by; switch its sandbox off meanwhile",
        );
    }
    Ok(())
}

impl Runtime for Python {
    fn name(&self) -> &'static str {
        "python"
    }

    fn engine(&self) -> String {
        "the user's own interpreter".into()
    }

    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        self.complete_with(context, None)
    }

    fn trim(&self, rounds_max: u32) {
        self.host.trim(rounds_max);
    }

    fn offers_gpus(&self) -> Result<(), String> {
        // The class decides how it uses its device.
        Ok(())
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        self.load_with(context, None)
    }
}

/// The source of a model's class: its own, or that in the directory of its backend.
fn source(context: &LoadContext, class_dir: Option<&Path>) -> Result<String, Status> {
    let Some(directory) = class_dir else {
        return read(&context.config, &context.version_dir.join(file_name(&context.config)));
    };
    let file = directory.join(BACKEND_CLASS);
    let bytes = std::fs::read(&file).map_err(|error| {
        let backend = context.config.backend_name();
        Status::internal(format!("the class of backend '{backend}' cannot be read from '{}': {error}", file.display()))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The class's source. The error for a missing file says where it was searched for.
fn read(config: &ModelConfig, file: &Path) -> Result<String, Status> {
    let name = file_name(config);
    if !name.to_ascii_lowercase().ends_with(".py") {
        return Err(Status::invalid(format!("Model name must end with '.py'. Model name is \"{name}\".")));
    }
    let bytes = std::fs::read(file).map_err(|error| {
        Status::internal(format!(
            "Python model file not found in neither '{}' nor its model directory: {error}",
            file.display()
        ))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the class can have an `auto_complete_config`. If not, no process is started to find out.
fn may_complete(source: &str) -> bool {
    let plain = ["class TritonPythonModel:", "class TritonPythonModel():", "class TritonPythonModel(object):"];
    source.contains("auto_complete_config") || !plain.iter().any(|class| source.contains(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, may: bool) {
        assert_eq!(may_complete(source), may, "{source}");
    }

    #[test]
    fn a_class_that_cannot_complete_is_known_by_its_text() {
        check("class TritonPythonModel:\n    def execute(self, requests): pass", false);
        check("class TritonPythonModel(object):\n    pass", false);
        check("class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c): return c", true);
        check("from base import Base\nclass TritonPythonModel(Base):\n    pass", true);
        check("from base import TritonPythonModel", true);
    }
}
