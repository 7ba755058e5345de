//! What does a compiled backend do with one version of a model?

mod instance;

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError};

use nerite_backend::{Instance, InstanceSpec, LoadContext, Model};
use nerite_config::ModelConfig;
use nerite_config::proto::model_instance_group::Kind;
use nerite_locks::Mutex;
use nerite_request::Status;

use crate::fault::Fault;
use crate::loaded::Loaded;
use crate::objects::{InstanceObject, Message, ModelObject, ModelParts};
use crate::table::Handle;
use instance::CompiledInstance;

/// One version of a model, between its first function and its last.
pub(crate) struct CompiledModel(Arc<InitializedModel>);

struct InitializedModel {
    object: Arc<ModelObject>,
    handle: Handle<ModelObject>,
    // Closed after the model's last function.
    loaded: Arc<Loaded>,
    /// Whether an instance of it had requests that the backend does not give back.
    is_abandoned: AtomicBool,
}

impl CompiledModel {
    /// Has the backend initialise it. Where `completes`, the backend may complete its configuration.
    pub fn initialize(loaded: Arc<Loaded>, context: &LoadContext, completes: bool) -> Result<CompiledModel, Status> {
        let told = |fault: Fault| fault.told("TRITONBACKEND_ModelInitialize");
        let repository = std::path::absolute(&context.model_dir).unwrap_or_else(|_| context.model_dir.clone());
        let object = ModelObject::new(ModelParts {
            backend: Arc::clone(&loaded.object),
            backend_handle: loaded.handle,
            name: &context.model,
            version: context.version,
            repository: &repository.display().to_string(),
            config: Arc::clone(&context.config),
            completes,
            models: context.models.clone(),
        });
        let object = Arc::new(object.map_err(told)?);
        let handle = Handle::to(Arc::clone(&object)).map_err(told)?;
        // Dropped after a failure as well, which calls the model's last function: there backends free what they have, as Triton lets them.
        let held = InitializedModel { object, handle, loaded, is_abandoned: AtomicBool::new(false) };
        let initialized = held.loaded.library.model_initialize(handle);
        held.object.is_initializing.store(false, Ordering::Release);
        if let Err(status) = initialized {
            log::error!("backend '{}' refuses model '{}': {status}", held.loaded.object.owner, context.model);
            return Err(status);
        }
        Ok(CompiledModel(Arc::new(held)))
    }

    /// What is known of it.
    pub fn config(&self) -> Arc<ModelConfig> {
        self.0.object.config()
    }

    /// The server settled on this configuration.
    pub fn settle(&self, config: Arc<ModelConfig>) {
        self.0.object.set_config(config);
    }
}

impl Model for CompiledModel {
    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let told = |fault: Fault| fault.told("TRITONBACKEND_ModelInstanceInitialize");
        let config = self.config();
        let kind = kind(&config, spec);
        let policy = Arc::new(Message::new(policy(&config, spec, kind)));
        let object = Arc::new(InstanceObject {
            model: self.0.handle,
            name: crate::objects::c_text(&spec.name),
            kind,
            device: spec.device.unwrap_or(0) as i32,
            policy: Handle::to(policy).map_err(told)?,
            meter: Mutex::default(),
            outstanding: Arc::default(),
            state: AtomicPtr::default(),
        });
        let handle = Handle::to(Arc::clone(&object)).map_err(told)?;
        // As with the model, its last function is called after a failure as well.
        let instance = CompiledInstance { object, handle, model: Arc::clone(&self.0) };
        let loaded = &self.0.loaded;
        let alone = (!loaded.is_parallel).then(|| loaded.making.lock().unwrap_or_else(PoisonError::into_inner));
        let initialized = loaded.library.instance_initialize(handle);
        drop(alone);
        if let Err(status) = initialized {
            log::error!("backend '{}' refuses instance '{}': {status}", loaded.object.owner, spec.name);
            return Err(status);
        }
        Ok(Box::new(instance))
    }
}

impl Drop for InitializedModel {
    fn drop(&mut self) {
        if let Err(status) = self.loaded.library.model_finalize(self.handle) {
            log::error!("backend '{}': TRITONBACKEND_ModelFinalize: {status}", self.loaded.object.owner);
        }
        drop(self.handle.take());
    }
}

/// 1 for the host, 2 for a GPU, 3 for what the model itself chooses.
fn kind(config: &ModelConfig, spec: &InstanceSpec) -> u32 {
    let is_of = |rest: &str| rest.strip_prefix('_').is_some_and(|number| number.parse::<u32>().is_ok());
    let group = config.instance_group.iter().find(|group| spec.name.strip_prefix(&group.name).is_some_and(is_of));
    match (spec.device, group.map(nerite_config::proto::ModelInstanceGroup::kind)) {
        (Some(_), _) => 2,
        (None, Some(Kind::Model)) => 3,
        (None, _) => 1,
    }
}

/// The host policy of an instance, as JSON: its name, and nothing that is set. Cores are the server's own affair.
fn policy(config: &ModelConfig, spec: &InstanceSpec, kind: u32) -> String {
    let named = config.instance_group.iter().find(|group| spec.name.starts_with(&group.name));
    let named = named.map(|group| group.host_policy.clone()).filter(|name| !name.is_empty());
    let usual = match (spec.device, kind) {
        (Some(device), _) => format!("gpu_{device}"),
        (None, 3) => "model".to_owned(),
        (None, _) => "cpu".to_owned(),
    };
    serde_json::json!({ named.unwrap_or(usual): {} }).to_string()
}
