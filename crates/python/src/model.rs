//! How is one version of a Python model checked, and how is an instance of it started?

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use nerite_backend::{CostBound, DeviceAccess, ImportedFiles, Instance, InstanceSpec, LoadContext, Model, Models};
use nerite_config::proto::model_instance_group::Kind;
use nerite_config::{ModelConfig, to_json};
use nerite_locks::Mutex;
use nerite_process::packets::{Initialize, Model as ModelNames, Ready};
use nerite_process::{
    Blocks, Callees, ExecuteLimit, Hearing, Live, ProcessInstance, ProcessLauncher, ProcessName, ProcessWork,
    ResidentMemory, Restarts, Silence, Supervisor, Waiter, Waits,
};
use nerite_request::Status;
use nerite_request::report::MemoryUsage;
use nerite_shm::Pools;

use crate::backend_class::BACKEND_CLASS;
use crate::device_memory;
use crate::launch::Launch;
use crate::settings::Debugged;
use crate::template::Template;

/// One version, checked as far as possible without running it.
pub(crate) struct PythonModel {
    pub(crate) supervisor: Supervisor,
    pub(crate) pools: Arc<Pools>,
    pub(crate) launch: Launch,
    pub(crate) context: LoadContext,
    pub(crate) waits: Arc<Waits>,
    /// The directory of the backend's class, if the model has no class of its own.
    pub(crate) class_dir: Option<PathBuf>,
    /// The template that its processes are forked from, if they share the data that `initialize` loads.
    pub(crate) template: Option<Arc<Template>>,
    /// Where its processes wait for a debugger, if the operator wants that.
    pub(crate) debug: Option<Debugged>,
    /// The files that its processes imported.
    pub(crate) imported: Arc<Mutex<ImportedFiles>>,
    /// The memory of its processes.
    pub(crate) memory: Arc<ResidentMemory>,
    /// How often its processes were started anew.
    pub(crate) restarts: Arc<Restarts>,
}

/// Starts the process of one instance, and a new one after each end.
struct PythonLauncher {
    supervisor: Supervisor,
    launch: Launch,
    template: Option<Arc<Template>>,
    /// The instance's name.
    instance: String,
    name: ProcessName,
    /// The command that initializes it.
    command: String,
    is_decoupled: bool,
    /// Whether it opens memory of a GPU itself.
    takes_devices: bool,
    models: Models,
    waiter: Arc<Waiter>,
    imported: Arc<Mutex<ImportedFiles>>,
    memory: Arc<ResidentMemory>,
    restarts: Arc<Restarts>,
}

impl Model for PythonModel {
    /// Its process does the work, so the server's thread only waits.
    fn cost_bound(&self) -> CostBound {
        CostBound::Timeout
    }

    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let context = &self.context;
        if self.template.is_some() && spec.device.is_some() {
            return Err(Status::invalid(format!(
                "model '{}': SHARE_INITIALIZE forks its instances, and what was loaded to a GPU does not survive that; use KIND_CPU in its                  instance_group, or leave the parameter out",
                context.model
            )));
        }
        let decoupled = context.config.decoupled();
        let debug = self.debug.as_ref().map(|debug| debug.port_of(spec.index)).transpose()?;
        let name = ProcessName::new(&context.model, ProcessWork::Instance(spec.index));
        let command = initialize(context, spec, self.class_dir.as_deref(), &name, debug);
        let (supervisor, launch) = (self.supervisor.clone(), self.launch.clone());
        let instance = spec.name.clone();
        let models = self.launch.interpreter.models(&context.models);
        let waiter = Arc::new(self.waits.instance(&context.model));
        let template = self.template.clone();
        let takes_devices = self.takes_device_memory(spec) != DeviceAccess::Host;
        let launcher = PythonLauncher {
            supervisor,
            launch,
            template,
            instance,
            name,
            command,
            is_decoupled: decoupled,
            takes_devices,
            models,
            waiter,
            imported: Arc::clone(&self.imported),
            memory: Arc::clone(&self.memory),
            restarts: Arc::clone(&self.restarts),
        };
        let blocks = Blocks::new(&self.pools).confined(self.launch.interpreter.is_confined());
        Ok(Box::new(ProcessInstance::start(Box::new(launcher), blocks, &spec.stop)?))
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.memory.report()
    }

    fn restarts(&self) -> u64 {
        self.restarts.count()
    }

    fn imported_files(&self) -> ImportedFiles {
        lock(&self.imported).clone()
    }

    fn takes_device_memory(&self, spec: &InstanceSpec) -> DeviceAccess {
        device_memory::device_access(&self.context.config, spec.device)
    }
}

