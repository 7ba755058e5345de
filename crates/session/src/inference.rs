//! How does an inference of a session become packets?

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nerite_api::{OutputLease, Scope, aside};
use nerite_budget::{Account, Charge};
use nerite_request::{Cancel, InferRequest, Response, Status};
use nerite_wire::proto::session::{encode_answer, encode_inference, v1};
use nerite_wire::proto::{Chain, InferMessage, Malformed};
use tokio::sync::Notify;

use crate::call::{failure, lease_message};
use crate::limits::{COPIED_BYTES_MAX, DESCRIPTORS_MAX, INFERENCE_BYTES, INFERENCES_MAX, PACKET_BYTES_MAX};
use crate::outbox::Outbox;
use crate::socket::Packet;

/// The inferences of one session whose last response has not been sent.
pub(crate) struct InFlight {
    account: Account,
    begun: Mutex<HashMap<u64, Begun>>,
    /// Those whose id is still taken, and those whose last response is just being sent.
    unsent: AtomicUsize,
    ended: Notify,
}

/// An inference whose last response was not made yet.
struct Begun {
    cancel: Cancel,
    _charge: Charge,
}

impl InFlight {
    /// Inferences that `account` is charged for.
    pub(crate) fn new(account: &Account) -> InFlight {
        let (begun, unsent, ended) = (Mutex::default(), AtomicUsize::new(0), Notify::new());
        InFlight { account: account.clone(), begun, unsent, ended }
    }

    /// An inference that keeps so many bytes of packets.
    fn begin(&self, id: u64, packet_bytes: usize) -> Result<Cancel, Status> {
        let mut begun = self.lock();
        if begun.len() >= INFERENCES_MAX {
            return Err(Status::unavailable(format!(
                "{INFERENCES_MAX} inferences of this session are in flight; wait for one of their answers"
            )));
        }
        if begun.contains_key(&id) {
            return Err(Status::invalid(format!("an inference of id {id} is in flight; ids must differ")));
        }
        let cancel = Cancel::new();
        let charge = self.account.charge(INFERENCE_BYTES + packet_bytes);
        begun.insert(id, Begun { cancel: cancel.clone(), _charge: charge });
        self.unsent.fetch_add(1, Ordering::AcqRel);
        Ok(cancel)
    }

    /// The id may be used again: to be said before the last response goes, because its client may be quick.
    fn release(&self, id: u64) {
        let ended = self.lock().remove(&id);
        drop(ended);
    }

    /// The last response has been sent.
    fn end(&self) {
        self.unsent.fetch_sub(1, Ordering::AcqRel);
        self.ended.notify_one();
    }

    pub(crate) fn cancel(&self, id: u64) {
        // A request that waits is answered inside `Cancel::cancel`, and its answer takes the lock.
        let begun = self.lock().get(&id).map(|begun| begun.cancel.clone());
        if let Some(begun) = begun {
            begun.cancel();
        }
    }

