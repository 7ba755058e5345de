//! Which models run in processes of their own?

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use nerite_backend::onnx::parameter_or_setting;
use nerite_backend::{InstanceSpec, LoadContext, Model, Models, Runtime};
use nerite_config::proto::ModelInstanceGroup;
use nerite_config::{ModelConfig, needs_graph};
use nerite_locks::Mutex;
use nerite_process::{ProcessHost, ProcessTimeouts, ProcessWork, Waits};
use nerite_request::Status;
use nerite_sandbox::Sandbox;
use serde_json::json;

use crate::context;
use crate::limits::{LEAVE_MAX, LOAD_MAX};
use crate::model::{Calls, IsolatedModel, Launch, Starter};

/// The model's parameter, and the backend's setting, that requests a process for each instance.
pub const SETTING: &str = "isolated";

/// A runtime whose models run in processes of their own if the model or the operator asks for that.
pub struct Isolated {
    inner: Arc<dyn Runtime>,
    start: Starter,
    host: Arc<ProcessHost>,
    /// Files that a child needs, beside those of its model.
    readable: Arc<[PathBuf]>,
    /// Whether it is a compiled backend.
    is_compiled: bool,
    /// Records which of its models wait for each other.
    waits: Arc<Waits>,
    /// The instance groups that a process said it prefers.
    preferred: Mutex<Option<Preferred>>,
}

/// The answer of one process. It holds for all models with the same settings, while the library is the same.
struct Preferred {
    settings: BTreeMap<String, String>,
    modified: Option<SystemTime>,
    groups: Vec<ModelInstanceGroup>,
}

impl Isolated {
    /// Models that are not isolated run on `inner`. `start` makes a child that has the same runtime.
    pub fn over(inner: Arc<dyn Runtime>, start: Starter) -> Isolated {
        Isolated {
            inner,
            start,
            host: Arc::new(host()),
            readable: [].into(),
            is_compiled: false,
            waits: Arc::default(),
            preferred: Mutex::default(),
        }
    }

    /// The same runtime for a compiled backend: the backend completes each configuration itself, and errors name it.
    pub fn compiled(self) -> Isolated {
        Isolated { is_compiled: true, ..self }
    }

    /// Its children share a supervisor and memory with those of other runtimes on this host.
    pub(crate) fn on(self, host: &Arc<ProcessHost>) -> Isolated {
        Isolated { host: Arc::clone(host), ..self }
    }

    /// Children in a sandbox may read these files and folders.
    pub fn reading(self, readable: impl IntoIterator<Item = PathBuf>) -> Isolated {
        Isolated { readable: readable.into_iter().collect(), ..self }
    }

    fn launch(&self, context: &LoadContext) -> Result<Launch, Status> {
        let directories = [context.model_dir.as_path(), context.version_dir.as_path()];
        let parameter = |key: &str| context.config.parameter(key);
        let sandbox = Sandbox::open(self.name(), &context.settings, &context.model, parameter, &directories)?;
        let (supervisor, start) = (self.host.supervisor()?, Arc::clone(&self.start));
        let of = if self.is_compiled { format!(" of backend '{}'", self.name()) } else { String::new() };
        let named = format!("model '{}'{of}", context.model);
        let measured = self.is_compiled.then(|| context.models.clone());
        let readable = Arc::clone(&self.readable);
        let timeouts = ProcessTimeouts { first: context.phase_max(None, LOAD_MAX), last: Some(LEAVE_MAX) };
        let model = context.model.clone();
        Ok(Launch {
            supervisor,
            start,
            model,
            named,
            captures: self.is_compiled,
            timeouts,
            sandbox,
            measured,
            readable,
        })
    }

