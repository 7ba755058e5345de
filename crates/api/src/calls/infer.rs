//! How does a request become a response?

use std::mem::take;
use std::sync::Arc;

use nerite_budget::Charge;
use nerite_engine::CheckedTensors;
use nerite_request::limits::{STRING_BYTES, STRINGS_UNCHARGED_BYTES};
use nerite_request::{
    AdmittedRequest, Cancel, ExactlyOne, InferRequest, InferRequestedOutput, InferResponse, Numbered, Parameters,
    Recycled, RequestTrace, Response, Sequence, Status,
};
use nerite_shm::Account;
use nerite_tensor::Name;
use nerite_watchdog::Started;

use crate::Api;
use crate::admission::{Admission, Target};
use crate::admit::{Regions, admit};
use crate::delivery::Delivery;
use crate::one_response;
use crate::places::{OutputLease, Places};

impl Api {
    /// Runs one request with one response. It may begin before the future is polled. Dropping the future before it is done cancels the request.
    pub fn infer(
        &self,
        infer_request: Recycled<InferRequest>,
    ) -> impl Future<Output = Result<Recycled<InferResponse>, Status>> + Send + use<> {
        let admission = self.accept(Target::of_any(&infer_request.model, &infer_request.version));
        let begun = admission.map(|admission| self.infer_holding(admission, infer_request, ()));
        async move { begun?.await }
    }

    /// As [`Api::infer`], for a request that was admitted. `held` is a value that is kept with the request, such as the charge for its body. The value is
    /// dropped when the model no longer needs the request, before the response is sent. Dropping the future does not drop the value earlier.
    pub fn infer_holding<H: Send + 'static>(
        &self,
        admission: Admission,
        infer_request: Recycled<InferRequest>,
        held: H,
    ) -> impl Future<Output = Result<Recycled<InferResponse>, Status>> + Send + use<H> {
        let mut held = Some(held);
        let cancel = CancelOnDrop(Cancel::new());
        let (to, from) = one_response::channel();
        let (mut to, mut one) = (Some(to), ExactlyOne::default());
        let sink = move |response: Response| {
            if response.is_last() {
                drop(held.take());
            }
            let Some(outcome) = one.take(response) else { return };
            let only = outcome.unwrap_or_else(|not_one| Err(not_one.into()));
            if let Some(to) = to.take() {
                to.send(only);
            }
        };
        let begun = self.begin(admission, infer_request, cancel.0.clone(), sink);
        async move {
            let _until_it_is_answered = cancel;
            begun.await?;
            from.receive().await.unwrap_or_else(|| Err(Status::internal("the request was dropped without a response")))
        }
    }

    /// As [`Api::infer_stream`]. A request begins at once if its check is quick. A check that takes long, or may wait for memory of the client, is done on
    /// another thread than a front thread, once the future is polled.
    pub fn begin<S>(
        &self,
        admission: Admission,
        infer_request: Recycled<InferRequest>,
        cancel: Cancel,
        sink: S,
    ) -> impl Future<Output = Result<(), Status>> + Send + use<S>
    where
        S: FnMut(Response) + Send + 'static,
    {
        // The future keeps no part of the request.
        let begun = if self.may_begin_here(&infer_request) {
            Ok(self.infer_stream(admission, infer_request, cancel, sink))
        } else {
            let api = self.clone();
            Err(self.begin_aside(move || api.infer_stream(admission, infer_request, cancel, sink)))
        };
        async move {
            match begun {
                Ok(outcome) => outcome,
                Err(aside) => aside.await?,
            }
        }
    }

    /// Runs one request with any number of responses. `sink` is called for each one, on the thread that made it. Err: the request was refused at
    /// admission, and `sink` is not called.
    pub fn infer_stream(
        &self,
        admission: Admission,
        infer_request: Recycled<InferRequest>,
        cancel: Cancel,
        mut sink: impl FnMut(Response) + Send + 'static,
    ) -> Result<(), Status> {
        self.submit(admission, infer_request, &self.global(), None, cancel, move |response, _| sink(response))
    }

    /// The steps of every inference. Names are looked up in `regions`. Outputs listed in `own` are placed in leases of that session, and reported
    /// beside the response.
    pub(crate) fn submit(
        &self,
        admission: Admission,
        infer_request: Recycled<InferRequest>,
        regions: &dyn Regions,
        own: Option<(&Arc<Account>, Vec<String>)>,
        cancel: Cancel,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), Status> {
        self.note_request(&infer_request);
        self.note_bytes_in(&infer_request);
        self.submit_noted(admission, infer_request, regions, own, cancel, sink)
    }

    /// As [`Api::submit`], for a request whose bytes were noted before.
    pub(crate) fn submit_noted(
        &self,
        admission: Admission,
        mut infer_request: Recycled<InferRequest>,
        regions: &dyn Regions,
        own: Option<(&Arc<Account>, Vec<String>)>,
        cancel: Cancel,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), Status> {
        let tensors = admit(&mut infer_request, &admission.model.contract(), regions)?;
        if tensors.string_bytes > 0 {
            // The check has read the lengths of strings, which may be in memory of the client.
            if let Some(poll) = Started::with_late_poll() {
                poll.ended_late(None);
            }
        }
        let outputs = take(&mut infer_request.outputs);
        let head = Head::take_from(&mut infer_request);
        drop(infer_request);
        self.submit_checked(admission, head, (tensors, &outputs), own, cancel, (None, sink))
    }

    /// As [`Api::submit`], for a request whose tensors were checked. They are passed with the outputs that the client
    /// requested. Responses that need no step of the delivery go to `numbered`, if it is given, and not to the sink.
    pub(crate) fn submit_checked(
        &self,
        admission: Admission,
        head: Head,
        (tensors, outputs): (CheckedTensors, &[InferRequestedOutput]),
        own: Option<(&Arc<Account>, Vec<String>)>,
        cancel: Cancel,
        (numbered, sink): (Option<Numbered>, impl FnMut(Response, Vec<OutputLease>) + Send + 'static),
    ) -> Result<(), Status> {
        let Admission { model, caller, under_way } = admission;
        let CheckedTensors { mut inputs, mut wanted, rows, string_bytes } = tensors;
        let strings = self.charge_strings(string_bytes)?;
        let leased_by_own = own.as_ref().is_some_and(|(_, leased)| !leased.is_empty());
        if leased_by_own || outputs.iter().any(|output| output.session.is_some()) {
            self.check_leased_outputs()?;
        }
        let places = Places::of(outputs, model.served().outputs(), own, &self.inner.pools)?;
        let staged = self.stage(&mut inputs, &mut wanted, places.is_some())?;
        let Head { id, priority, timeout_us, sequence, parameters, trace } = head;
        let delivery = Delivery::new(outputs, trace, model.served(), places, under_way, sink);
        let leaves_bytes = model.served().leaves_states() || model.served().config().decoupled();
        let account = leaves_bytes.then(|| self.retained().clone());
        let delivery = delivery.of_caller(caller).charging(account).holding(strings);
        let reply = match staged {
            Some(staged) => staged.reply(delivery),
            None if delivery.may_be_much_work() => {
                self.sized_reply(delivery).unwrap_or_else(|delivery| delivery.into_reply(numbered))
            }
            None => delivery.into_reply(numbered),
        };
        model.of_client(self.peer()).submit(AdmittedRequest {
            id,
            rows,
            inputs,
            wanted,
            priority,
            timeout_us,
            sequence,
            client: self.number(),
            parameters,
            cancel,
            reply,
        });
        Ok(())
    }
}

