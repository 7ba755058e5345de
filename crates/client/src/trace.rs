//! How does a request say to which trace of the program it belongs?

use nerite_request::{TRACEPARENT, TRACESTATE, TraceContext};
use nerite_wire::proto::session::v1;

/// The headers of a request within a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace<'t> {
    parent: &'t str,
    /// Empty if there is none.
    state: &'t str,
}

impl<'t> Trace<'t> {
    /// These headers, without a malformed `state`. `None` if `parent` is malformed.
    pub(crate) fn of(parent: &'t str, state: &'t str) -> Option<Trace<'t>> {
        // The server would ignore what its reader does not accept.
        let read = TraceContext::read(parent.as_bytes(), Some(state.as_bytes()))?;
        Some(Trace { parent, state: if read.state.is_empty() { "" } else { state } })
    }

    /// Names and values, for HTTP and gRPC.
    pub(crate) fn headers(self) -> impl Iterator<Item = (&'static str, &'t str)> {
        [(TRACEPARENT, self.parent), (TRACESTATE, self.state)].into_iter().filter(|(_, value)| !value.is_empty())
    }

    /// As a field of a session's packet.
    pub(crate) fn message(self) -> v1::TraceContext {
        let (trace_parent, trace_state) = (self.parent.to_owned().into(), self.state.to_owned().into());
        v1::TraceContext { trace_parent, trace_state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    #[track_caller]
    fn check(parent: &str, state: &str, sent: &[(&str, &str)]) {
        let headers: Vec<_> = Trace::of(parent, state).into_iter().flat_map(Trace::headers).collect();
        assert_eq!(headers, sent, "{parent:?} {state:?}");
    }

    #[test]
    fn only_what_the_server_accepts_is_sent() {
        check(PARENT, "", &[(TRACEPARENT, PARENT)]);
        check(PARENT, "a=1", &[(TRACEPARENT, PARENT), (TRACESTATE, "a=1")]);
        check(PARENT, &"a".repeat(513), &[(TRACEPARENT, PARENT)]);
        check(PARENT, "a=\n", &[(TRACEPARENT, PARENT)]);
        check("", "a=1", &[]);
        check("garbage", "", &[]);
    }
}
