//! How may a backend read and add to the trace of a request?

use std::ffi::c_char;
use std::sync::Arc;

use super::exports;
use crate::abi::{Out, Text};
use crate::fault::Fault;
use crate::limits::REPORT_BYTES_MAX;
use crate::objects::{TraceObject, TraceOf, c_text};
use crate::table::Handle;

type Trace = Handle<TraceObject>;

exports! {
    "TRITONSERVER_InferenceTraceSpawnChildTrace" = spawn_child_trace(trace: Trace, child: Out<Trace>) {
        if trace.is_null() {
            child.put(Handle::NULL)?;
        } else {
            let made = TraceObject::new(trace.get()?.traced().child(), TraceOf::default());
            child.put(Handle::to(Arc::new(made))?)?;
        }
    }

    "TRITONSERVER_InferenceTraceDelete" = trace_delete(trace: Trace) {
        trace.take()?;
    }

    "TRITONSERVER_InferenceTraceId" = id(trace: Trace, id: Out<u64>) {
        id.put(trace.get()?.traced().id())?;
    }

    "TRITONSERVER_InferenceTraceParentId" = parent_id(trace: Trace, id: Out<u64>) {
        id.put(trace.get()?.traced().parent())?;
    }

    "TRITONSERVER_InferenceTraceModelName" = model_name(trace: Trace, model: Out<*const c_char>) {
        model.put(trace.get()?.of.model.as_ptr())?;
    }

    "TRITONSERVER_InferenceTraceModelVersion" = model_version(trace: Trace, version: Out<i64>) {
        version.put(trace.get()?.of.version)?;
    }

    "TRITONSERVER_InferenceTraceRequestId" = request_id(trace: Trace, id: Out<*const c_char>) {
        id.put(trace.get()?.of.request_id.as_ptr())?;
    }

    "TRITONSERVER_InferenceTraceReportActivity" = report_activity(trace: Trace, ns: u64, name: Text) {
        let (trace, name) = (trace.get()?, name.read()?);
        if name.len() > REPORT_BYTES_MAX {
            return Err(Fault::misuse(format!("the name of an activity has {} bytes, at most {REPORT_BYTES_MAX} are taken", name.len())));
        }
        trace.traced().report(&name.as_str().into(), ns);
    }

    "TRITONSERVER_InferenceTraceContext" = context(trace: Trace, context: Out<*const c_char>) {
        // The text lives until it is set again, or the trace's handle is deleted.
        context.put(trace.get()?.context().as_ptr())?;
    }

    "TRITONSERVER_InferenceTraceSetContext" = set_context(trace: Trace, context: Text) {
        *trace.get()?.context() = c_text(&context.read()?);
    }
}
