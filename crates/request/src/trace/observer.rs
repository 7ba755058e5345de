//! How are the points of a request reported as the request passes them?

use std::any::Any;
use std::sync::Weak;

use nerite_memory::Buffer;
use nerite_tensor::{DataType, Name, Shape};

use super::RequestTrace;

/// Receives the points of one request. Its functions are called on the thread that does the request's work, so they must not block. It is dropped when nobody
/// uses the trace any more.
pub trait TraceObserver: Any + Send + Sync {
    /// The request begins: its model, that model's version, and the client's own name for the request.
    fn began(&self, model: &Name, version: &Name, request_id: &Name);

    /// The request passed this point, at this time in ns. All points use the same clock.
    fn passed(&self, point: &'static str, ns: u64);

    /// Its model reports a point of its own.
    fn reported(&self, point: &Name, ns: u64);

    /// One of its tensors, at this point.
    fn tensor(&self, point: &'static str, name: &Name, datatype: DataType, shape: &Shape, data: &Buffer);

    /// The observer of a request that its model makes for it.
    fn child(&self, made: NewTrace) -> Box<dyn TraceObserver>;
}

/// A trace that is being made.
pub struct NewTrace {
    /// Its id.
    pub id: u64,
    /// The id of the parent request.
    pub parent: u64,
    /// The trace, once it is made.
    pub trace: Weak<RequestTrace>,
}
