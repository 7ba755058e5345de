//! Is a request traced, and which points of its way does the front end add?

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nerite_request::{InferRequest, RequestTrace};
use nerite_watchdog::now_ns;

use crate::{Api, Protocol};

/// When a request began to come, if any request is traced now.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceClock(Option<NonZeroU64>);

/// The way of an answer to a client, of a request that is traced. The answer is sent when this is dropped.
#[derive(Debug)]
pub struct Sending {
    trace: Arc<RequestTrace>,
    protocol: Protocol,
}

/// Bytes of an answer that is noted as sent when the socket has taken them.
struct Sent {
    bytes: Bytes,
    _sending: Sending,
}

impl TraceClock {
    /// As it is where nothing is traced.
    pub const OFF: TraceClock = TraceClock(None);

    /// This one, or the other where nothing was traced then.
    #[must_use]
    pub fn or(self, other: TraceClock) -> TraceClock {
        TraceClock(self.0.or(other.0))
    }
}

impl Api {
    /// To be called when a request begins to come. It costs one relaxed load while nothing is traced.
    pub fn trace_clock(&self) -> TraceClock {
        let is_on = self.1.trace.is_some() || self.0.tracer.is_on();
        TraceClock(if is_on { NonZeroU64::new(now_ns()) } else { None })
    }

    /// Traces the request, which has come, if it is one of those that are traced.
    pub fn trace(&self, infer_request: &mut InferRequest, protocol: Protocol, clock: TraceClock) {
        let Some(begun) = clock.0 else { return };
        let own = self.1.trace.clone();
        let Some(trace) = own.or_else(|| self.0.tracer.sample(&infer_request.model)) else { return };
        let (start, end) = match protocol {
            Protocol::Http => ("HTTP_RECV_START", "HTTP_RECV_END"),
            Protocol::Grpc => ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
        };
        trace.note(start, begun.get());
        trace.note(end, now_ns());
        infer_request.trace = Some(trace);
    }

    /// As [`Api::trace`], for a request that came in one packet.
    pub(crate) fn trace_packet(&self, infer_request: &mut InferRequest) {
        if self.0.tracer.is_on() {
            infer_request.trace = self.0.tracer.sample(&infer_request.model);
        }
    }

    /// Waits until the traces of all requests that have ended are in their files, at most for `patience`.
    pub fn flush_traces(&self, patience: Duration) {
        self.0.tracer.flush(patience);
    }
}

impl Sending {
    /// The way of the answer to this request, if it is traced. The request comes back: a future that lent it out would keep room for it.
    pub fn of(infer_request: InferRequest, protocol: Protocol) -> (InferRequest, Option<Sending>) {
        let sending = infer_request.trace.as_ref().map(|trace| Sending::on(trace, protocol));
        (infer_request, sending)
    }

    /// The way of one answer to the request of this trace.
    pub fn on(trace: &Arc<RequestTrace>, protocol: Protocol) -> Sending {
        Sending { trace: Arc::clone(trace), protocol }
    }

    /// The answer is there.
    pub fn begins(&self) {
        self.trace.note(self.points().0, now_ns());
    }

    /// Passes the answer of a request on, which is there, and may be traced.
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

    /// The last bytes of the answer.
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
