//! How does an inference of a session begin?

use std::sync::Arc;

use bytes::Bytes;
use nerite_api::{Scope, aside};
use nerite_request::{InferRequest, Status};
use nerite_wire::proto::session::v1;
use nerite_wire::proto::{Chain, InferMessage, Malformed};

use crate::limits::{DESCRIPTORS_MAX, PACKET_BYTES_MAX, SHORT_BYTES_MAX};
use crate::responses::{AnswerRoute, Answers};
use crate::session::Session;

/// Starts an inference. The thread that makes a response sends it to the outbox. The caller reports an `Err`.
pub(crate) async fn infer(id: u64, call: v1::Infer, session: &Session) -> Result<(), Status> {
    let Session { scope, in_flight, outbox, .. } = session;
    if id == 0 {
        return Err(Status::invalid("an inference needs an id other than 0: its answer repeats it"));
    }
    let v1::Infer { request, leased_outputs } = call;
    if leased_outputs.len() > DESCRIPTORS_MAX {
        return Err(Status::invalid(format!(
            "{} outputs are to be placed in leases, at most {DESCRIPTORS_MAX} descriptors fit in an answer",
            leased_outputs.len()
        )));
    }
    // A packet that is not small keeps the whole buffer in which it arrived.
    let packet_bytes = if request.len() > SHORT_BYTES_MAX { PACKET_BYTES_MAX } else { request.len() };
    let infer_request = read(request, scope)?;
    session.api.note_request(&infer_request);
    let cancel = in_flight.begin(id, packet_bytes)?;
    let route = AnswerRoute::Direct(Arc::clone(outbox));
    let answers = Answers { in_flight: Arc::clone(in_flight), route, expected: None };
    let sink = move |response, placed| answers.send(id, response, placed);
    let (model, version) = (&infer_request.model, &infer_request.version);
    let started = match session.find_or_load(model, || scope.take_on(model, version)).await {
        Err(refused) => Err(refused),
        Ok(admission) if infer_request.is_light() => {
            scope.infer(admission, infer_request, leased_outputs, cancel, sink)
        }
        Ok(admission) => {
            // Its check takes long. The session's next packet waits, so that requests start in their order.
            let scope = Arc::clone(scope);
            aside(move || scope.infer(admission, infer_request, leased_outputs, cancel, sink)).await.flatten()
        }
    };
    // After a refusal the sink is never called.
    started.inspect_err(|_| {
        in_flight.release(id);
        in_flight.end();
    })
}

/// Decodes the request inside a packet.
pub(crate) fn read(request: Bytes, scope: &Scope) -> Result<InferRequest, Status> {
    let message = InferMessage::read_for(&Chain::from(request), |model, version| scope.tensors_max(model, version))
        .map_err(|error| match error {
            Malformed::TooMany(refused) => refused.into(),
            error => Status::invalid(format!("the inference request is not understood: {error}")),
        })?;
    message.into_infer_request(|_| Ok(()))
}