impl ProcessLauncher for PythonLauncher {
    fn instance(&self) -> &str {
        &self.instance
    }

    fn restarts(&self) -> &Restarts {
        &self.restarts
    }

    fn is_decoupled(&self) -> bool {
        self.is_decoupled
    }

    fn execute_limit(&self) -> Option<ExecuteLimit> {
        let setting = "execute-timeout-seconds or EXECUTE_TIMEOUT_SECONDS";
        self.launch.execute_max.map(|at_most| ExecuteLimit { at_most, setting })
    }

    fn unhealthy(&self, why: &str) -> String {
        format!("Stub process '{}' is not healthy. ({why})", self.instance)
    }

    fn failed(&self, text: &str) -> String {
        format!("Failed to process the request(s) for model '{}', message: {text}", self.instance)
    }

    fn launch(&self, hearing: &Hearing<'_>) -> Result<Live, Status> {
        let began = Instant::now();
        let (child, calls) = if let Some(template) = &self.template {
            template.fork(&self.name, hearing.stop())?
        } else {
            let started = self.launch.start(&self.supervisor, &self.name);
            started.map_err(|error| self.launch.unstarted(error, began))?
        };
        self.memory.add(&child);
        child.measure(self.models.metrics().owner());
        let callees = Callees { models: self.models.clone(), waiter: Arc::clone(&self.waiter) };
        let mut live = Live::starting(child).calling(calls, &self.supervisor, callees);
        // The model may load other models in `initialize`.
        hearing.begin(&mut live)?;
        let phase = format!("instance '{}': imports and initialize", self.instance);
        let answer = live.child().first(&self.command, &phase, hearing.stop());
        let answer = answer.map_err(|silence| self.silent(&silence, began, &live.child().last_lines()))?;
        if let Some(Some(error)) = answer.error() {
            return Err(Status::internal(error));
        }
        let ready = answer.ready();
        let (python, numpy) = (ready.python.unwrap_or("unknown"), ready.numpy.unwrap_or("unknown"));
        log::debug!("instance '{}': Python {python}, numpy {numpy}, guard: {}", self.instance, ready.guard);
        self.launch.interpreter.check_version(python)?;
        self.note_imported(&ready);
        let (guard, decides) = (ready.guard, ready.decides);
        Ok(live.initialized(guard).packed().taking_devices(self.takes_devices).deciding(decides))
    }
}

impl PythonLauncher {
    /// Notes what the process imported. The report of a process in a sandbox is ignored. It could name a file that the process cannot read, and the
    /// next reload would reveal whether that file changed.
    fn note_imported(&self, ready: &Ready<'_>) {
        if self.launch.interpreter.is_confined() {
            return;
        }
        let mut imported = lock(&self.imported);
        for file in &ready.imported {
            imported.note(Path::new(file.path), file.bytes, file.modified_ns);
        }
        imported.note_unreported(ready.unreported);
    }

    fn silent(&self, silence: &Silence, began: Instant, last_lines: &str) -> Status {
        let (instance, interpreter) = (&self.instance, &self.launch.interpreter);
        match silence {
            Silence::TimedOut => self.launch.timed_out("initialize model instance", instance, last_lines),
            Silence::NotReceived | Silence::Closed | Silence::Killed(_) | Silence::Ended(_) => {
                self.launch.blame(silence, began).unwrap_or_else(|| {
                    let why = format!("{silence} while it initialized the model, with interpreter {interpreter}");
                    Status::internal(self.unhealthy(&why) + last_lines)
                })
            }
        }
    }
}

