//! How does a compiled backend load and finalise one version of a model?

mod instance;
mod readiness;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nerite_backend::{CostBound, DeviceAccess, HostPolicySettings, Instance, InstanceSpec, LoadContext, Model};
use nerite_config::ModelConfig;
use nerite_config::proto::model_instance_group::Kind;
use nerite_locks::Mutex;
use nerite_request::Status;
use nerite_request::report::MemoryUsage;

use crate::fault::Fault;
use crate::limits::RELEASE_PATIENCE;
use crate::load_waits::changing;
use crate::loaded::Loaded;
use crate::objects::{DEVICE_BLOCKING, InstanceObject, Message, ModelObject, ModelParts, ServerObject};
use crate::server_calls::LateReports;
use crate::table::Handle;
use instance::CompiledInstance;

/// One version of a model, from its `ModelInitialize` to its `ModelFinalize`.
pub(crate) struct CompiledModel(Arc<InitializedModel>);

struct InitializedModel {
    object: Arc<ModelObject>,
    handle: Handle<ModelObject>,
    // Dropped after `ModelFinalize`.
    loaded: Arc<Loaded>,
    /// Whether the backend has not released all requests of one of its instances.
    is_abandoned: AtomicBool,
    /// The turns on each GPU, if the instances on one GPU run one at a time.
    turns: Mutex<BTreeMap<u32, Turn>>,
    /// The operator's settings of each host policy.
    host_policies: HostPolicySettings,
}

/// Held by the instance of a GPU that runs.
type Turn = Arc<Mutex<()>>;

impl CompiledModel {
    /// Calls `ModelInitialize`. If `completes`, the backend may complete the configuration.
    pub fn initialize(
        loaded: Arc<Loaded>,
        context: &LoadContext,
        completes: bool,
        reports: Option<LateReports>,
    ) -> Result<CompiledModel, Status> {
        let status_of = |fault: Fault| fault.into_status("TRITONBACKEND_ModelInitialize");
        let repository = std::path::absolute(&context.model_dir).unwrap_or_else(|_| context.model_dir.clone());
        let object = ModelObject::new(ModelParts {
            backend: Arc::clone(&loaded.object),
            backend_handle: loaded.handle,
            name: &context.model,
            version: context.version,
            repository: &repository.display().to_string(),
            config: Arc::clone(&context.config),
            completes,
            server: Arc::new(ServerObject::new(&loaded.object.owner, context.models.clone(), reports)),
        });
        let object = Arc::new(object.map_err(status_of)?);
        let handle = Handle::to(Arc::clone(&object)).map_err(status_of)?;
        // It is also dropped after a failure, which calls `ModelFinalize`: backends free their memory there, as Triton allows.
        let (is_abandoned, turns) = (AtomicBool::new(false), Mutex::default());
        let host_policies = context.host_policies.clone();
        let held = InitializedModel { object, handle, loaded, is_abandoned, turns, host_policies };
        let initialized = changing(&context.model, || held.loaded.library.model_initialize(handle));
        held.object.is_initializing.store(false, Ordering::Release);
        if let Err(status) = initialized {
            log::error!("backend '{}' refuses model '{}': {status}", held.loaded.object.owner, context.model);
            return Err(status);
        }
        Ok(CompiledModel(Arc::new(held)))
    }

    /// Its configuration so far.
    pub fn config(&self) -> Arc<ModelConfig> {
        self.0.object.config()
    }

    /// Sets the final configuration.
    pub fn settle(&self, config: Arc<ModelConfig>) {
        self.0.object.settle(config);
    }
}

impl Model for CompiledModel {
    /// A backend cannot state a bound, but the model's author can. Instances that take turns have none, because they wait for each other.
    fn cost_bound(&self) -> CostBound {
        if self.config().is_bound_by_input_sizes().unwrap_or(false) && !self.0.takes_turns() {
            CostBound::InputSizes
        } else {
            CostBound::Unknown
        }
    }

    /// A backend requests such data by the name of the policy.
    fn reads_policy_data(&self) -> bool {
        true
    }

