//! How does the process of an isolated instance start, and what is said of one that fails?

use std::process::Command;
use std::sync::Arc;

use nerite_backend::{CostBound, Instance, InstanceSpec, Model};
use nerite_process::packets::Said;
use nerite_process::{Blocks, Child, Live, Patience, ProcessInstance, ProcessLauncher, Silence, Supervisor};
use nerite_request::Status;
use nerite_shm::Pools;
use serde_json::{Value, json};

use crate::limits::{LEAVE_MAX, LOAD_MAX};

/// What starts a child for the instance of that name: this program, with whatever tells it to call [`crate::work`]. Its standard input
/// is the channel, so it is set later.
pub type Starter = Arc<dyn Fn(&str) -> Command + Send + Sync>;

/// What a child is started with.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) supervisor: Supervisor,
    pub(crate) start: Starter,
    pub(crate) model: String,
}

impl Launch {
    /// Starts a child and waits for the answer to its first command.
    pub(crate) fn first(&self, instance: &str, command: &str) -> Result<(Child, Said), Status> {
        let patience = Patience { first: LOAD_MAX, last: LEAVE_MAX };
        let failed = |why: String| Status::internal(format!("unable to load model '{}': {why}", self.model));
        let mut child = Child::start(&self.supervisor, (self.start)(instance), patience, "{}", Vec::new())
            .map_err(|error| failed(format!("the process of instance '{instance}' cannot be started: {error}")))?;
        let answer = child.first(command).map_err(|silence| match silence {
            Silence::TimedOut => failed(format!("its process did not answer in {} s", LOAD_MAX.as_secs())),
            other => failed(format!("{other} while it loaded the model")),
        })?;
        match answer.failure() {
            Some(failure) => Err(failure),
            None => Ok((child, answer)),
        }
    }
}

/// One version. Its files are read in the children alone.
pub(crate) struct IsolatedModel {
    pub(crate) launch: Launch,
    pub(crate) pools: Arc<Pools>,
    /// What children are told of it.
    pub(crate) context: Value,
}

impl Model for IsolatedModel {
    /// Its process does the work.
    fn cost_bound(&self) -> CostBound {
        CostBound::Patience
    }

    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let instance = json!({ "name": spec.name, "index": spec.index });
        let command = json!({ "do": "initialize", "context": self.context, "instance": instance }).to_string();
        let launcher = IsolatedLauncher { launch: self.launch.clone(), instance: spec.name.clone(), command };
        Ok(Box::new(ProcessInstance::start(Box::new(launcher), Blocks::new(&self.pools))?))
    }
}

struct IsolatedLauncher {
    launch: Launch,
    instance: String,
    command: String,
}

impl ProcessLauncher for IsolatedLauncher {
    fn instance(&self) -> &str {
        &self.instance
    }

    fn launch(&self) -> Result<Live, Status> {
        let (child, _) = self.launch.first(&self.instance, &self.command)?;
        Ok(Live::new(child, true).told_who_has_gone())
    }

    fn unhealthy(&self, why: &str) -> String {
        format!("model '{}', isolated instance '{}': {why}", self.launch.model, self.instance)
    }

    fn failed(&self, text: &str) -> String {
        self.unhealthy(text)
    }
}