    /// The instance groups that a compiled backend prefers, as a process reports them. They are kept until the library or the settings change.
    fn preferred_groups(&self, context: &LoadContext) -> Result<Vec<ModelInstanceGroup>, Status> {
        let modified = std::fs::metadata(self.engine()).and_then(|file| file.modified()).ok();
        let known = |one: &&Preferred| one.settings == context.settings && one.modified == modified;
        let preferred = || self.preferred.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = preferred().as_ref().filter(known) {
            return Ok(found.groups.clone());
        }
        let groups = self.config_from_child(context, "prefer")?.instance_group;
        let settings = context.settings.clone();
        *preferred() = Some(Preferred { settings, modified, groups: groups.clone() });
        Ok(groups)
    }

    /// Starts a child, which answers this command with a configuration and ends.
    fn config_from_child(&self, context: &LoadContext, command: &str) -> Result<ModelConfig, Status> {
        let command = json!({ "do": command, "context": context::to_value(context)? }).to_string();
        let work = ProcessWork::Configuration;
        let launch = self.launch(context)?;
        let (mut child, answer) = launch.first(work, &context.model, &command, Vec::new(), &context.stop)?;
        // When it is dropped, it makes the child finalize what it prepared for the answer, or ends it.
        child.has_model();
        nerite_config::from_json(&answer.config()).map_err(|error| Status::internal(error.to_string()))
    }

    /// Whether the model is isolated. A sandbox confines a process, so a model with a sandbox must be isolated.
    fn is_isolated(&self, context: &LoadContext) -> Result<Option<bool>, Status> {
        let parameter = |key: &str| context.config.parameter(key);
        let isolated = is_isolated(context)?;
        if !Sandbox::is_requested(self.name(), &context.settings, &context.model, parameter, &context.model_dir)? {
            return Ok(isolated);
        }
        if isolated == Some(false) {
            return Err(Status::invalid(format!(
                "model '{0}' is to run in a sandbox, but '{SETTING}' is 'false' for it, and in the server's process nothing can be confined; leave \
                 '{SETTING}' out, or the sandbox",
                context.model
            )));
        }
        Ok(Some(true))
    }
}

/// A host that has no children yet.
pub(crate) fn host() -> ProcessHost {
    ProcessHost::new("nerite-isolated")
}

impl Runtime for Isolated {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn engine(&self) -> String {
        self.inner.engine()
    }

    fn preferred_groups(&self, context: &LoadContext) -> Result<Vec<ModelInstanceGroup>, Status> {
        if !self.is_isolated(context)?.unwrap_or(false) {
            return self.inner.preferred_groups(context);
        }
        if self.is_compiled { self.preferred_groups(context) } else { Ok(Vec::new()) }
    }

    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        if !self.is_isolated(context)?.unwrap_or(false) {
            return self.inner.complete(context);
        }
        if !self.is_compiled && !needs_graph(&context.config) {
            return Ok((*context.config).clone());
        }
        self.config_from_child(context, "complete")
    }

    fn give_up(&self, context: &LoadContext) {
        self.inner.give_up(context);
    }

    fn check_models(&self, config: &ModelConfig, models: &Models) -> Result<(), Status> {
        self.inner.check_models(config, models)
    }

    fn leaves_files_unchanged(&self) -> bool {
        self.inner.leaves_files_unchanged()
    }

    fn trim(&self, rounds_max: u32) {
        self.host.trim(rounds_max);
        self.inner.trim(rounds_max);
    }

    fn offers_gpus(&self) -> Result<(), String> {
        self.inner.offers_gpus()
    }

    fn danger(&self, context: &LoadContext) -> Result<Option<String>, Status> {
        self.inner.danger(context)
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let model = &context.model;
        let specs = InstanceSpec::all(&context.config);
        let on_gpu = specs.iter().find(|spec| spec.device.is_some());
        let isolated = self.is_isolated(context)?;
        match (isolated, on_gpu) {
            (Some(true), None) => {}
            (Some(true), Some(spec)) => {
                return Err(Status::unsupported(format!(
                    "model '{model}' is isolated, but its instance '{}' is on a GPU, and isolated instances compute on the host; give \
                     its instance group KIND_CPU, or set its parameter '{SETTING}' to 'false'",
                    spec.name
                )));
            }
            (None | Some(false), _) => match self.inner.danger(context)? {
                None => return self.inner.load(context),
                Some(danger) if isolated.is_none() && on_gpu.is_none() => {
                    log::info!(
                        "model '{model}' runs in processes of its own (its parameter '{SETTING}' is not set): {danger}"
                    );
                }
                Some(danger) => {
                    log::warn!(
                        "model '{model}' runs in the server's process: {danger}; serve it to clients that are trusted"
                    );
                    return self.inner.load(context);
                }
            },
        }
        let (launch, pools) = (self.launch(context)?, Arc::clone(self.host.pools()));
        let calls = self.is_compiled.then(|| Calls {
            model: context.model.clone(),
            models: match &launch.sandbox {
                Some(sandbox) => context.models.confined_to(sandbox.loadable_models()),
                None => context.models.clone(),
            },
            waits: Arc::clone(&self.waits),
        });
        let memory = Arc::default();
        Ok(Arc::new(IsolatedModel {
            launch,
            pools,
            context: context::to_value(context)?,
            calls,
            memory,
            restarts: Arc::default(),
        }))
    }
}

