//! How does a backend make a request to another model?

use std::ffi::c_char;
use std::sync::Arc;

use nerite_request::{Parameter, SequenceId, Status};

use super::exports;
use crate::abi::{Opaque, Out, Text};
use crate::fault::Fault;
use crate::objects::{Allocating, Allocator, InferenceRequest, InferenceResponse, Respond, ServerObject, c_text};
use crate::objects::{Kept, RequestReleaseFn, RespondFn};
use crate::table::Handle;

type Request = Handle<InferenceRequest>;

/// The first and the last request of a sequence.
const SEQUENCE_START: u32 = 1;
const SEQUENCE_END: u32 = 2;
/// Bytes of a sequence's name, as in Triton.
const SEQUENCE_NAME_MAX: usize = 128;

/// The version with this number; `None`, which means the highest, for a negative one.
pub fn version_of(number: i64) -> Option<i64> {
    (number >= 0).then_some(number)
}

fn set_parameter(request: Request, key: Text, value: Parameter) -> Result<(), Fault> {
    request.get()?.content().parameters.insert(key.read()?, value);
    Ok(())
}

exports! {
    "TRITONSERVER_InferenceRequestNew" = request_new(
        request: Out<Request>,
        server: Handle<ServerObject>,
        model: Text,
        version: i64,
    ) {
        let (server, model, version) = (server.get()?, model.read()?, version_of(version));
        let config = server.models("TRITONSERVER_InferenceRequestNew")?.config(&model, version)?;
        let has_labels = config.output.iter().any(|output| !output.label_filename.is_empty());
        request.put(Handle::to(Arc::new(InferenceRequest::new(server, model, version, has_labels)))?)?;
    }

    "TRITONSERVER_InferenceRequestDelete" = request_delete(request: Request) {
        if !request.is_null() {
            request.get()?.check_not_in_flight()?;
            request.take()?;
        }
    }

    "TRITONSERVER_InferenceRequestId" = id(request: Request, id: Out<*const c_char>) {
        // The text lives until it is set again, or the request's handle is deleted.
        id.put(request.get()?.content().id.as_ptr())?;
    }

    "TRITONSERVER_InferenceRequestSetId" = set_id(request: Request, id: Text) {
        request.get()?.content().id = c_text(&id.read()?);
    }

    "TRITONSERVER_InferenceRequestFlags" = flags(request: Request, flags: Out<u32>) {
        let request = request.get()?;
        let content = request.content();
        let start = if content.sequence.start { SEQUENCE_START } else { 0 };
        let end = if content.sequence.end { SEQUENCE_END } else { 0 };
        flags.put(start | end)?;
    }

    "TRITONSERVER_InferenceRequestSetFlags" = set_flags(request: Request, flags: u32) {
        let request = request.get()?;
        let mut content = request.content();
        content.sequence.start = flags & SEQUENCE_START != 0;
        content.sequence.end = flags & SEQUENCE_END != 0;
    }

    "TRITONSERVER_InferenceRequestCorrelationId" = correlation_id(request: Request, id: Out<u64>) {
        id.put(match &request.get()?.content().sequence.id {
            SequenceId::None => 0,
            SequenceId::Number(number) => *number,
            SequenceId::Text(_) => return Err(Status::invalid("given request's correlation id is not an unsigned int").into()),
        })?;
    }

    "TRITONSERVER_InferenceRequestCorrelationIdString" = correlation_id_string(request: Request, id: Out<*const c_char>) {
        let request = request.get()?;
        let content = request.content();
        if !matches!(content.sequence.id, SequenceId::Text(_)) {
            return Err(Status::invalid("given request's correlation id is not a string").into());
        }
        id.put(content.sequence_text.as_ptr())?;
    }

    "TRITONSERVER_InferenceRequestSetCorrelationId" = set_correlation_id(request: Request, id: u64) {
        request.get()?.content().sequence.id = if id == 0 { SequenceId::None } else { SequenceId::Number(id) };
    }

    "TRITONSERVER_InferenceRequestSetCorrelationIdString" = set_correlation_id_string(request: Request, id: Text) {
        let (request, id) = (request.get()?, id.read()?);
        if id.len() > SEQUENCE_NAME_MAX {
            return Err(Status::invalid(format!(
                "string correlation ID cannot be longer than {SEQUENCE_NAME_MAX} characters; this one has {}", id.len()
            )).into());
        }
        request.content().set_sequence_text(id);
    }

    "TRITONSERVER_InferenceRequestCancel" = cancel(request: Request) {
        request.get()?.cancel_inference()?;
    }

    "TRITONSERVER_InferenceRequestIsCancelled" = is_cancelled(request: Request, is_cancelled: Out<bool>) {
        is_cancelled.put(request.get()?.is_cancelled()?)?;
    }

    "TRITONSERVER_InferenceRequestPriority" = priority(request: Request, priority: Out<u32>) {
        let found = request.get()?.content().priority;
        priority.put(u32::try_from(found).map_err(|_| {
            Status::invalid(format!("the request's priority {found} does not fit in 32 bits; ask TRITONSERVER_InferenceRequestPriorityUInt64"))
        })?)?;
    }

    "TRITONSERVER_InferenceRequestPriorityUInt64" = priority_u64(request: Request, priority: Out<u64>) {
        priority.put(request.get()?.content().priority)?;
    }

    "TRITONSERVER_InferenceRequestSetPriority" = set_priority(request: Request, priority: u32) {
        request.get()?.content().priority = u64::from(priority);
    }

    "TRITONSERVER_InferenceRequestSetPriorityUInt64" = set_priority_u64(request: Request, priority: u64) {
        request.get()?.content().priority = priority;
    }

    "TRITONSERVER_InferenceRequestTimeoutMicroseconds" = timeout_us(request: Request, timeout_us: Out<u64>) {
        timeout_us.put(request.get()?.content().timeout_us)?;
    }

    "TRITONSERVER_InferenceRequestSetTimeoutMicroseconds" = set_timeout_us(request: Request, timeout_us: u64) {
        request.get()?.content().timeout_us = timeout_us;
    }

    "TRITONSERVER_InferenceRequestSetStringParameter" = set_string_parameter(request: Request, key: Text, value: Text) {
        set_parameter(request, key, Parameter::String(value.read()?))?;
    }

    "TRITONSERVER_InferenceRequestSetIntParameter" = set_int_parameter(request: Request, key: Text, value: i64) {
        set_parameter(request, key, Parameter::Int(value))?;
    }

    "TRITONSERVER_InferenceRequestSetBoolParameter" = set_bool_parameter(request: Request, key: Text, value: u8) {
        set_parameter(request, key, Parameter::Bool(value != 0))?;
    }

    "TRITONSERVER_InferenceRequestSetDoubleParameter" = set_double_parameter(request: Request, key: Text, value: f64) {
        set_parameter(request, key, Parameter::Double(value))?;
    }

    "TRITONSERVER_InferenceRequestSetReleaseCallback" =
        set_release(request: Request, function: Option<RequestReleaseFn<InferenceRequest>>, userp: Opaque) {
        request.get()?.content().release = function.map(|function| (function, Kept(userp.address())));
    }

    "TRITONSERVER_InferenceRequestSetResponseCallback" = set_response(
        request: Request,
        allocator: Handle<Allocator>,
        allocator_userp: Opaque,
        function: Option<RespondFn<InferenceResponse>>,
        userp: Opaque,
    ) {
        let Some(function) = function else { return Err(Fault::misuse("the response function is NULL")) };
        let request = request.get()?;
        let allocating = Allocating {
            allocator: allocator.get()?,
            handle: allocator,
            userp: Kept(allocator_userp.address()),
            owner: Arc::clone(&request.server.owner),
        };
        request.content().respond = Some(Respond { allocating, function, userp: Kept(userp.address()) });
    }
}
