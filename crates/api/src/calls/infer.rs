//! How does a request become a response?

use std::sync::Arc;

use nerite_engine::Served;
use nerite_request::limits::TensorsMax;
use nerite_request::{Cancel, ExactlyOne, InferRequest, InferResponse, Reply, Request, Response, Status};
use nerite_shm::Account;
use tokio::sync::oneshot;

use crate::access::Protocol;
use crate::admit::{Contract, Regions, admit};
use crate::aside::aside;
use crate::delivery::{Delivery, Shown};
use crate::places::{OutputLease, Places};
use crate::under_way::UnderWay;
use crate::{Api, admit};

impl Api {
    /// What can be said of an inference before its body is read: the model and version exist and are ready, and the
    /// protocol's single-response call can serve it (a decoupled model is refused in each protocol's own words).
    pub fn check_infer(&self, protocol: Protocol, model: &str, version: &str) -> Result<(), Status> {
        let served = self.served(model, version)?;
        if !served.config().decoupled() {
            return Ok(());
        }
        Err(Status::unsupported(match protocol {
            Protocol::Http => "HTTP end point doesn't support models with decoupled transaction policy",
            Protocol::Grpc => "ModelInfer RPC doesn't support models with decoupled transaction policy",
        }))
    }

    /// Whether the model is decoupled: its responses may interleave with those of other requests of a stream.
    pub fn is_decoupled(&self, model: &str, version: &str) -> bool {
        self.served(model, version).is_ok_and(|served| served.config().decoupled())
    }

    /// How many inputs and outputs a request for this model may name; those of any model if there is no such one.
    pub fn tensors_max(&self, model: &str, version: &str) -> TensorsMax {
        self.served(model, version).map_or_else(
            |_| TensorsMax::default(),
            |served| TensorsMax::of_model(served.inputs().len(), served.outputs().len()),
        )
    }

    /// One request, one response. It may begin before the future is polled. Dropping the future before it is done cancels the request.
    pub fn infer(
        &self,
        infer_request: InferRequest,
    ) -> impl Future<Output = Result<InferResponse, Status>> + Send + use<> {
        self.infer_holding(infer_request, ())
    }

    /// As [`Api::infer`]. What is `held` for the request, such as the charge for its body, is dropped when the model is done with it,
    /// before the answer is handed on, and not when the future is dropped before.
    pub fn infer_holding<H: Send + 'static>(
        &self,
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
        let begun = self.begin(infer_request, cancel.0.clone(), sink);
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
        infer_request: InferRequest,
        cancel: Cancel,
        sink: S,
    ) -> impl Future<Output = Result<(), Status>> + Send + use<S>
    where
        S: FnMut(Response) + Send + 'static,
    {
        // Nothing of the request is kept in the future, which is copied with that of its call.
        let begun = if infer_request.is_light() {
            Ok(self.infer_stream(infer_request, cancel, sink))
        } else {
            let api = self.clone();
            Err(aside(move || api.infer_stream(infer_request, cancel, sink)))
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
        infer_request: InferRequest,
        cancel: Cancel,
        mut sink: impl FnMut(Response) + Send + 'static,
    ) -> Result<(), Status> {
        self.submit(infer_request, &self.global(), None, cancel, move |response, _| sink(response))
    }

    /// The steps of every inference, whoever asks: names are those of `regions`; outputs of the list in `own` are placed in
    /// leases of that session, and told beside the response.
    pub(crate) fn submit(
        &self,
        mut infer_request: InferRequest,
        regions: &dyn Regions,
        own: Option<(&Arc<Account>, Vec<String>)>,
        cancel: Cancel,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), Status> {
        let under_way = UnderWay::count(&self.0.under_way);
        let served = self.served(&infer_request.model, &infer_request.version)?;
        let admitted = admit(&mut infer_request, &contract(&served), regions)?;
        let shown = Shown::of(&infer_request, &served);
        let places = Places::of(&infer_request, own, &self.0.pools)?;
        let reply = Reply::through(Delivery::new(shown, places, under_way, sink));
        let admit::Admitted { inputs, wanted, rows } = admitted;
        let InferRequest { id, priority, timeout_us, sequence, parameters, .. } = infer_request;
        served.submit(Request { id, rows, inputs, wanted, priority, timeout_us, sequence, parameters, cancel, reply });
        Ok(())
    }
}

fn contract(served: &Served) -> Contract<'_> {
    Contract {
        model: served.name(),
        batch_max: served.config().max_batch_size,
        inputs: served.inputs(),
        outputs: served.outputs(),
    }
}

struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
