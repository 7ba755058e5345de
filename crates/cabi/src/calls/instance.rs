//! Which properties of an instance can a backend read and set?

use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;

use nerite_backend::{Outcome, Times};

use super::attributes::say_memory;
use super::exports;
use crate::abi::{List, Opaque, Out};
use crate::fault::Fault;
use crate::objects::{BufferAttributes, InstanceObject, Message, ModelObject, RequestObject};
use crate::table::Handle;

type Instance = Handle<InstanceObject>;

/// The error for an index into a list that is always empty here.
fn none_of(what: &str, index: u32) -> Fault {
    Fault::misuse(format!("there is no {what} {index}: this instance has none"))
}

exports! {
    "TRITONBACKEND_ModelInstanceName" = instance_name(instance: Instance, name: Out<*const c_char>) {
        name.put(instance.get()?.name.as_ptr())?;
    }

    "TRITONBACKEND_ModelInstanceKind" = instance_kind(instance: Instance, kind: Out<u32>) {
        kind.put(instance.get()?.kind)?;
    }

    "TRITONBACKEND_ModelInstanceDeviceId" = instance_device_id(instance: Instance, device: Out<i32>) {
        device.put(instance.get()?.device)?;
    }

    "TRITONBACKEND_ModelInstanceHostPolicy" = instance_host_policy(instance: Instance, policy: Out<Handle<Message>>) {
        policy.put(instance.get()?.policy)?;
    }

    "TRITONBACKEND_ModelInstanceIsPassive" = instance_is_passive(instance: Instance, is_passive: Out<bool>) {
        // This server makes no passive instances.
        instance.get()?;
        is_passive.put(false)?;
    }

    "TRITONBACKEND_ModelInstanceProfileCount" = instance_profile_count(instance: Instance, count: Out<u32>) {
        instance.get()?;
        count.put(0)?;
    }

    "TRITONBACKEND_ModelInstanceProfileName" = instance_profile_name(instance: Instance, index: u32, _name: Opaque) {
        instance.get()?;
        Err(none_of("profile", index))?;
    }

    "TRITONBACKEND_ModelInstanceSecondaryDeviceCount" = instance_secondary_device_count(instance: Instance, count: Out<u32>) {
        instance.get()?;
        count.put(0)?;
    }

    "TRITONBACKEND_ModelInstanceSecondaryDeviceProperties" =
        instance_secondary_device_properties(instance: Instance, index: u32, _kind: Opaque, _id: Opaque) {
        instance.get()?;
        Err(none_of("secondary device", index))?;
    }

    "TRITONBACKEND_ModelInstanceModel" = instance_model(instance: Instance, model: Out<Handle<ModelObject>>) {
        model.put(instance.get()?.model)?;
    }

    "TRITONBACKEND_ModelInstanceState" = instance_state(instance: Instance, state: Out<*mut c_void>) {
        state.put(instance.with(|instance| Ok(instance.state.load(Ordering::Acquire)))?)?;
    }

    "TRITONBACKEND_ModelInstanceSetState" = instance_set_state(instance: Instance, state: Opaque) {
        instance.get()?.state.store(state.address(), Ordering::Release);
    }

    "TRITONBACKEND_ModelInstanceReportMemoryUsage" = instance_report_memory_usage(instance: Instance, usage: List<Handle<BufferAttributes>>, count: u32) {
        say_memory(&instance.get()?.memory, usage, count)?;
    }

    "TRITONBACKEND_ModelInstanceReportStatistics" =
        report_statistics(instance: Instance, request: Handle<RequestObject>, is_success: u8, start: u64, input_end: u64, infer_end: u64, end: u64) {
        instance.with(|_| Ok(()))?;
        let outcome = if is_success == 0 { Outcome::Failed } else { Outcome::Success };
        // The request is not locked while the meter is called.
        if let Some(note) = request.with(|request| Ok(request.take_note()))? {
            note.note(Times { start, input_end, infer_end, end }, outcome);
        }
    }

    "TRITONBACKEND_ModelInstanceReportBatchStatistics" =
        report_batch_statistics(instance: Instance, rows: u64, start: u64, input_end: u64, infer_end: u64, end: u64) {
        if let Some(meter) = instance.with(|instance| Ok(instance.meter()))? {
            meter.batch(rows, &Times { start, input_end, infer_end, end });
        }
    }
}
