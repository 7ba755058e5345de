//! How does a backend or a program begin a trace, read it and add to it?

use std::ffi::c_char;

use super::exports;
use crate::abi::{Opaque, Out, Text};
use crate::fault::{Fault, running_owner};
use crate::limits::REPORT_BYTES_MAX;
use crate::objects::{
    ActivityFn, Kept, TensorActivityFn, TraceFunctions, TraceObject, TraceReleaseFn, c_text, observed_trace,
    spawn_child,
};
use crate::table::Handle;

type Trace = Handle<TraceObject>;

/// Begins a trace whose points are reported to these functions.
fn begin(
    trace: &Out<Trace>,
    (level, parent): (u32, u64),
    activity: Option<ActivityFn<TraceObject>>,
    tensor: Option<TensorActivityFn<TraceObject>>,
    release: Option<TraceReleaseFn<TraceObject>>,
    userp: Opaque,
) -> Result<(), Fault> {
    trace.check()?;
    let (owner, userp) = (running_owner(), Kept(userp.address()));
    let functions = TraceFunctions { owner, activity, tensor, release, userp };
    trace.put(observed_trace(level, parent, functions)?)
}

exports! {
    "TRITONSERVER_InferenceTraceNew" = trace_new(
        trace: Out<Trace>,
        level: u32,
        parent: u64,
        activity: Option<ActivityFn<TraceObject>>,
        release: Option<TraceReleaseFn<TraceObject>>,
        userp: Opaque,
    ) {
        begin(&trace, (level, parent), activity, None, release, userp)?;
    }

    "TRITONSERVER_InferenceTraceTensorNew" = trace_tensor_new(
        trace: Out<Trace>,
        level: u32,
        parent: u64,
        activity: Option<ActivityFn<TraceObject>>,
        tensor: Option<TensorActivityFn<TraceObject>>,
        release: Option<TraceReleaseFn<TraceObject>>,
        userp: Opaque,
    ) {
        begin(&trace, (level, parent), activity, tensor, release, userp)?;
    }

    "TRITONSERVER_InferenceTraceSpawnChildTrace" = spawn_child_trace(trace: Trace, child: Out<Trace>) {
        child.check()?;
        child.put(if trace.is_null() { Handle::NULL } else { spawn_child(trace)? })?;
    }

    "TRITONSERVER_InferenceTraceDelete" = trace_delete(trace: Trace) {
        trace.delete_trace()?;
    }

    "TRITONSERVER_InferenceTraceId" = id(trace: Trace, id: Out<u64>) {
        id.put(trace.get()?.id())?;
    }

    "TRITONSERVER_InferenceTraceParentId" = parent_id(trace: Trace, id: Out<u64>) {
        id.put(trace.get()?.parent())?;
    }

    "TRITONSERVER_InferenceTraceModelName" = model_name(trace: Trace, model: Out<*const c_char>) {
        // The texts of a trace live as long as its handle.
        model.put(trace.get()?.model().as_ptr())?;
    }

    "TRITONSERVER_InferenceTraceModelVersion" = model_version(trace: Trace, version: Out<i64>) {
        version.put(trace.get()?.version())?;
    }

    "TRITONSERVER_InferenceTraceRequestId" = request_id(trace: Trace, id: Out<*const c_char>) {
        id.put(trace.get()?.request_id().as_ptr())?;
    }

    "TRITONSERVER_InferenceTraceReportActivity" = report_activity(trace: Trace, ns: u64, name: Text) {
        let (trace, name) = (trace.get()?, name.read()?);
        if name.len() > REPORT_BYTES_MAX {
            return Err(Fault::misuse(format!("the name of an activity has {} bytes, at most {REPORT_BYTES_MAX} are taken", name.len())));
        }
        trace.traced()?.report(&name.as_str().into(), ns);
    }

    "TRITONSERVER_InferenceTraceContext" = context(trace: Trace, context: Out<*const c_char>) {
        // The text lives until it is set again, or the trace's handle is deleted.
        context.put(trace.get()?.context().as_ptr())?;
    }

    "TRITONSERVER_InferenceTraceSetContext" = set_context(trace: Trace, context: Text) {
        *trace.get()?.context() = c_text(&context.read()?);
    }
}
