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

fn out_of_bounds(request: &RequestObject, what: &str, index: u32, count: usize) -> Fault {
    Fault::misuse(format!("{}out of bounds index {index}: request has {count} {what}", request.prefix()))
}

fn input_at(request: Request, index: u32) -> Result<Handle<InputObject>, Fault> {
    request.with(|request| {
        let inputs = &request.inputs;
        inputs.at(index).ok_or_else(|| out_of_bounds(request, "inputs", index, inputs.count()))
    })
}

exports! {
    "TRITONBACKEND_RequestId" = request_id(request: Request, id: Out<*const c_char>) {
        id.put(request.with(|request| Ok(request.client.id.as_ptr()))?)?;
    }

    "TRITONBACKEND_RequestCorrelationId" = request_correlation_id(request: Request, id: Out<u64>) {
        let number = |request: &RequestObject| match &request.client.sequence.id {
            SequenceId::None => Ok(0),
            SequenceId::Number(number) => Ok(*number),
            SequenceId::Text(_) => Err(request.invalid("correlation ID in request is not an unsigned int")),
        };
        id.put(request.with(number)?)?;
    }

    "TRITONBACKEND_RequestCorrelationIdString" = request_correlation_id_string(request: Request, id: Out<*const c_char>) {
        let text = |request: &RequestObject| match request.client.sequence.id {
            SequenceId::Text(_) => Ok(request.client.sequence_text.as_ptr()),
            _ => Err(request.invalid("correlation ID in request is not a string")),
        };
        id.put(request.with(text)?)?;
    }

    "TRITONBACKEND_RequestFlags" = request_flags(request: Request, flags: Out<u32>) {
        let (start, end) = request.with(|request| Ok((request.client.sequence.start, request.client.sequence.end)))?;
        let start = if start { SEQUENCE_START } else { 0 };
        let end = if end { SEQUENCE_END } else { 0 };
        flags.put(start | end)?;
    }

    "TRITONBACKEND_RequestIsCancelled" = request_is_cancelled(request: Request, is_cancelled: Out<bool>) {
        is_cancelled.put(request.with(|request| Ok(request.path.is_cancelled()))?)?;
    }

    "TRITONBACKEND_InferenceRequestTimeoutMicroseconds" = request_timeout(request: Request, timeout_us: Out<u64>) {
        timeout_us.put(request.with(|request| Ok(request.client.timeout_us))?)?;
    }

    "TRITONBACKEND_RequestParameterCount" = request_parameter_count(request: Request, count: Out<u32>) {
        count.put(request.with(|request| Ok(request.client.parameters.len() as u32))?)?;
    }

    "TRITONBACKEND_RequestParameter" =
        request_parameter(request: Request, index: u32, key: Out<*const c_char>, kind: Out<u32>, value: Out<*const c_void>) {
        request.with(|request| {
            let parameters = &request.client.parameters;
            let found = parameters.get(index as usize);
            let (name, parameter) = found.ok_or_else(|| out_of_bounds(request, "parameters", index, parameters.len()))?;
            key.put(name.as_ptr())?;
            kind.put(parameter.kind())?;
            value.put(parameter.address())
        })?;
    }

    "TRITONBACKEND_RequestInputCount" = request_input_count(request: Request, count: Out<u32>) {
        count.put(request.with(|request| Ok(request.inputs.count() as u32))?)?;
    }

    "TRITONBACKEND_RequestInputName" = request_input_name(request: Request, index: u32, name: Out<*const c_char>) {
        // The name lives as long as the request's handle.
        name.put(input_at(request, index)?.with(|input| Ok(input.name.as_ptr()))?)?;
    }

    "TRITONBACKEND_RequestInput" = request_input(request: Request, name: Text, input: Out<Handle<InputObject>>) {
        let name = name.name()?;
        let found = request.with(|request| {
            request.inputs.named(&name).ok_or_else(|| request.invalid(&format!("unknown request input name {name}")))
        });
        input.put(found?)?;
    }

    "TRITONBACKEND_RequestInputByIndex" = request_input_by_index(request: Request, index: u32, input: Out<Handle<InputObject>>) {
        input.put(input_at(request, index)?)?;
    }

    "TRITONBACKEND_RequestOutputCount" = request_output_count(request: Request, count: Out<u32>) {
        count.put(request.with(|request| Ok(request.wanted.len() as u32))?)?;
    }

    "TRITONBACKEND_RequestOutputName" = request_output_name(request: Request, index: u32, name: Out<*const c_char>) {
        // The name lives as long as the request's handle.
        let found = request.with(|request| {
            let found = request.wanted.get(index as usize);
            Ok(found.ok_or_else(|| out_of_bounds(request, "requested outputs", index, request.wanted.len()))?.as_ptr())
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
        let name = name.read_if_given();
        let known = bytes.wished();
        let path = request.with(|request| Ok(Arc::clone(&request.path)))?;
        let place = name.and_then(|name| path.output_place(&name));
        let Some((place, capacity)) = place else {
            return Err(Status::unavailable("Output properties are not available").into());
        };
        let (kind, id) = memory_of(place);
        if let (Some(capacity), Some(_)) = (capacity, known) {
            bytes.put_unless_null(capacity);
        }
        memory_type.put(kind)?;
        memory_id.put(id)?;
    }

    "TRITONBACKEND_RequestRelease" = request_release(request: Request, flags: u32) {
        if flags & RELEASE_RESCHEDULE != 0 {
            // If it cannot run again, the backend keeps it.
            let (path, inputs) = request.with(|request| Ok((Arc::clone(&request.path), request.inputs.tensors()?)))?;
            path.reschedule(inputs)?;
        }
        request.take()?;
    }

    "TRITONBACKEND_RequestTrace" = request_trace(request: Request, trace: Out<Handle<TraceObject>>) {
        trace.put(request.with(RequestObject::trace)?)?;
    }
}
