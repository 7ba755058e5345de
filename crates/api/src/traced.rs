//! Is a request traced, and which timestamps does the front end add?

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nerite_request::{InferRequest, RequestTrace, Status, TRACEPARENT, TRACESTATE, TraceContext};
use nerite_trace::RecentRequest;
use nerite_watchdog::now_ns;

use crate::{Api, Protocol};

/// The time when a request began to arrive, if any request is traced now.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceClock(Option<NonZeroU64>);

/// The sending of a response, for a traced request. The response counts as sent when this is dropped.
#[derive(Debug)]
pub struct Sending {
    trace: Arc<RequestTrace>,
    protocol: Protocol,
}

/// Bytes of a response that counts as sent when the socket has taken them.
struct Sent {
    bytes: Bytes,
    _sending: Sending,
}

impl TraceClock {
    /// No request is traced.
    pub const OFF: TraceClock = TraceClock(None);

    /// This clock, or the other one if no request was traced when this one was read.
    #[must_use]
    pub fn or(self, other: TraceClock) -> TraceClock {
        TraceClock(self.0.or(other.0))
    }
}

impl Api {
    /// Call this when a request begins to arrive. It costs one relaxed load while no request is traced.
    pub fn trace_clock(&self) -> TraceClock {
        let is_on = self.client.trace.is_some() || self.inner.tracer.is_on();
        TraceClock(if is_on { NonZeroU64::new(now_ns()) } else { None })
    }

    /// The client's span that the headers of a request name. `None` if no spans are exported.
    pub fn trace_parent<'h>(&self, header: impl Fn(&'static str) -> Option<&'h [u8]>) -> Option<TraceContext> {
        let has_spans = self.inner.tracer.has_spans();
        if !has_spans && !self.logs_requests() {
            return None;
        }
        let parent = TraceContext::read(header(TRACEPARENT)?, header(TRACESTATE));
        self.note_trace(parent.as_ref());
        parent.filter(|_| has_spans)
    }

    /// Begins the trace of a request that has arrived, if it is selected for tracing. `parent` is called only if something is traced.
    pub fn trace(
        &self,
        infer_request: &mut InferRequest,
        protocol: Protocol,
        clock: TraceClock,
        parent: impl FnOnce() -> Option<TraceContext>,
    ) {
        let Some(begun) = clock.0 else { return };
        let own = self.client.trace.clone();
        let Some(trace) = own.or_else(|| self.inner.tracer.sample(&infer_request.model, parent(), self.peer())) else {
            return;
        };
        let (start, end) = match protocol {
            Protocol::Http => ("HTTP_RECV_START", "HTTP_RECV_END"),
            Protocol::Grpc => ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
        };
        trace.note(start, begun.get());
        trace.note(end, now_ns());
        self.note_trace(trace.context().as_ref());
        infer_request.trace = Some(trace);
    }

    /// As [`Api::trace`], for a request that arrived in one packet, without headers. `parent` is the client's span above it.
    pub(crate) fn trace_packet(&self, model: &str, parent: Option<Box<TraceContext>>) -> Option<Arc<RequestTrace>> {
        if !self.inner.tracer.is_on() {
            return None;
        }
        let trace = self.inner.tracer.sample(model, parent.map(|context| *context), self.peer())?;
        self.note_trace(trace.context().as_ref());
        Some(trace)
    }

    /// The recent requests with numbers greater than `after`: of all clients for the operator, and of the client itself
    /// for others. Only models that the client's token allows. Requests are recorded for a few seconds after each call,
    /// so a viewer must call again and again.
    pub fn recent_requests(&self, after: u64) -> Result<Vec<Arc<RecentRequest>>, Status> {
        self.check_running()?;
        let too_many = |others| {
            Status::unavailable(format!("{others} clients look at their requests, which is the most; try again later"))
        };
        let mut seen = self.inner.tracer.recent_after(self.peer(), after).map_err(too_many)?;
        if let Some(token) = self.token() {
            seen.retain(|request| request.models().all(|model| token.allows_model(model)));
        }
        Ok(seen)
    }

    /// Waits until the traces of all ended requests are in their files or at the collector, for `patience` at most.
    pub fn flush_traces(&self, patience: Duration) {
        self.inner.tracer.flush(patience);
    }
}

impl Sending {
    /// The sending of the response to this request, if it is traced.
    pub fn of(infer_request: &InferRequest, protocol: Protocol) -> Option<Sending> {
        infer_request.trace.as_ref().map(|trace| Sending::on(trace, protocol))
    }

    /// The sending of one response to the request of this trace.
    pub fn on(trace: &Arc<RequestTrace>, protocol: Protocol) -> Sending {
        Sending { trace: Arc::clone(trace), protocol }
    }

    /// Notes that the response is ready and is being sent.
    pub fn begins(&self) {
        self.trace.note(self.points().0, now_ns());
    }

    /// Notes that `answer` is being sent, if its request is traced, and returns it.
    pub fn begins_with<T>(sending: Option<&Sending>, answer: T) -> T {
        if let Some(sending) = sending {
            sending.begins();
        }
        answer
    }

    fn points(&self) -> (&'static str, &'static str) {
        match self.protocol {
            Protocol::Http => ("HTTP_SEND_START", "HTTP_SEND_END"),
            Protocol::Grpc => ("GRPC_SEND_START", "GRPC_SEND_END"),
        }
    }

    /// The last bytes of the response. It counts as sent when they are dropped.
    pub fn keep(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Sent { bytes, _sending: self })
    }
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.trace.note(self.points().1, now_ns());
    }
}