    /// As in Triton, an instance on a GPU reads and writes tensors in the memory of that GPU. It does not if the backend prefers the host, or if the
    /// model's author says that the backend does not.
    fn takes_device_memory(&self, spec: &InstanceSpec) -> DeviceAccess {
        let config = self.config();
        let is_host_only = self.0.loaded.is_host_only() || config.parameter(DeviceAccess::PARAMETER) == Some("yes");
        let device = spec.device.filter(|_| !is_host_only);
        device.map_or(DeviceAccess::Host, |ordinal| DeviceAccess::on(ordinal, &config))
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.0.object.memory.report()
    }

    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let status_of = |fault: Fault| fault.into_status("TRITONBACKEND_ModelInstanceInitialize");
        let config = self.config();
        let kind = kind(&config, spec);
        let policy = config.host_policy(&spec.name, spec.device);
        let settings = self.0.host_policies.get(&policy).cloned().unwrap_or_default();
        let policy = serde_json::json!({ policy: settings });
        let policy = Arc::new(Message::new(policy.to_string()));
        let object = Arc::new(InstanceObject {
            model: self.0.handle,
            name: crate::objects::c_text(&spec.name),
            kind,
            device: spec.device.unwrap_or(0) as i32,
            policy: Handle::to(policy).map_err(status_of)?,
            meter: Mutex::default(),
            is_ending: AtomicBool::new(false),
            outstanding: Arc::default(),
            memory: self.0.object.memory.of_instance(),
            state: AtomicPtr::default(),
        });
        let handle = Handle::to(Arc::clone(&object)).map_err(status_of)?;
        // As for the model, `ModelInstanceFinalize` is also called after a failure.
        let (given, list, meter, turn) =
            (Vec::new(), Vec::new(), None, spec.device.and_then(|device| self.0.turn(device)));
        let instance = CompiledInstance { object, handle, model: Arc::clone(&self.0), given, list, meter, turn };
        let loaded = &self.0.loaded;
        let alone = (!loaded.is_parallel).then(|| loaded.making.lock().unwrap_or_else(PoisonError::into_inner));
        let initialized = changing(&config.name, || loaded.library.instance_initialize(handle));
        drop(alone);
        if let Err(status) = initialized {
            log::error!("backend '{}' refuses instance '{}': {status}", loaded.object.owner, spec.name);
            return Err(status);
        }
        Ok(Box::new(instance))
    }
}

impl InitializedModel {
    /// Whether the instances on one GPU run one at a time. In Triton one thread serves them; those on the host have a thread each.
    fn takes_turns(&self) -> bool {
        self.loaded.object.execution_policy.load(Ordering::Acquire) == DEVICE_BLOCKING
    }

    /// The turns of the instances on this GPU, if they take turns.
    fn turn(&self, device: u32) -> Option<Turn> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        self.takes_turns().then(|| Arc::clone(turns.entry(device).or_default()))
    }
}

impl Drop for InitializedModel {
    fn drop(&mut self) {
        let (owner, server_object) = (&self.loaded.object.owner, &self.object.server_object);
        let model = self.object.name.to_string_lossy();
        let left = server_object.inferences.wait(RELEASE_PATIENCE);
        if left > 0 {
            log::error!(
                "backend '{owner}': {left} requests that model '{model}' made of other models are not over {} s after its own: their answers \
                 would come to a backend that is gone, so the model and the backend's library stay; a backend must wait for what it asked",
                RELEASE_PATIENCE.as_secs()
            );
            std::mem::forget(Arc::clone(&self.loaded));
            return;
        }
        if let Err(status) = changing(&model, || self.loaded.library.model_finalize(self.handle)) {
            log::error!("backend '{}': TRITONBACKEND_ModelFinalize: {status}", self.loaded.object.owner);
        }
        drop(self.handle.take());
        let kept = server_object.held.wait(Duration::ZERO);
        if kept > 0 {
            log::error!(
                "backend '{owner}': model '{model}' never deleted {kept} inference requests or responses of its own; a backend must delete each \
                 request that it made and each response that it got"
            );
        }
    }
}

/// The kind of an instance: 1 for the host, 2 for a GPU, 3 for the model's own choice.
fn kind(config: &ModelConfig, spec: &InstanceSpec) -> u32 {
    match (spec.device, config.group_of(&spec.name).map(nerite_config::proto::ModelInstanceGroup::kind)) {
        (Some(_), _) => 2,
        (None, Some(Kind::Model)) => 3,
        (None, _) => 1,
    }
}