impl Api {
    /// Charges the client for the memory that the strings of a request may take in a runtime. Up to [`STRINGS_UNCHARGED_BYTES`] nothing is charged.
    fn charge_strings(&self, bytes: usize) -> Result<Option<Charge>, Status> {
        if bytes <= STRINGS_UNCHARGED_BYTES {
            return Ok(None);
        }
        self.account().check_announced(bytes as u64).map_err(|over| {
            Status::unavailable(format!(
                "the {} strings of the request may take {bytes} bytes, of {} that a connection may hold \
                 (--memory-budget-per-connection); send fewer strings at once",
                bytes / STRING_BYTES,
                over.max
            ))
        })?;
        Ok(Some(self.account().charge(bytes)))
    }
}

/// The parts of a request that are not about its tensors or its model.
pub(crate) struct Head {
    pub(crate) id: Name,
    pub(crate) priority: u64,
    pub(crate) timeout_us: u64,
    pub(crate) sequence: Sequence,
    pub(crate) parameters: Parameters,
    pub(crate) trace: Option<Arc<RequestTrace>>,
}

impl Head {
    fn take_from(infer_request: &mut InferRequest) -> Head {
        let InferRequest { id, priority, timeout_us, sequence, parameters, trace, .. } = infer_request;
        Head {
            id: take(id),
            priority: *priority,
            timeout_us: *timeout_us,
            sequence: take(sequence),
            parameters: take(parameters),
            trace: trace.take(),
        }
    }
}

/// Sets the flag when a call ends, also if its client has gone.
pub(super) struct CancelOnDrop(pub(super) Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
