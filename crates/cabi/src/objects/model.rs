//! What does the handle of a model stand for?

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

use nerite_backend::Models;
use nerite_config::ModelConfig;
use nerite_locks::Mutex;
use nerite_request::Status;

use super::{BackendObject, MemoryOfModel, Outstanding, c_text, object};
use crate::fault::Fault;
use crate::server_calls::{LateReports, ServerCalls, ServerReports};
use crate::table::Handle;

/// `TRITONBACKEND_Model`: one version of a model.
pub struct ModelObject {
    /// Its backend.
    pub backend: Arc<BackendObject>,
    /// The backend's handle.
    pub backend_handle: Handle<BackendObject>,
    /// Its name.
    pub name: CString,
    /// Its version.
    pub version: u64,
    /// The model's directory.
    pub repository: CString,
    /// Whether the backend may complete the configuration.
    pub completes: bool,
    /// Whether `ModelInitialize` is running. The configuration can be set only then.
    pub is_initializing: AtomicBool,
    /// The models of this server.
    pub server: Handle<ServerObject>,
    /// The same as an object. It counts the requests that the model made.
    pub server_object: Arc<ServerObject>,
    config: Mutex<Arc<ModelConfig>>,
    settled: OnceLock<Settled>,
    state: AtomicPtr<c_void>,
    /// The memory that the backend reports.
    pub memory: MemoryOfModel,
}

object!(ModelObject, 7, "model");

/// The final configuration, and what each request needs of it.
struct Settled {
    config: Arc<ModelConfig>,
    /// The names of its tensors, sorted.
    names: Vec<Arc<CStr>>,
}

/// The parts of a new model.
pub struct ModelParts<'a> {
    /// Its backend.
    pub backend: Arc<BackendObject>,
    /// The backend's handle.
    pub backend_handle: Handle<BackendObject>,
    /// Its name.
    pub name: &'a str,
    /// Its version.
    pub version: i64,
    /// The model's directory.
    pub repository: &'a str,
    /// Its configuration so far.
    pub config: Arc<ModelConfig>,
    /// Whether the backend may complete the configuration.
    pub completes: bool,
    /// The models of this server.
    pub server: Arc<ServerObject>,
}

impl ModelObject {
    /// A model before its `ModelInitialize`.
    pub fn new(parts: ModelParts<'_>) -> Result<ModelObject, Fault> {
        Ok(ModelObject {
            backend: parts.backend,
            backend_handle: parts.backend_handle,
            name: c_text(parts.name),
            version: parts.version.max(0) as u64,
            repository: c_text(parts.repository),
            completes: parts.completes,
            is_initializing: AtomicBool::new(true),
            server: Handle::to(Arc::clone(&parts.server))?,
            server_object: parts.server,
            config: Mutex::new(parts.config),
            settled: OnceLock::new(),
            state: AtomicPtr::default(),
            memory: MemoryOfModel::default(),
        })
    }

    /// The backend's own state.
    pub fn state(&self) -> &AtomicPtr<c_void> {
        &self.state
    }

    /// Its configuration.
    pub fn config(&self) -> Arc<ModelConfig> {
        match self.settled.get() {
            Some(settled) => Arc::clone(&settled.config),
            None => Arc::clone(&self.lock()),
        }
    }

    /// Sets its configuration while it is initialised.
    pub fn set_config(&self, config: Arc<ModelConfig>) {
        *self.lock() = config;
    }

    /// Sets its final configuration, which each request reads without a lock.
    pub fn settle(&self, config: Arc<ModelConfig>) {
        let tensors = config.inputs().into_iter().chain(config.outputs());
        let mut names: Vec<Arc<CStr>> = tensors.map(|tensor| c_text(&tensor.name).into()).collect();
        names.sort();
        self.settled.get_or_init(|| Settled { config, names });
    }