    pub(crate) fn cancel_all(&self) {
        let begun: Vec<Cancel> = self.lock().values().map(|begun| begun.cancel.clone()).collect();
        begun.iter().for_each(Cancel::cancel);
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Ready when none is left.
    pub(crate) async fn drained(&self) {
        while self.unsent.load(Ordering::Acquire) > 0 {
            self.ended.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks. Responses go to the outbox from the thread that made them; the Err is told by the caller.
pub(crate) async fn infer(
    id: u64,
    call: v1::Infer,
    scope: &Arc<Scope>,
    in_flight: &Arc<InFlight>,
    outbox: &Arc<Outbox>,
) -> Result<(), Status> {
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
    // A packet that is not small keeps the whole buffer that it came in.
    let packet_bytes = if request.len() > COPIED_BYTES_MAX { PACKET_BYTES_MAX } else { request.len() };
    let infer_request = read(request, scope)?;
    let cancel = in_flight.begin(id, packet_bytes)?;
    let answers = Answers { id, in_flight: Arc::clone(in_flight), outbox: Arc::clone(outbox) };
    let sink = move |response, placed| answers.send(response, placed);
    let told = if infer_request.is_light() {
        scope.infer(infer_request, leased_outputs, cancel, sink)
    } else {
        // Its check takes long; the session's next packet waits, so that requests begin in their order.
        let scope = Arc::clone(scope);
        aside(move || scope.infer(infer_request, leased_outputs, cancel, sink)).await.flatten()
    };
    // At a refusal the sink was never called.
    told.inspect_err(|_| {
        in_flight.release(id);
        in_flight.end();
    })
}

fn read(request: bytes::Bytes, scope: &Scope) -> Result<InferRequest, Status> {
    let message = InferMessage::read_for(&Chain::from(request), |model, version| scope.tensors_max(model, version))
        .map_err(|error| match error {
            Malformed::TooMany(refused) => refused.into(),
            error => Status::invalid(format!("the inference request is not understood: {error}")),
        })?;
    message.into_infer_request(|_| Ok(()))
}

/// The way back of one inference.
struct Answers {
    id: u64,
    in_flight: Arc<InFlight>,
    outbox: Arc<Outbox>,
}

impl Answers {
    fn send(&self, mut response: Response, placed: Vec<OutputLease>) {
        let last = response.last;
        if last {
            self.in_flight.release(self.id);
        }
        if response.empty && !last {
            return;
        }
        let packet = match response.error.take() {
            Some(status) => Ok(self.refusal(!last, status)),
            None if response.empty => Ok(self.nothing_follows()),
            None => self.encode(response, placed),
        };
        self.outbox.send(packet.unwrap_or_else(|status| self.refusal(!last, status)));
        if last {
            self.in_flight.end();
        }
    }

    fn encode(&self, response: Response, mut placed: Vec<OutputLease>) -> Result<Packet, Status> {
        let messages: Vec<_> = placed.iter().map(placed_message).collect();
        let more = !response.last;
        let encoded = encode_inference(self.id, more, response, &messages);
        let encoded = match encoded {
            Ok(bytes) => bytes,
            Err(status) => {
                placed.into_iter().for_each(OutputLease::cancel);
                return Err(status);
            }
        };
        let descriptors: Vec<OwnedFd> = placed.iter_mut().filter_map(|one| one.loan.descriptor.take()).collect();
        Ok(Packet { bytes: encoded, descriptors })
    }

    fn refusal(&self, more: bool, status: Status) -> Packet {
        let message = v1::ServerMessage { more, ..failure(self.id, &status) };
        Packet { bytes: encode_answer(&message), descriptors: Vec::new() }
    }

    fn nothing_follows(&self) -> Packet {
        let answer = v1::server_message::Answer::Inference(v1::Inference::default());
        let message = v1::ServerMessage { id: self.id, answer: Some(answer), ..v1::ServerMessage::default() };
        Packet { bytes: encode_answer(&message), descriptors: Vec::new() }
    }
}

fn placed_message(placed: &OutputLease) -> v1::OutputLease {
    let (output, byte_size) = (placed.output.clone(), placed.byte_size);
    v1::OutputLease { output: output.into(), lease: Some(lease_message(&placed.loan)), offset: 0, byte_size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_answered_while_it_is_cancelled_gives_its_place_back() {
        let in_flight = Arc::new(InFlight::new(&Account::unlimited()));
        for id in 1..=3 {
            let answered = Arc::clone(&in_flight);
            let cancel = in_flight.begin(id, 0).expect("there is room");
            assert!(cancel.on_cancelled(move || {
                answered.release(id);
                answered.end();
            }));
        }
        in_flight.cancel(2);
        in_flight.cancel(2);
        assert_eq!(in_flight.count(), 2);
        in_flight.cancel_all();
        assert_eq!((in_flight.count(), in_flight.unsent.load(Ordering::Acquire)), (0, 0));
    }
}
