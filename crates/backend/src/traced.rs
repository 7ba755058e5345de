//! Which points in time does the trace of a request have?
//!
//! The names are Triton's, because tools look for them.

use nerite_request::{Name, Output, RequestTrace};
use nerite_tensor::Tensor;

use crate::{InFlight, Outcome, Times, now_ns};

/// Notes that the request was admitted at `arrived`, and that it enters the queue now.
pub(crate) fn begin(trace: &RequestTrace, in_flight: &InFlight, id: &Name, arrived: u64, inputs: &[Tensor]) {
    trace.note_begin(in_flight.name(), in_flight.version(), id);
    trace.note("REQUEST_START", arrived);
    trace.note("QUEUE_START", now_ns());
    for Tensor { name, datatype, shape, data } in inputs {
        trace.note_tensor("TENSOR_QUEUE_INPUT", name, *datatype, shape, data);
    }
}

/// Notes the outputs of a response.
pub(crate) fn outputs(trace: &RequestTrace, outputs: &[Output]) {
    for Output { name, datatype, shape, data, .. } in outputs {
        trace.note_tensor("TENSOR_BACKEND_OUTPUT", name, *datatype, shape, data);
    }
}

/// Notes the execution that the request was part of. A response from the cache, or one that other models compute, has no execution.
pub(crate) fn ran(trace: &RequestTrace, times: &Times, outcome: Outcome) {
    let has_run = match outcome {
        Outcome::Success | Outcome::Failed | Outcome::FailedElsewhere | Outcome::Cancelled => times.end > times.start,
        Outcome::FromCache | Outcome::Rejected => false,
    };
    if !has_run || trace.is_composed() {
        return;
    }
    trace.note("COMPUTE_START", times.start);
    trace.note("COMPUTE_INPUT_END", times.input_end);
    trace.note("COMPUTE_OUTPUT_START", times.infer_end);
    trace.note("COMPUTE_END", times.end);
}

/// Notes the end of the request. No response follows.
pub(crate) fn end(trace: &RequestTrace) {
    trace.note("REQUEST_END", now_ns());
}