/// The template, if the model's parameter `SHARE_INITIALIZE` requests one.
pub(crate) fn template(
    context: &LoadContext,
    supervisor: &Supervisor,
    launch: &Launch,
    class_dir: Option<&Path>,
) -> Result<Option<Arc<Template>>, Status> {
    match context.config.parameter("SHARE_INITIALIZE") {
        None | Some("no") => Ok(None),
        Some("yes") if launch.interpreter.forbids_processes() => Err(Status::invalid(format!(
            "model '{}': SHARE_INITIALIZE forks its instances, and its sandbox lets it start no process; set sandbox-processes to 'any', or to \
             more than it has instances and threads, or leave SHARE_INITIALIZE out",
            context.model
        ))),
        Some("yes") => {
            let spec = InstanceSpec { name: context.model.clone(), ..InstanceSpec::default() };
            let name = ProcessName::new(&context.model, ProcessWork::Template);
            let command = initialize(context, &spec, class_dir, &name, None);
            Ok(Some(Arc::new(Template::new(supervisor.clone(), launch.clone(), &context.model, command))))
        }
        Some(other) => {
            Err(Status::invalid(format!("Incorrect value for SHARE_INITIALIZE: {other}, expected 'yes' or 'no'")))
        }
    }
}

/// The command that initializes a process.
fn initialize(
    context: &LoadContext,
    spec: &InstanceSpec,
    class_dir: Option<&Path>,
    process: &ProcessName,
    debug: Option<u16>,
) -> String {
    let args = args(context, spec);
    let args: Vec<_> = args.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let model = model_names(context, &spec.name, class_dir, process);
    let (decoupled, template) = (context.config.decoupled(), process.work() == ProcessWork::Template);
    Initialize { args: &args, model: &model, decoupled, template, debug }.to_string()
}

/// The model's names and directories, which are part of each command. `class_dir` is the directory of the backend's class, if the model has no class
/// of its own.
pub(crate) fn model_names<'a>(
    context: &'a LoadContext,
    instance: &'a str,
    class_dir: Option<&Path>,
    process: &ProcessName,
) -> ModelNames<'a> {
    ModelNames {
        name: &context.model,
        version: context.version.to_string(),
        file: if class_dir.is_some() { BACKEND_CLASS } else { file_name(&context.config) },
        class_dir: class_dir.map(absolute),
        version_dir: absolute(&context.version_dir),
        model_dir: absolute(&context.model_dir),
        instance,
        title: process.title(),
    }
}

/// The name of the file that holds the class.
pub(crate) fn file_name(config: &ModelConfig) -> &str {
    if config.default_model_filename.is_empty() { "model.py" } else { &config.default_model_filename }
}

/// The arguments of `initialize`, by name.
fn args(context: &LoadContext, spec: &InstanceSpec) -> [(&'static str, String); 7] {
    [
        ("model_config", to_json(&context.config)),
        ("model_instance_device_id", spec.device.unwrap_or(0).to_string()),
        ("model_instance_kind", kind(&context.config, spec).to_owned()),
        ("model_instance_name", spec.name.clone()),
        ("model_name", context.model.clone()),
        ("model_repository", absolute(&context.model_dir)),
        ("model_version", context.version.to_string()),
    ]
}

pub(crate) fn kind(config: &ModelConfig, spec: &InstanceSpec) -> &'static str {
    let group = config.instance_group.iter().find(|group| {
        spec.name
            .strip_prefix(&group.name)
            .is_some_and(|rest| rest.strip_prefix('_').is_some_and(|n| n.parse::<u32>().is_ok()))
    });
    match (spec.device, group.map(nerite_config::proto::ModelInstanceGroup::kind)) {
        (Some(_), _) => "GPU",
        (None, Some(Kind::Model)) => "MODEL",
        (None, _) => "CPU",
    }
}

fn lock(imported: &Mutex<ImportedFiles>) -> MutexGuard<'_, ImportedFiles> {
    imported.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
