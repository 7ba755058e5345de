//! How does an inference of a session begin?

use std::sync::Arc;

use bytes::Bytes;
use nerite_api::{Admission, Api, Target};
use nerite_request::{Recycled, Status, TRACEPARENT, TraceContext};
use nerite_wire::proto::session::v1;
use nerite_wire::proto::{Chain, InferMessage, Malformed};

use crate::limits::{DESCRIPTORS_MAX, PACKET_BYTES_MAX, SHORT_BYTES_MAX};
use crate::responses::{AnswerRoute, Answers, Expected};
use crate::session::Session;
use crate::waiting::{BegunInference, RemainingWork};

/// Starts an inference, or lets it wait for its model. The thread that makes a response sends it to the outbox. The caller reports an `Err`.
pub(crate) async fn infer(id: u64, call: v1::Infer, session: &mut Session) -> Result<(), Status> {
    if id == 0 {
        return Err(Status::invalid("an inference needs an id other than 0: its answer repeats it"));
    }
    let v1::Infer { request, leased_outputs, trace } = call;
    if leased_outputs.len() > DESCRIPTORS_MAX {
        return Err(Status::invalid(format!(
            "{} outputs are to be placed in leases, at most {DESCRIPTORS_MAX} descriptors fit in an answer",
            leased_outputs.len()
        )));
    }
    // A packet that is not small keeps the whole buffer in which it arrived.
    let trace_bytes = trace.as_ref().map_or(0, |trace| trace.trace_parent.len() + trace.trace_state.len());
    let sent_bytes = request.len() + trace_bytes;
    let packet_bytes = if sent_bytes > SHORT_BYTES_MAX { PACKET_BYTES_MAX } else { request.len() };
    let message = read(request, &session.api)?;
    let cancel = session.in_flight.begin(id, packet_bytes)?;
    let parent = trace_parent(&session.api, trace);
    let begun = BegunInference { message, leased_outputs, parent, cancel };
    let (model, version) = (&begun.message.model, &begun.message.version);
    let admitted = session.find_unless_waiting(model, || session.api.accept(Target::of_any(model, version)));
    let started = match admitted {
        Err(refused) => Err(refused),
        Ok(Some(admission)) => return session.start(id, begun, Ok(admission)).await,
        Ok(None) => {
            let model = begun.message.model.clone();
            // The bytes of the packet are charged with the inference already, so this wait charges 0.
            session.wait_for(&model, id, 0, RemainingWork::Infer(Box::new(begun)))
        }
    };
    started.inspect_err(|_| session.end_refused(id))
}

impl Session {
    /// Starts an inference that waited for its model.
    pub(crate) async fn start_loaded(
        &mut self,
        id: u64,
        begun: BegunInference,
        loaded: Result<(), Status>,
    ) -> Result<(), Status> {
        let target = Target::of_any(&begun.message.model, &begun.message.version);
        let admitted = loaded.and_then(|()| self.api.accept(target));
        self.start(id, begun, admitted).await
    }

    async fn start(&self, id: u64, begun: BegunInference, admitted: Result<Admission, Status>) -> Result<(), Status> {
        let BegunInference { mut message, leased_outputs, parent, cancel } = begun;
        let (in_flight, route) = (Arc::clone(&self.in_flight), AnswerRoute::Direct(Arc::clone(&self.outbox)));
        let answers = Answers { in_flight, route, expected: Expected::NONE };
        let sink = move |response, placed| answers.send(id, response, placed);
        let admitted = admitted.and_then(|admission| Ok((admission, message.take_infer_request(|_| Ok(()))?)));
        // This frees the memory that the decoded message took from the budget.
        drop(message);
        let started = match admitted {
            Err(refused) => Err(refused),
            Ok((admission, infer_request)) if self.scope.may_begin_here(&infer_request, &leased_outputs) => {
                self.scope.infer(admission, infer_request, leased_outputs, parent, cancel, sink)
            }
            Ok((admission, infer_request)) => {
                // The check takes long or may wait. The session's next packet waits for it, so that requests start in their order.
                let scope = Arc::clone(&self.scope);
                let begin = move || scope.infer(admission, infer_request, leased_outputs, parent, cancel, sink);
                self.api.begin_aside(begin).await.flatten()
            }
        };
        // After a refusal the sink is never called.
        started.inspect_err(|_| self.end_refused(id))
    }

    /// Ends an inference that was begun and then refused.
    fn end_refused(&self, id: u64) {
        self.in_flight.release(id);
        self.in_flight.end();
    }
}

/// Decodes the request inside a packet. Its tensors are not checked yet.
pub(crate) fn read(request: Bytes, api: &Api) -> Result<Recycled<InferMessage>, Status> {
    let tensors_max = |model: &str, version: &str| api.tensors_max(Target::of_any(model, version)).map_err(NotRead);
    let message = InferMessage::read_for(&Chain::from(request), tensors_max).map_err(|NotRead(status)| status)?;
    api.note_inference(&message.model, &message.version, &message.id);
    Ok(message)
}

/// The client's span that a packet names, if it is well-formed and spans are exported.
pub(crate) fn trace_parent(api: &Api, trace: Option<Box<v1::TraceContext>>) -> Option<Box<TraceContext>> {
    let trace = trace?;
    let header = |name| if name == TRACEPARENT { &trace.trace_parent[..] } else { &trace.trace_state };
    api.trace_parent(|name| Some(header(name))).map(Box::new)
}

/// Why a request inside a packet was not decoded.
struct NotRead(Status);

impl From<Malformed> for NotRead {
    fn from(fault: Malformed) -> NotRead {
        NotRead(match fault {
            Malformed::TooMany(refused) => refused.into(),
            fault => Status::invalid(format!("the inference request is not understood: {fault}")),
        })
    }
}