/// The value of the model's parameter, else of the operator's setting; `None` if neither is set.
fn is_isolated(context: &LoadContext) -> Result<Option<bool>, Status> {
    let Some(text) = parameter_or_setting(context, SETTING) else { return Ok(None) };
    read_choice(text).map_err(|allowed| {
        let whose = if context.config.parameter(SETTING).is_some() {
            format!("'{SETTING}' of model '{}'", context.model)
        } else {
            format!("the setting '{SETTING}' of --backend-config")
        };
        Status::invalid(format!("{whose} is '{text}'; {allowed}"))
    })
}

/// Whether [`SETTING`] may have this value. The error says which values are allowed.
pub fn check_setting(value: &str) -> Result<(), &'static str> {
    read_choice(value.trim()).map(drop)
}

fn read_choice(text: &str) -> Result<Option<bool>, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(Some(true)),
        "false" | "0" | "no" | "off" => Ok(Some(false)),
        "" => Ok(None),
        _ => Err("it is 'true' for instances in processes of their own, or 'false'"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use nerite_backend::conformance::context;

    use super::*;

    #[track_caller]
    fn check(parameter: Option<&str>, setting: Option<&str>, expected: Result<Option<bool>, &str>) {
        let parameter = parameter.map_or_else(String::new, |value| {
            format!("parameters {{ key: 'isolated' value {{ string_value: '{value}' }} }}")
        });
        let config = nerite_config::parse_text("c", format!("name: 'm' {parameter}").as_bytes()).unwrap();
        let mut context = context(Path::new("m"), config);
        context.settings.extend(setting.map(|value| (SETTING.to_owned(), value.to_owned())));
        assert_eq!(is_isolated(&context).map_err(|status| status.message), expected.map_err(str::to_owned));
    }

    #[test]
    fn the_models_parameter_wins_over_the_backends_setting() {
        check(None, None, Ok(None));
        check(None, Some("true"), Ok(Some(true)));
        check(Some("false"), Some("true"), Ok(Some(false)));
        check(Some("True"), None, Ok(Some(true)));
        check(Some("1"), Some("0"), Ok(Some(true)));
        let text =
            "'isolated' of model 'm' is 'maybe'; it is 'true' for instances in processes of their own, or 'false'";
        check(Some("maybe"), None, Err(text));
        check(Some("maybe"), Some("true"), Err(text));
        let text = "the setting 'isolated' of --backend-config is 'maybe'; it is 'true' for instances in processes of their own, or \
                    'false'";
        check(None, Some("maybe"), Err(text));
    }
}
