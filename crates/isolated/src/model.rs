//! How is the process of an isolated instance started, and what is the error if that fails?

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use nerite_backend::{CostBound, Instance, InstanceSpec, LoadStop, Model, Models};
use nerite_process::packets::Said;
use nerite_process::{
    Blocks, Callees, Channel, Child, Hearing, Live, PrintedPipes, ProcessInstance, ProcessLauncher, ProcessMemory,
    ProcessName, ProcessTimeouts, ProcessWork, Restarts, Silence, Supervisor, Waits,
};
use nerite_request::Status;
use nerite_request::report::MemoryUsage;
use nerite_sandbox::Sandbox;
use nerite_shm::Pools;
use serde_json::{Value, json};

/// Makes the command that starts a child for the instance of that name: this program, with arguments that make it call
/// [`crate::work`]. Its standard input is set later, because that is the channel.
pub type Starter = Arc<dyn Fn(&str) -> Command + Send + Sync>;

/// The parameters for starting a child.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) supervisor: Supervisor,
    pub(crate) start: Starter,
    /// The model's name.
    pub(crate) model: String,
    /// The model's name for errors, with that of its backend if that is a compiled one.
    pub(crate) named: String,
    /// Whether the server reads the child's standard output and error. Otherwise the child writes to the server's own.
    pub(crate) captures: bool,
    /// The child's time limits.
    pub(crate) timeouts: ProcessTimeouts,
    /// The child's sandbox, if it has one.
    pub(crate) sandbox: Option<Arc<Sandbox>>,
    /// The models whose registry the child may make metrics in. `None` for engines of the server, which may not make any.
    pub(crate) measured: Option<Models>,
    /// Files that the child needs inside its sandbox.
    pub(crate) readable: Arc<[PathBuf]>,
}

impl Launch {
    fn command(&self, name: &ProcessName, instance: &str) -> Command {
        let mut worker = (self.start)(instance);
        let title = name.title();
        let Some(sandbox) = &self.sandbox else {
            worker.arg0(title);
            return worker;
        };
        let mut confined = sandbox.command(worker.get_program(), Some(title.as_ref()), &[], &self.readable, None);
        confined.args(worker.get_args());
        confined
    }

    /// Starts a child with these channels, and waits for the answer to its first command, unless `stop` ends the load.
    pub(crate) fn first(
        &self,
        work: ProcessWork,
        instance: &str,
        command: &str,
        channels: Vec<OwnedFd>,
        stop: &LoadStop,
    ) -> Result<(Child, Said), Status> {
        let timeouts = self.timeouts;
        let failed = |why: String| Status::internal(format!("unable to load {}: {why}", self.named));
        let name = ProcessName::new(&self.model, work);
        let mut program = self.command(&name, instance);
        let printed = self.captures.then(|| PrintedPipes::quoting_error(&name)).transpose();
        let printed =
            printed.map_err(|error| failed(format!("the output of instance '{instance}' cannot be read: {error}")))?;
        let quoted = printed.map(|PrintedPipes { quoted, output, error }| {
            program.stdout(output).stderr(error);
            quoted
        });
        let mut child = Child::start(&self.supervisor, program, timeouts, "{}", channels)
            .map_err(|error| failed(format!("the process of instance '{instance}' cannot be started: {error}")))?;
        child.log_start(&name);
        if let Some(quoted) = quoted {
            child = child.with_output(quoted);
        }
        if let Some(models) = &self.measured {
            child.measure(models.metrics().owner());
        }
        let phase = format!("instance '{instance}': the process loads {}", self.named);
        let answer = child.first(command, &phase, stop).map_err(|silence| match silence {
            Silence::TimedOut => {
                let seconds = timeouts.first.unwrap_or_default().as_secs();
                failed(format!("its process did not answer in {seconds} s"))
            }
            other => failed(format!("{other} while it loaded the model")),
        })?;
        match answer.failure() {
            Some(failure) => Err(failure),
            None => Ok((child, answer)),
        }
    }
}

/// One version of a model. Only the children read its files.
pub(crate) struct IsolatedModel {
    pub(crate) launch: Launch,
    pub(crate) pools: Arc<Pools>,
    /// The context that is sent to children.
    pub(crate) context: Value,
    /// What its calls need. Only a compiled backend makes calls, because it may answer requests after their batch.
    pub(crate) calls: Option<Calls>,
    /// The memory that its processes reported.
    pub(crate) memory: Arc<ProcessMemory>,
    /// How often its processes were started anew.
    pub(crate) restarts: Arc<Restarts>,
}

/// The objects that the calls of an instance need.
#[derive(Clone)]
pub(crate) struct Calls {
    pub(crate) model: String,
    pub(crate) models: Models,
    pub(crate) waits: Arc<Waits>,
}

impl Model for IsolatedModel {
    /// Its process does the work, so the caller waits only for its timeout.
    fn cost_bound(&self) -> CostBound {
        CostBound::Timeout
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.memory.report()
    }

    fn restarts(&self) -> u64 {
        self.restarts.count()
    }

    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let instance = json!({ "name": spec.name, "index": spec.index });
        let command = json!({ "do": "initialize", "context": self.context, "instance": instance }).to_string();
        let (launch, instance) = (self.launch.clone(), spec.name.clone());
        let (calls, memory, restarts) = (self.calls.clone(), Arc::clone(&self.memory), Arc::clone(&self.restarts));
        let work = ProcessWork::Instance(spec.index);
        let launcher = IsolatedLauncher { launch, work, instance, command, calls, memory, restarts };
        Ok(Box::new(ProcessInstance::start(
            Box::new(launcher),
            Blocks::new(&self.pools).confined(self.launch.sandbox.is_some()),
            &spec.stop,
        )?))
    }
}

struct IsolatedLauncher {
    launch: Launch,
    work: ProcessWork,
    instance: String,
    command: String,
    calls: Option<Calls>,
    memory: Arc<ProcessMemory>,
    restarts: Arc<Restarts>,
}

impl ProcessLauncher for IsolatedLauncher {
    fn instance(&self) -> &str {
        &self.instance
    }

    fn launch(&self, hearing: &Hearing<'_>) -> Result<Live, Status> {
        let Some(Calls { model, models, waits }) = &self.calls else {
            let (child, _) = self.launch.first(self.work, &self.instance, &self.command, Vec::new(), hearing.stop())?;
            self.memory.add(&child);
            return Ok(Live::new(child, true).ending_runs());
        };
        let (calls, theirs) = Channel::pair().map_err(|error| {
            Status::unavailable(
                self.unhealthy(&format!("no channel for its calls: {error}; raise the limit on open files")),
            )
        })?;
        let (child, _) = self.launch.first(self.work, &self.instance, &self.command, vec![theirs], hearing.stop())?;
        self.memory.add(&child);
        let callees = Callees { models: models.clone(), waiter: Arc::new(waits.instance(model)) };
        Ok(Live::new(child, true).with_gone_notices().calling(calls, &self.launch.supervisor, callees))
    }

    fn restarts(&self) -> &Restarts {
        &self.restarts
    }

    fn is_decoupled(&self) -> bool {
        self.calls.is_some()
    }

    fn reports_responses(&self) -> bool {
        self.calls.is_some()
    }

    fn unhealthy(&self, why: &str) -> String {
        format!("{}, isolated instance '{}': {why}", self.launch.named, self.instance)
    }

    fn failed(&self, text: &str) -> String {
        self.unhealthy(text)
    }
}
