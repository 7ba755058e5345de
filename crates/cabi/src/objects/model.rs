//! What is a model to a backend's code?

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
