//! Which properties of itself can a backend read and set?

use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;

use nerite_config::proto::ModelInstanceGroup;
use nerite_config::proto::model_instance_group::Kind;

use super::exports;
use crate::abi::{List, Opaque, Out};
use crate::fault::Fault;
use crate::objects::{BackendAttribute, BackendObject, DEVICE_BLOCKING, Message};
use crate::table::Handle;

type Backend = Handle<BackendObject>;

/// The kind of an instance group with this number.
fn kind_of(number: u32) -> Result<Kind, Fault> {
    match number {
        0 => Ok(Kind::Auto),
        1 => Ok(Kind::Cpu),
        2 => Ok(Kind::Gpu),
        3 => Ok(Kind::Model),
        other => Err(Fault::misuse(format!("there is no kind {other} of instance groups"))),
    }
}

exports! {
    "TRITONBACKEND_BackendName" = backend_name(backend: Backend, name: Out<*const c_char>) {
        name.put(backend.get()?.name.as_ptr())?;
    }

    "TRITONBACKEND_BackendConfig" = backend_config(backend: Backend, config: Out<Handle<Message>>) {
        config.put(backend.get()?.config)?;
    }

    "TRITONBACKEND_BackendArtifacts" = backend_artifacts(backend: Backend, kind: Out<u32>, location: Out<*const c_char>) {
        kind.put(0)?;
        location.put(backend.get()?.directory.as_ptr())?;
    }

    "TRITONBACKEND_BackendMemoryManager" = backend_memory_manager(backend: Backend, manager: Out<Backend>) {
        // The backend is its own memory manager.
        backend.get()?;
        manager.put(backend)?;
    }

    "TRITONBACKEND_BackendExecutionPolicy" = backend_execution_policy(backend: Backend, policy: Out<u32>) {
        policy.put(backend.get()?.execution_policy.load(Ordering::Acquire))?;
    }

    "TRITONBACKEND_BackendSetExecutionPolicy" = backend_set_execution_policy(backend: Backend, policy: u32) {
        let backend = backend.get()?;
        if !backend.is_initializing.load(Ordering::Acquire) {
            return Err(Fault::misuse("the execution policy can be set within TRITONBACKEND_Initialize only"));
        }
        if policy > DEVICE_BLOCKING {
            return Err(Fault::misuse(format!("there is no execution policy {policy}, but 0 and 1")));
        }
        backend.execution_policy.store(policy, Ordering::Release);
    }

    "TRITONBACKEND_BackendState" = backend_state(backend: Backend, state: Out<*mut c_void>) {
        state.put(backend.get()?.state().load(Ordering::Acquire))?;
    }

    "TRITONBACKEND_BackendSetState" = backend_set_state(backend: Backend, state: Opaque) {
        backend.get()?.state().store(state.address(), Ordering::Release);
    }

    "TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup" =
        add_preferred_instance_group(attribute: Handle<BackendAttribute>, kind: u32, count: u64, ids: List<u64>, id_count: u64) {
        let kind = kind_of(kind)?;
        let number = |what: &str, number: u64| {
            i32::try_from(number).map_err(|_| Fault::misuse(format!("the {what} {number} of an instance group does not fit in 31 bits")))
        };
        let gpus = ids.read(id_count)?.into_iter().map(|id| number("device", id)).collect::<Result<_, _>>()?;
        let group = ModelInstanceGroup { kind: kind.into(), count: number("count", count)?, gpus, ..Default::default() };
        attribute.get()?.prefer(group)?;
    }

    "TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading" =
        set_parallel_instance_loading(attribute: Handle<BackendAttribute>, is_parallel: u8) {
        attribute.get()?.set_parallel(is_parallel != 0);
    }
}
