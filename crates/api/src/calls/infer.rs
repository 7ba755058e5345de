//! How does a request become a response?

use std::collections::HashMap;
use std::sync::Arc;

use nerite_engine::Served;
use nerite_request::limits::TensorsMax;
use nerite_request::names::ByName;
use nerite_request::{Cancel, InferRequest, Reply, Request, Response, Status};
use nerite_shm::Account;
use nerite_tensor::Name;
use tokio::sync::oneshot;

use crate::access::Protocol;
use crate::admit::{Contract, Regions, admit};
use crate::aside::aside;
use crate::classify::classify;
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

    /// One request, one response (its `error` set when it failed). It may begin before the future is polled. Dropping the future before it
    /// is done cancels the request.
    pub fn infer(&self, infer_request: InferRequest) -> impl Future<Output = Response> + Send + use<> {
        self.infer_holding(infer_request, ())
    }

    /// As [`Api::infer`]. What is `held` for the request, such as the charge for its body, is dropped when the model is done with it,
    /// before the answer is handed on, and not when the future is dropped before.
    pub fn infer_holding<H: Send + 'static>(
        &self,
        infer_request: InferRequest,
        held: H,
    ) -> impl Future<Output = Response> + Send + use<H> {
        let mut held = Some(held);
        let cancel = CancelOnDrop(Cancel::new());
        let id = infer_request.id.clone();
        let (to, from) = oneshot::channel();
        let mut single = Single { to: Some(to), held: None, count: 0 };
        let sink = move |response: Response| {
            if response.last {
                drop(held.take());
            }
            single.take(response);
        };
        let begun = self.begin(infer_request, cancel.0.clone(), sink);
        async move {
            let _until_it_is_answered = cancel;
            if let Err(status) = begun.await {
                return Response::failed(id, status);
            }
            from.await.unwrap_or_else(|_| {
                Response::failed(id, Status::internal("the request was dropped without a response"))
            })
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

    /// One request, any number of responses handed to `sink` as they come, from whatever thread made them, the last marked
    /// `last`. A refusal at admission is the Err: `sink` is not called then.
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
        mut sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), Status> {
        let under_way = UnderWay::count(&self.0.under_way);
        let mut sink = move |response, placed| {
            let _until_the_last_response = &under_way;
            sink(response, placed);
        };
        let served = self.served(&infer_request.model, &infer_request.version)?;
        let admitted = admit(&mut infer_request, &contract(&served), regions)?;
        let finish = Finish::of(&infer_request, &served);
        let id = infer_request.id.clone();
        let reply = match (finish, Places::of(&infer_request, own, &self.0.pools)?) {
            (None, None) => Reply::new(id, move |response| sink(response, Vec::new())),
            (Some(finish), None) => Reply::new(id, move |response| sink(finish.apply(response), Vec::new())),
            (finish, Some(places)) => {
                let room = places.clone();
                let settled = move |response| {
                    let finished = match &finish {
                        Some(finish) => finish.apply(response),
                        None => response,
                    };
                    let (response, placed) = places.settle(finished);
                    sink(response, placed);
                };
                Reply::new(id, settled).offering(move |output, bytes| room.place(output, bytes))
            }
        };
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

/// Waits for the one response of a call that can carry only one.
struct Single {
    to: Option<oneshot::Sender<Response>>,
    held: Option<Response>,
    count: usize,
}

impl Single {
    fn take(&mut self, response: Response) {
        let last = response.last;
        if !response.empty {
            self.count += 1;
            self.held.get_or_insert(response);
        }
        if !last {
            return;
        }
        let Some(to) = self.to.take() else { return };
        let answer = match (self.held.take(), self.count) {
            (Some(response), 1) => response,
            (held, count) => {
                let id = held.map(|response| response.id).unwrap_or_default();
                Response::failed(id, Status::internal(format!("expected a single response, got {count}")))
            }
        };
        // The client may have gone: then there is nobody to tell.
        drop(to.send(answer));
    }
}

/// What is still to be done to a response after the model made it.
struct Finish {
    served: Arc<Served>,
    classes: HashMap<Name, u64>,
}

impl Finish {
    /// `None` for most requests, which go back as they are.
    fn of(infer_request: &InferRequest, served: &Arc<Served>) -> Option<Finish> {
        let classes: HashMap<_, _> =
            infer_request.outputs.iter().filter(|o| o.classes > 0).map(|o| (o.name.clone(), o.classes)).collect();
        let reshapes = served.outputs().iter().any(|spec| spec.reshape.is_some());
        (reshapes || !classes.is_empty()).then(|| Finish { served: Arc::clone(served), classes })
    }

    fn apply(&self, mut response: Response) -> Response {
        match self.try_apply(&mut response) {
            Ok(()) => response,
            Err(status) => Response { outputs: Vec::new(), error: Some(status), ..response },
        }
    }

    fn try_apply(&self, response: &mut Response) -> Result<(), Status> {
        let batching = self.served.config().batches();
        let specs = ByName::new(self.served.outputs(), |spec| &spec.name);
        for output in &mut response.outputs {
            let spec = specs.find(&output.name);
            if let Some((spec, reshape)) = spec.and_then(|spec| Some((spec, spec.reshape.as_deref()?))) {
                let own = output.shape.get(usize::from(batching)..).unwrap_or_default();
                let shown = admit::reshaped(own, reshape, &spec.dims);
                output.shape = output.shape.iter().copied().take(usize::from(batching)).chain(shown).collect();
            }
            if let Some(classes) = self.classes.get(&output.name) {
                let labels =
                    self.served.labels().get(output.name.as_str()).map(|labels| &labels[..]).unwrap_or_default();
                *output = classify(output, *classes, batching, labels)?;
            }
        }
        Ok(())
    }
}
