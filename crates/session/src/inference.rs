//! How is an inference of a session answered?

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nerite_api::{OutputLease, Scope, aside};
use nerite_request::{InferRequest, InferResponse, Response, Status};
use nerite_wire::proto::session::{encode_answer, encode_inference, v1};
use nerite_wire::proto::{Chain, ExpectedResponse, InferMessage, Malformed};

use crate::answer::{failure, lease_message};
use crate::gathered::Gathered;
use crate::in_flight::InFlight;
use crate::limits::{COPIED_BYTES_MAX, DESCRIPTORS_MAX, PACKET_BYTES_MAX};
use crate::outbox::Outbox;
use crate::session::Session;
use crate::socket::Packet;

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
    let packet_bytes = if request.len() > COPIED_BYTES_MAX { PACKET_BYTES_MAX } else { request.len() };
    let infer_request = read(request, scope)?;
    session.want_model(&infer_request.model).await?;
    let cancel = in_flight.begin(id, packet_bytes)?;
    let route = AnswerRoute::Direct(Arc::clone(outbox));
    let answers = Answers { id, in_flight: Arc::clone(in_flight), route, expected: None };
    let sink = move |response, placed| answers.send(response, placed);
    let started = if infer_request.is_light() {
        scope.infer(infer_request, leased_outputs, cancel, sink)
    } else {
        // Its check takes long. The session's next packet waits, so that requests start in their order.
        let scope = Arc::clone(scope);
        aside(move || scope.infer(infer_request, leased_outputs, cancel, sink)).await.flatten()
    };
    // After a refusal the sink is never called.
    started.inspect_err(|_| {
        in_flight.release(id);
        in_flight.end();
    })
}

/// Decodes the request inside a packet.
pub(crate) fn read(request: bytes::Bytes, scope: &Scope) -> Result<InferRequest, Status> {
    let message = InferMessage::read_for(&Chain::from(request), |model, version| scope.tensors_max(model, version))
        .map_err(|error| match error {
            Malformed::TooMany(refused) => refused.into(),
            error => Status::invalid(format!("the inference request is not understood: {error}")),
        })?;
    message.into_infer_request(|_| Ok(()))
}

/// Sends the answers of one inference.
pub(crate) struct Answers {
    pub(crate) id: u64,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) route: AnswerRoute,
    /// The response that the client expects. It is answered without its content.
    pub(crate) expected: Option<Arc<ExpectedResponse>>,
}

/// How the answers of an inference are sent.
pub(crate) enum AnswerRoute {
    /// Each separately.
    Direct(Arc<Outbox>),
    /// The last one together with those of other calls of its packet.
    Gathered(Arc<Gathered>),
}

impl AnswerRoute {
    pub(crate) fn send(&self, packet: Packet, last: bool) {
        match self {
            AnswerRoute::Direct(outbox) => outbox.send(packet),
            AnswerRoute::Gathered(gathered) => gathered.send(packet, last),
        }
    }
}

impl Answers {
    pub(crate) fn send(&self, mut response: Response, placed: Vec<OutputLease>) {
        let (last, permit) = (response.is_last(), response.take_permit());
        if last {
            self.in_flight.release(self.id);
        }
        let packet = match response.into_content() {
            None => Ok(self.nothing_follows()),
            Some(Ok(response)) if last && placed.is_empty() && self.expects(&response) => Ok(self.called()),
            Some(Ok(response)) => self.encode(!last, response, placed),
            Some(Err(status)) => Err(status),
        };
        let packet = packet.unwrap_or_else(|status| self.refusal(!last, status));
        self.route.send(Packet { _permit: permit, ..packet }, last);
        if last {
            self.in_flight.end();
        }
    }

    fn encode(&self, more: bool, response: InferResponse, mut placed: Vec<OutputLease>) -> Result<Packet, Status> {
        let messages: Vec<_> = placed.iter().map(placed_message).collect();
        let encoded = encode_inference(self.id, more, response, &messages);
        let encoded = match encoded {
            Ok(bytes) => bytes,
            Err(status) => {
                placed.into_iter().for_each(OutputLease::cancel);
                return Err(status);
            }
        };
        let descriptors: Vec<OwnedFd> = placed.iter_mut().filter_map(|one| one.loan.descriptor.take()).collect();
        Ok(Packet { bytes: encoded, descriptors, ..Packet::default() })
    }

    fn refusal(&self, more: bool, status: Status) -> Packet {
        let message = v1::ServerMessage { more, ..failure(self.id, &status) };
        Packet { bytes: encode_answer(&message), ..Packet::default() }
    }

    fn expects(&self, response: &InferResponse) -> bool {
        self.expected.as_ref().is_some_and(|expected| expected.is(response))
    }

    fn called(&self) -> Packet {
        let answer = Some(v1::server_message::Answer::Called(v1::Called {}));
        let message = v1::ServerMessage { id: self.id, answer, ..v1::ServerMessage::default() };
        Packet { bytes: encode_answer(&message), ..Packet::default() }
    }

    fn nothing_follows(&self) -> Packet {
        let answer = v1::server_message::Answer::Inference(v1::Inference::default());
        let message = v1::ServerMessage { id: self.id, answer: Some(answer), ..v1::ServerMessage::default() };
        Packet { bytes: encode_answer(&message), ..Packet::default() }
    }
}

fn placed_message(placed: &OutputLease) -> v1::OutputLease {
    let (output, byte_size) = (placed.output.clone(), placed.byte_size);
    v1::OutputLease { output: output.into(), lease: Some(lease_message(&placed.loan)), offset: 0, byte_size }
}
