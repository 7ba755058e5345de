//! Which properties of a model can a backend read and set?

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nerite_config::proto::model_config::SchedulingChoice;
use nerite_config::{ModelConfig, from_json, normalise, to_json};
use nerite_request::Status;

use super::attributes::say_memory;
use super::exports;
use crate::abi::{List, Opaque, Out};
use crate::fault::Fault;
use crate::objects::{BackendObject, BufferAttributes, Message, ModelObject, ServerObject};
use crate::table::Handle;

type Model = Handle<ModelObject>;

/// The only version of Triton's configuration format.
const CONFIG_VERSION: u32 = 1;

fn check_version(version: u32) -> Result<(), Fault> {
    if version == CONFIG_VERSION {
        return Ok(());
    }
    let text = format!("model configuration version {version} not supported, supported versions are: {CONFIG_VERSION}");
    Err(Status::invalid(text).into())
}

/// The configuration, completed by the backend in the fields that Triton allows.
fn completed(known: &ModelConfig, changed: ModelConfig) -> ModelConfig {
    let mut config = known.clone();
    config.max_batch_size = changed.max_batch_size;
    config.input = changed.input;
    config.output = changed.output;
    if config.scheduling_choice.is_none()
        && matches!(changed.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_)))
    {
        config.scheduling_choice = changed.scheduling_choice;
    }
    if changed.model_transaction_policy.is_some() {
        config.model_transaction_policy = changed.model_transaction_policy;
    }
    let name = config.name.clone();
    normalise(config, &name)
}

exports! {
    "TRITONBACKEND_ModelName" = model_name(model: Model, name: Out<*const c_char>) {
        name.put(model.get()?.name.as_ptr())?;
    }

    "TRITONBACKEND_ModelVersion" = model_version(model: Model, version: Out<u64>) {
        version.put(model.get()?.version)?;
    }

    "TRITONBACKEND_ModelRepository" = model_repository(model: Model, kind: Out<u32>, location: Out<*const c_char>) {
        kind.put(0)?;
        location.put(model.get()?.repository.as_ptr())?;
    }

    "TRITONBACKEND_ModelConfig" = model_config(model: Model, version: u32, config: Out<Handle<Message>>) {
        check_version(version)?;
        let json = to_json(&model.get()?.config());
        config.put(Handle::to(Arc::new(Message::new(json)))?)?;
    }

    "TRITONBACKEND_ModelAutoCompleteConfig" = model_auto_complete_config(model: Model, completes: Out<bool>) {
        completes.put(model.get()?.completes)?;
    }

    "TRITONBACKEND_ModelSetConfig" = model_set_config(model: Model, version: u32, config: Handle<Message>) {
        check_version(version)?;
        let (model, message) = (model.get()?, config.get()?);
        if !model.is_initializing.load(Ordering::Acquire) {
            return Err(Fault::misuse("a configuration can be set within TRITONBACKEND_ModelInitialize only"));
        }
        let changed = from_json(&String::from_utf8_lossy(message.json())).map_err(|refused| Status::invalid(refused.to_string()))?;
        model.set_config(Arc::new(completed(&model.config(), changed)));
    }

    "TRITONBACKEND_ModelServer" = model_server(model: Model, server: Out<Handle<ServerObject>>) {
        server.put(model.get()?.server)?;
    }

    "TRITONBACKEND_ModelBackend" = model_backend(model: Model, backend: Out<Handle<BackendObject>>) {
        backend.put(model.get()?.backend_handle)?;
    }

    "TRITONBACKEND_ModelState" = model_state(model: Model, state: Out<*mut c_void>) {
        state.put(model.get()?.state().load(Ordering::Acquire))?;
    }

    "TRITONBACKEND_ModelSetState" = model_set_state(model: Model, state: Opaque) {
        model.get()?.state().store(state.address(), Ordering::Release);
    }

    "TRITONBACKEND_ModelReportMemoryUsage" = model_report_memory_usage(model: Model, usage: List<Handle<BufferAttributes>>, count: u32) {
        say_memory(model.get()?.memory.own(), usage, count)?;
    }
}
