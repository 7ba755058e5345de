//! How does a request become a response?

use std::sync::Arc;

use nerite_engine::CheckedTensors;
use nerite_request::{
    AdmittedRequest, Cancel, ExactlyOne, InferRequest, InferRequestedOutput, InferResponse, Reply, Response, Status,
};
use nerite_shm::Account;
use tokio::sync::oneshot;

use crate::Api;
use crate::admission::Admission;
use crate::admit::{Regions, admit};
use crate::aside::aside;
use crate::delivery::Delivery;
use crate::places::{OutputLease, Places};

impl Api {
    /// One request, one response. It may begin before the future is polled. Dropping the future before it is done cancels the request.
    pub fn infer(
        &self,
        infer_request: InferRequest,
    ) -> impl Future<Output = Result<InferResponse, Status>> + Send + use<> {
        let admission = self.admit(&infer_request.model, &infer_request.version);
        let begun = admission.map(|admission| self.infer_holding(admission, infer_request, ()));
        async move { begun?.await }
    }

    /// As [`Api::infer`], for a request that was admitted. What is `held` for the request, such as the charge for its body, is dropped when the model is done with it,
    /// before the answer is handed on, and not when the future is dropped before.
    pub fn infer_holding<H: Send + 'static>(
        &self,
        admission: Admission,
        infer_request: InferRequest,
        held: H,
    ) -> impl Future<Output = Result<InferResponse, Status>> + Send + use<H> {
        let mut held = Some(held);
        let cancel = CancelOnDrop(Cancel::new());
        let (to, from) = oneshot::channel();
        let (mut to, mut one) = (Some(to), ExactlyOne::default());
        let sink = move |response: Response| {
            if response.is_last() {
                drop(held.take());
            }
            let Some(outcome) = one.take(response) else { return };
            // The client may have gone: then there is nobody to tell.
            let only = outcome.unwrap_or_else(|not_one| Err(not_one.into()));
            if let Some(to) = to.take() {
                drop(to.send(only));
            }
        };
        let begun = self.begin(admission, infer_request, cancel.0.clone(), sink);
        async move {
            let _until_it_is_answered = cancel;
            begun.await?;
            from.await.unwrap_or_else(|_| Err(Status::internal("the request was dropped without a response")))
        }
    }

    /// As [`Api::infer_stream`]. A request whose check takes long is checked outside the threads that serve connections, once the future is
    /// polled; any other begins at once.
    pub fn begin<S>(
        &self,
        admission: Admission,
        infer_request: InferRequest,
        cancel: Cancel,
        sink: S,
    ) -> impl Future<Output = Result<(), Status>> + Send + use<S>
    where
        S: FnMut(Response) + Send + 'static,
    {
        // Nothing of the request is kept in the future, which is copied with that of its call.
        let begun = if infer_request.is_light() {
            Ok(self.infer_stream(admission, infer_request, cancel, sink))
        } else {
            let api = self.clone();
            Err(aside(move || api.infer_stream(admission, infer_request, cancel, sink)))
        };
        async move {
            match begun {
                Ok(outcome) => outcome,
                Err(aside) => aside.await?,
            }
        }
    }

    /// One request, any number of responses handed to `sink` as they come, from whatever thread made them. A refusal at admission is the Err: `sink` is not called then.
    pub fn infer_stream(
        &self,
        admission: Admission,
        infer_request: InferRequest,
        cancel: Cancel,
        mut sink: impl FnMut(Response) + Send + 'static,
    ) -> Result<(), Status> {
        self.submit(admission, infer_request, &self.global(), None, cancel, move |response, _| sink(response))
    }

    /// The steps of every inference, whoever asks: names are those of `regions`; outputs of the list in `own` are placed in
    /// leases of that session, and told beside the response.
    pub(crate) fn submit(
        &self,
        admission: Admission,
        mut infer_request: InferRequest,
        regions: &dyn Regions,
        own: Option<(&Arc<Account>, Vec<String>)>,
        cancel: Cancel,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), Status> {
        let tensors = admit(&mut infer_request, &admission.model.contract(), regions)?;
        let outputs = std::mem::take(&mut infer_request.outputs);
        self.submit_checked(admission, infer_request, (tensors, &outputs), own, cancel, sink)
    }

    /// As [`Api::submit`], once the request's tensors were checked and taken out of it. They come with the outputs as the client wants them.
    pub(crate) fn submit_checked(
        &self,
        admission: Admission,
        infer_request: InferRequest,
        (tensors, outputs): (CheckedTensors, &[InferRequestedOutput]),
        own: Option<(&Arc<Account>, Vec<String>)>,
        cancel: Cancel,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), Status> {
        let Admission { model, under_way } = admission;
        let CheckedTensors { inputs, wanted, rows } = tensors;
        let places = Places::of(outputs, own, &self.0.pools)?;
        let InferRequest { id, priority, timeout_us, sequence, parameters, trace, .. } = infer_request;
        let reply = Reply::through(Delivery::new(outputs, trace, model.served(), places, under_way, sink));
        model.of_asker(self.peer()).submit(AdmittedRequest {
            id,
            rows,
            inputs,
            wanted,
            priority,
            timeout_us,
            sequence,
            parameters,
            cancel,
            reply,
        });
        Ok(())
    }
}

struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
