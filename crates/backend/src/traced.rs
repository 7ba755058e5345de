//! Which points in time does the trace of a request have?
//!
//! The names are Triton's, because tools look for them.

use nerite_request::{Name, Output, RequestTrace};
use nerite_tensor::Tensor;

use crate::{InFlight, Outcome, Times, now_ns};

/// The request was admitted at `arrived`, and enters the queue.
pub(crate) fn begin(trace: &RequestTrace, in_flight: &InFlight, id: &Name, arrived: u64, inputs: &[Tensor]) {
    trace.note_begin(in_flight.name(), in_flight.version(), id);
    trace.note("REQUEST_START", arrived);
    trace.note("QUEUE_START", now_ns());
    for Tensor { name, datatype, shape, data } in inputs {
        trace.note_tensor("TENSOR_QUEUE_INPUT", name, *datatype, shape, data);
    }
}

/// A response with these outputs was made.
pub(crate) fn outputs(trace: &RequestTrace, outputs: &[Output]) {
    for Output { name, datatype, shape, data, .. } in outputs {
        trace.note_tensor("TENSOR_BACKEND_OUTPUT", name, *datatype, shape, data);
    }
}

/// The execution that the request was part of. Responses from the cache, and those that other models compute, have
/// none.
pub(crate) fn ran(trace: &RequestTrace, times: &Times, outcome: Outcome) {
    let has_run = match outcome {
        Outcome::Success | Outcome::Failed | Outcome::Cancelled => times.end > times.start,
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

/// Nothing more is sent for it.
pub(crate) fn end(trace: &RequestTrace) {
    trace.note("REQUEST_END", now_ns());
}
