//! What is a model to a backend's code?

use std::collections::HashSet;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::Models;
use nerite_config::ModelConfig;
use nerite_locks::Mutex;

use super::{BackendObject, c_text, object};
use crate::fault::Fault;
use crate::table::Handle;

/// `TRITONBACKEND_Model`: one version of a model.
pub struct ModelObject {
    /// Who runs it.
    pub backend: Arc<BackendObject>,
    /// The backend's handle.
    pub backend_handle: Handle<BackendObject>,
    /// Its name.
    pub name: CString,
    /// Its version.
    pub version: u64,
    /// The model's directory.
    pub repository: CString,
    /// Whether the backend is asked to complete the configuration.
    pub completes: bool,
    /// Whether it is within `ModelInitialize`, where alone the configuration may be set.
    pub is_initializing: AtomicBool,
    /// The models of this server.
    pub server: Handle<ServerObject>,
    /// What the backend has of its requests.
    pub live: Live,
    config: Mutex<Arc<ModelConfig>>,
    state: AtomicPtr<c_void>,
}

object!(ModelObject, 7, "model");

/// What a model is made of.
pub struct ModelParts<'a> {
    /// Who runs it.
    pub backend: Arc<BackendObject>,
    /// The backend's handle.
    pub backend_handle: Handle<BackendObject>,
    /// Its name.
    pub name: &'a str,
    /// Its version.
    pub version: i64,
    /// The model's directory.
    pub repository: &'a str,
    /// What is known of it so far.
    pub config: Arc<ModelConfig>,
    /// Whether the backend is asked for the rest.
    pub completes: bool,
    /// The models of this server.
    pub models: Models,
}

impl ModelObject {
    /// A model that is about to be initialised.
    pub fn new(parts: ModelParts<'_>) -> Result<ModelObject, Fault> {
        Ok(ModelObject {
            backend: parts.backend,
            backend_handle: parts.backend_handle,
            name: c_text(parts.name),
            version: parts.version.max(0) as u64,
            repository: c_text(parts.repository),
            completes: parts.completes,
            is_initializing: AtomicBool::new(true),
            server: Handle::to(Arc::new(ServerObject { _models: parts.models }))?,
            live: Live::default(),
            config: Mutex::new(parts.config),
            state: AtomicPtr::default(),
        })
    }

    /// What the backend keeps.
    pub fn state(&self) -> &AtomicPtr<c_void> {
        &self.state
    }

    /// What is known of it.
    pub fn config(&self) -> Arc<ModelConfig> {
        Arc::clone(&self.lock())
    }

    /// From now on this is known of it.
    pub fn set_config(&self, config: Arc<ModelConfig>) {
        *self.lock() = config;
    }

    fn lock(&self) -> MutexGuard<'_, Arc<ModelConfig>> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ModelObject {
    fn drop(&mut self) {
        // It was made with the object, and no function of the interface that a backend may call ends it.
        drop(self.server.take());
    }
}

/// `TRITONSERVER_Server`: the models of this server, as one of them sees it.
pub struct ServerObject {
    /// They. Nothing of the interface that asks them is there yet.
    _models: Models,
}

object!(ServerObject, 8, "server");

/// The objects that a backend holds of one model, to be found where it forgets them.
#[derive(Default)]
pub struct Live {
    /// Requests that were not released.
    pub requests: HandleSet,
    /// Responses that were neither sent nor deleted.
    pub responses: HandleSet,
    /// Factories that were not deleted.
    pub factories: HandleSet,
}

/// The handles of one kind that a backend has.
#[derive(Default)]
pub struct HandleSet(Mutex<HashSet<usize>>);

impl HandleSet {
    /// The backend has one more.
    pub fn add<T>(&self, handle: Handle<T>) {
        self.lock().insert(handle.number());
    }

    /// The backend gave it back.
    pub fn remove<T>(&self, handle: Handle<T>) {
        self.lock().remove(&handle.number());
    }

    /// All that it has, which it will not be asked for any more. `T` is what was added.
    pub fn take_all<T>(&self) -> Vec<Handle<T>> {
        std::mem::take(&mut *self.lock()).into_iter().map(Handle::of).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