    /// The name of a tensor for C. A name in the configuration needs no allocation.
    pub fn c_name(&self, name: &str) -> Arc<CStr> {
        let settled = self.settled.get();
        let at =
            settled.and_then(|found| found.names.binary_search_by(|known| known.to_bytes().cmp(name.as_bytes())).ok());
        let known = settled.zip(at).and_then(|(found, at)| found.names.get(at));
        known.map_or_else(|| c_text(name).into(), Arc::clone)
    }

    fn lock(&self) -> MutexGuard<'_, Arc<ModelConfig>> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ModelObject {
    fn drop(&mut self) {
        // The server object was made with the model, and a backend cannot delete it.
        drop(self.server.take());
    }
}

/// The name in errors for a program that makes requests to the server in its own process.
const PROGRAM: &str = "the program itself";

/// `TRITONSERVER_Server`: the models of this server that a model may use.
pub struct ServerObject {
    /// The backend's name, for errors.
    pub owner: Arc<str>,
    /// The models.
    models: Models,
    /// What the server reports to its backends.
    reports: Option<LateReports>,
    /// Its requests that are the server's at present.
    pub inferences: Arc<Outstanding>,
    /// Its requests and responses that it has not deleted.
    pub held: Arc<Outstanding>,
    /// `Some` for the program that made the server. A model can only use the server's models.
    program: Option<Arc<dyn ServerCalls>>,
}

object!(ServerObject, 8, "server");

impl ServerObject {
    /// The models of this server, for a model whose backend is called `owner`.
    pub fn new(owner: &Arc<str>, models: Models, reports: Option<LateReports>) -> ServerObject {
        let (inferences, held) = (Arc::default(), Arc::default());
        ServerObject { owner: Arc::clone(owner), models, reports, inferences, held, program: None }
    }

    /// The server object for the program that made the server.
    pub fn of_program(calls: Arc<dyn ServerCalls>) -> ServerObject {
        ServerObject {
            program: Some(Arc::clone(&calls)),
            ..ServerObject::new(&Arc::from(PROGRAM), calls.models(), None)
        }
    }

    /// The models, for this function. A process that only completes a configuration cannot use them.
    pub fn models(&self, function: &str) -> Result<&Models, Status> {
        if self.models.is_none() {
            return Err(Status::unsupported(format!(
                "{function} is not supported where the configuration of a model of backend '{}' is completed in a process of its own: the server \
                 and its other models cannot be asked from there; run it in the server's process ('isolated' is 'false')",
                self.owner
            )));
        }
        Ok(&self.models)
    }

    /// The calls of the program that made the server.
    pub fn program(&self) -> Option<&Arc<dyn ServerCalls>> {
        self.program.as_ref()
    }

    /// What the server reports, for this function.
    pub fn reports(&self, function: &str) -> Result<Arc<dyn ServerReports>, Fault> {
        if let Some(calls) = self.program() {
            return Ok(Arc::<dyn ServerCalls>::clone(calls));
        }
        let reports = self.reports.as_ref().ok_or_else(|| {
            Status::unsupported(format!(
                "{function} is not supported for '{}' here: a backend in the server's own process may ask it ('isolated' is 'false')",
                self.owner
            ))
        });
        Ok(reports?.get(function)?)
    }

    /// Refuses a property of a request that a backend's own process cannot send to the server.
    pub fn check_in_server(&self, what: &str) -> Result<(), Status> {
        if self.program.is_some() || self.reports.is_some() {
            return Ok(());
        }
        Err(Status::unsupported(format!(
            "{what} is not supported for a request of '{}' here: a backend in the server's own process may use it ('isolated' is 'false')",
            self.owner
        )))
    }

    /// The calls of the program that made the server; an error for all others.
    pub fn calls(&self) -> Result<&Arc<dyn ServerCalls>, Fault> {
        let refused = || Fault::misuse("the server is not the backend's: only the program that made it may ask this");
        self.program().ok_or_else(refused)
    }
}
