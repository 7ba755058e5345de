//! How does a backend read and release a request?

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use nerite_request::{SequenceId, Status};

use super::exports;
use crate::abi::{Out, Text};
use crate::fault::Fault;
use crate::objects::{InputObject, RequestObject, TraceObject, memory_of};
use crate::table::Handle;

type Request = Handle<RequestObject>;

/// The flags of the first and the last request of a sequence.
const SEQUENCE_START: u32 = 1;
const SEQUENCE_END: u32 = 2;
/// The flag of a release that returns the request for another run.
const RELEASE_RESCHEDULE: u32 = 2;

fn out_of_bounds(what: &str, index: u32, count: usize) -> Fault {
    Fault::misuse(format!("out of bounds index {index}: request has {count} {what}"))
}

fn input_at(request: &RequestObject, index: u32) -> Result<&(Handle<InputObject>, Arc<InputObject>), Fault> {
    let found = request.inputs.get(index as usize);
    found.ok_or_else(|| out_of_bounds("inputs", index, request.inputs.len()))
}

exports! {
    "TRITONBACKEND_RequestId" = request_id(request: Request, id: Out<*const c_char>) {
        id.put(request.with(|request| Ok(request.id.as_ptr()))?)?;
    }

    "TRITONBACKEND_RequestCorrelationId" = request_correlation_id(request: Request, id: Out<u64>) {
        id.put(match &request.get()?.sequence.id {
            SequenceId::None => 0,
            SequenceId::Number(number) => *number,
            SequenceId::Text(_) => return Err(Status::invalid("correlation ID in request is not an unsigned int").into()),
        })?;
    }

    "TRITONBACKEND_RequestCorrelationIdString" = request_correlation_id_string(request: Request, id: Out<*const c_char>) {
        let request = request.get()?;
        if !matches!(request.sequence.id, SequenceId::Text(_)) {
            return Err(Status::invalid("correlation ID in request is not a string").into());
        }
        id.put(request.sequence_text.as_ptr())?;
    }

    "TRITONBACKEND_RequestFlags" = request_flags(request: Request, flags: Out<u32>) {
        let request = request.get()?;
        let start = if request.sequence.start { SEQUENCE_START } else { 0 };
        let end = if request.sequence.end { SEQUENCE_END } else { 0 };
        flags.put(start | end)?;
    }

    "TRITONBACKEND_RequestIsCancelled" = request_is_cancelled(request: Request, is_cancelled: Out<bool>) {
        is_cancelled.put(request.with(|request| Ok(request.is_cancelled()))?)?;
    }

    "TRITONBACKEND_InferenceRequestTimeoutMicroseconds" = request_timeout(request: Request, timeout_us: Out<u64>) {
        timeout_us.put(request.get()?.timeout_us)?;
    }

    "TRITONBACKEND_RequestParameterCount" = request_parameter_count(request: Request, count: Out<u32>) {
        count.put(request.with(|request| Ok(request.parameters.len() as u32))?)?;
    }

    "TRITONBACKEND_RequestParameter" =
        request_parameter(request: Request, index: u32, key: Out<*const c_char>, kind: Out<u32>, value: Out<*const c_void>) {
        let request = request.get()?;
        let found = request.parameters.get(index as usize);
        let (name, parameter) = found.ok_or_else(|| out_of_bounds("parameters", index, request.parameters.len()))?;
        key.put(name.as_ptr())?;
        kind.put(parameter.kind())?;
        value.put(parameter.address())?;
    }

    "TRITONBACKEND_RequestInputCount" = request_input_count(request: Request, count: Out<u32>) {
        count.put(request.with(|request| Ok(request.inputs.len() as u32))?)?;
    }

    "TRITONBACKEND_RequestInputName" = request_input_name(request: Request, index: u32, name: Out<*const c_char>) {
        // The name lives as long as the request's handle.
        name.put(request.with(|request| Ok(input_at(request, index)?.1.name.as_ptr()))?)?;
    }

    "TRITONBACKEND_RequestInput" = request_input(request: Request, name: Text, input: Out<Handle<InputObject>>) {
        let (request, name) = (request.get()?, name.name()?);
        let found = request.inputs.iter().find(|(_, input)| input.tensor.name == name);
        let unknown = || Fault::from(Status::invalid(format!("unknown request input name {name}")));
        input.put(found.ok_or_else(unknown)?.0)?;
    }

    "TRITONBACKEND_RequestInputByIndex" = request_input_by_index(request: Request, index: u32, input: Out<Handle<InputObject>>) {
        input.put(request.with(|request| Ok(input_at(request, index)?.0))?)?;
    }

    "TRITONBACKEND_RequestOutputCount" = request_output_count(request: Request, count: Out<u32>) {
        count.put(request.with(|request| Ok(request.wanted.len() as u32))?)?;
    }

    "TRITONBACKEND_RequestOutputName" = request_output_name(request: Request, index: u32, name: Out<*const c_char>) {
        // The name lives as long as the request's handle.
        let found = request.with(|request| {
            let found = request.wanted.get(index as usize);
            Ok(found.ok_or_else(|| out_of_bounds("requested outputs", index, request.wanted.len()))?.as_ptr())
        });
        name.put(found?)?;
    }

    "TRITONBACKEND_RequestOutputBufferProperties" = request_output_buffer_properties(
        request: Request,
        name: Text,
        bytes: Out<usize>,
        memory_type: Out<u32>,
        memory_id: Out<i64>,
    ) {
        let (request, name) = (request.get()?, name.read_if_given());
        let known = bytes.wished();
        let path = request.path()?;
        let place = name.and_then(|name| path.output_place(&name));
        let Some((place, capacity)) = place else {
            return Err(Status::unavailable("Output properties are not available").into());
        };
        let (kind, id) = memory_of(place);
        if let (Some(capacity), Some(_)) = (capacity, known) {
            bytes.put_if_asked(capacity);
        }
        memory_type.put(kind)?;
        memory_id.put(id)?;
    }

    "TRITONBACKEND_RequestRelease" = request_release(request: Request, flags: u32) {
        if flags & RELEASE_RESCHEDULE != 0 {
            // If it cannot run again, it stays the backend's.
            request.get()?.reschedule()?;
        }
        // A waiting request is not the backend's, so it cannot be released.
        request.take_when(|request| request.path().map(drop))?;
    }

    "TRITONBACKEND_RequestTrace" = request_trace(request: Request, trace: Out<Handle<TraceObject>>) {
        trace.put(request.get()?.trace()?)?;
    }
}
