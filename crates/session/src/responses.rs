//! How are the responses to an inference sent?

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use nerite_api::OutputLease;
use nerite_request::{DeliverNumbered, InferResponse, Recycled, Response, ResponsePermit, Status};
use nerite_wire::proto::ExpectedResponse;
use nerite_wire::proto::session::{CalledPacket, encode_answer, encode_inference, v1};

use crate::answer::{failure, lease_message};
use crate::gathered::Gathered;
use crate::in_flight::InFlight;
use crate::outbox::Outbox;
use crate::socket::Packet;

/// Sends the answers of one inference, or of all calls of a prepared one.
pub(crate) struct Answers {
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) route: AnswerRoute,
    pub(crate) expected: Expected,
}

/// The responses that the client expects. If a response is as expected, the answer says only that.
pub(crate) enum Expected {
    /// The same for each call.
    Each(Option<Arc<ExpectedResponse>>),
    /// For the calls of one packet. Their ids are consecutive.
    Of { first_id: u64, calls: Vec<Option<Arc<ExpectedResponse>>> },
}

impl Expected {
    /// The client expects no certain response.
    pub(crate) const NONE: Expected = Expected::Each(None);

    fn of(&self, id: u64) -> Option<&ExpectedResponse> {
        match self {
            Expected::Each(expected) => expected.as_deref(),
            Expected::Of { first_id, calls } => {
                let at = usize::try_from(id.checked_sub(*first_id)?).ok()?;
                calls.get(at)?.as_deref()
            }
        }
    }
}

/// How the answers of an inference are sent.
pub(crate) enum AnswerRoute {
    /// Each answer in a packet of its own.
    Direct(Arc<Outbox>),
    /// The last answer together with the last answers to the other calls of the packet.
    Gathered(Arc<Gathered>),
}

impl AnswerRoute {
    pub(crate) fn send(&self, packet: Packet, last: bool) {
        match self {
            AnswerRoute::Direct(outbox) => outbox.send(packet),
            AnswerRoute::Gathered(gathered) => gathered.send(packet, last),
        }
    }

    /// Answers that a prepared call had the response that the client expects.
    fn send_called(&self, id: u64, permit: Option<Arc<ResponsePermit>>) {
        let called = CalledPacket::new(id);
        match self {
            AnswerRoute::Direct(outbox) if permit.is_none() => outbox.send_bytes(called.bytes()),
            AnswerRoute::Gathered(gathered) if permit.is_none() => gathered.add(called.bytes(), Vec::new()),
            route => {
                let bytes = Bytes::copy_from_slice(called.bytes());
                route.send(Packet { bytes, _permit: permit, ..Packet::default() }, true);
            }
        }
    }
}

impl Answers {
    /// Sends an answer to the inference with that id.
    pub(crate) fn send(&self, id: u64, mut response: Response, placed: Vec<OutputLease>) {
        let (last, permit) = (response.is_last(), response.take_permit());
        if last {
            self.in_flight.release(id);
        }
        let packet = match response.into_content() {
            None => Ok(nothing_follows(id)),
            Some(Ok(response)) if last && placed.is_empty() && self.expects(id, &response) => {
                drop(response);
                self.route.send_called(id, permit);
                return self.in_flight.end();
            }
            Some(Ok(response)) => encode(id, !last, response, placed),
            Some(Err(status)) => Err(status),
        };
        let packet = packet.unwrap_or_else(|status| refusal(id, !last, status));
        self.route.send(Packet { _permit: permit, ..packet }, last);
        if last {
            self.in_flight.end();
        }
    }

    fn expects(&self, id: u64, response: &InferResponse) -> bool {
        self.expected.of(id).is_some_and(|expected| expected.is(response))
    }
}

/// For calls of a prepared inference, whose id is their number.
impl DeliverNumbered for Answers {
    fn deliver(&self, id: u64, response: Response) {
        self.send(id, response, Vec::new());
    }
}

fn encode(
    id: u64,
    more: bool,
    response: Recycled<InferResponse>,
    mut placed: Vec<OutputLease>,
) -> Result<Packet, Status> {
    let messages: Vec<_> = placed.iter().map(placed_message).collect();
    let encoded = encode_inference(id, more, response, &messages);
    let encoded = match encoded {
        Ok(bytes) => bytes,
        Err(status) => {
            placed.into_iter().for_each(OutputLease::cancel);
            return Err(status);
        }
    };
    let descriptors: Vec<OwnedFd> = placed.iter_mut().filter_map(|one| one.borrowed.descriptor.take()).collect();
    Ok(Packet { bytes: encoded, descriptors, ..Packet::default() })
}

fn refusal(id: u64, more: bool, status: Status) -> Packet {
    let message = v1::ServerMessage { more, ..failure(id, &status) };
    Packet { bytes: encode_answer(&message), ..Packet::default() }
}

fn nothing_follows(id: u64) -> Packet {
    let answer = v1::server_message::Answer::Inference(v1::Inference::default());
    let message = v1::ServerMessage { id, answer: Some(answer), ..v1::ServerMessage::default() };
    Packet { bytes: encode_answer(&message), ..Packet::default() }
}

fn placed_message(placed: &OutputLease) -> v1::OutputLease {
    let (output, byte_size) = (placed.output.clone(), placed.byte_size);
    v1::OutputLease { output: output.into(), lease: Some(lease_message(&placed.borrowed)), offset: 0, byte_size }
}
