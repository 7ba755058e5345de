//! Which steps does a response take from its model to the front end?

use std::sync::Arc;

use nerite_budget::Charge;
use nerite_engine::Served;
use nerite_memory::Slot;
use nerite_request::limits::COPIED_BYTES;
use nerite_request::names::ByName;
use nerite_request::{
    Deliver, InferRequestedOutput, InferResponse, Numbered, Output, PeerAccount, PlaceQuery, Reply, RequestTrace,
    Response, ResponseWindow, Status,
};
use nerite_watchdog::now_ns;

use crate::caller::Caller;
use crate::classify::{self, classify};
use crate::places::{OutputLease, Places};
use crate::under_way::UnderWay;

/// The steps for all responses of one request: each response passes them in order, and then goes to the front end's `sink` with the leases that are
/// reported beside it.
pub(crate) struct Delivery<S> {
    shown: Option<Shown>,
    pub(crate) side: ModelSide,
    /// The charge for the memory that the strings of the request take, until the last response.
    strings: Option<Charge>,
    sink: S,
    /// Counts the inference as under way until its last response was sent.
    under_way: UnderWay,
}

/// The parts of a delivery for which a model asks.
#[derive(Clone)]
pub(crate) struct ModelSide {
    pub(crate) places: Option<Places>,
    /// `Some` for a decoupled model.
    pub(crate) window: Option<Arc<ResponseWindow>>,
    /// The trace of the request, if it is traced.
    pub(crate) trace: Option<Arc<RequestTrace>>,
    /// The account that is charged for the states that the request leaves behind, and for responses beyond the window. `None` if there can be none.
    pub(crate) account: Option<PeerAccount>,
    /// The client of the request. Its quota is charged for the bytes of the responses, and its log line counts them.
    pub(crate) caller: Option<Arc<Caller>>,
}

impl ModelSide {
    /// As [`Deliver::waited`].
    pub(crate) fn waited(&self, queue_ns: u64) {
        if let Some(line) = self.caller.as_ref().and_then(|caller| caller.line.as_ref()) {
            line.note_queue(queue_ns);
        }
    }

    /// As [`Deliver::place`].
    pub(crate) fn place(&self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        // Leases are memory of the host, whatever the runtime prefers.
        self.places.as_ref().map_or(Ok(None), |places| places.place(query.index, query.bytes))
    }
}

impl<S: FnMut(Response, Vec<OutputLease>) + Send> Delivery<S> {
    /// The delivery to a client of this model version.
    pub(crate) fn new(
        outputs: &[InferRequestedOutput],
        trace: Option<Arc<RequestTrace>>,
        served: &Arc<Served>,
        places: Option<Places>,
        under_way: UnderWay,
        sink: S,
    ) -> Delivery<S> {
        let shown = Shown::of(outputs, served);
        let window = served.config().decoupled().then(ResponseWindow::new);
        let side = ModelSide { places, window, trace, account: None, caller: None };
        Delivery { shown, side, strings: None, sink, under_way }
    }

    /// The same, charging this account for states that the request leaves behind, and for responses beyond the window.
    pub(crate) fn charging(self, account: Option<PeerAccount>) -> Delivery<S> {
        Delivery { side: ModelSide { account, ..self.side }, ..self }
    }

    /// The same, holding the charge for the request's strings.
    pub(crate) fn holding(self, strings: Option<Charge>) -> Delivery<S> {
        Delivery { strings, ..self }
    }

    /// The same for this client.
    pub(crate) fn of_caller(self, caller: Option<Arc<Caller>>) -> Delivery<S> {
        Delivery { side: ModelSide { caller, ..self.side }, ..self }
    }

    /// Takes the window away. The caller counts the responses in it.
    pub(crate) fn take_window(&mut self) -> Option<Arc<ResponseWindow>> {
        self.side.window.take()
    }

    /// The reply that takes these steps. If there are no steps, responses go to `numbered`, if it is given, and not to
    /// the sink.
    pub(crate) fn into_reply(self, numbered: Option<Numbered>) -> Reply
    where
        S: 'static,
    {
        let Delivery {
            shown: None,
            side: ModelSide { places: None, window: None, trace: None, account: None, caller: None },
            strings: None,
            ..
        } = &self
        else {
            return Reply::through(self);
        };
        match numbered {
            Some(numbered) => Reply::numbered(numbered, self.under_way.0),
            None => Reply::through(self),
        }
    }

    /// Whether the steps may be much work: outputs are turned into classes, or copied to leases.
    pub(crate) fn may_be_much_work(&self) -> bool {
        self.side.places.is_some() || self.shown.as_ref().is_some_and(|shown| !shown.classes.is_empty())
    }

    /// How much work the steps for this response are, in bytes of [`nerite_request::limits::INLINE_WORK_BYTES_MAX`].
    pub(crate) fn work(&self, response: &Response) -> usize {
        let (Response::Part(tensors) | Response::Final(tensors)) = response else { return 0 };
        let classes = self.shown.as_ref().map_or(0, |shown| shown.work(tensors));
        let copied = self.side.places.as_ref().map_or(0, |places| places.copied_bytes(tensors));
        classes.saturating_add(copied / COPIED_BYTES)
    }

    fn steps(&self, tensors: &mut InferResponse) -> Result<Vec<OutputLease>, Status> {
        if let Some(shown) = &self.shown {
            shown.apply(tensors)?;
        }
        self.side.places.as_ref().map_or(Ok(Vec::new()), |places| places.settle(tensors))
    }
}

impl<S: FnMut(Response, Vec<OutputLease>) + Send> Deliver for Delivery<S> {
    fn deliver(&mut self, mut response: Response) {
        let settled = match &mut response {
            Response::Part(tensors) | Response::Final(tensors) => self.steps(tensors),
            Response::End | Response::Failed { .. } => Ok(Vec::new()),
        };
        let leases = settled.unwrap_or_else(|error| {
            response = if response.is_last() { Response::failed(error) } else { Response::failed_part(error) };
            Vec::new()
        });
        if let Some(window) = &self.side.window {
            take_place(window, &mut response);
        }
        if let Some(caller) = &self.side.caller {
            caller.note_response(&response);
        }
        if let Some(trace) = &self.side.trace {
            trace.note("INFER_RESPONSE_COMPLETE", now_ns());
        }
        if response.is_last() {
            self.strings = None;
        }
        (self.sink)(response, leases);
    }

    fn waited(&mut self, queue_ns: u64) {
        self.side.waited(queue_ns);
    }

    fn offers_places(&self) -> bool {
        self.side.places.is_some()
    }

    fn account(&self) -> Option<PeerAccount> {
        self.side.account.clone()
    }

    fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.side.trace.clone()
    }

    fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.side.window.clone()
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        self.side.place(query)
    }
}

/// Counts the response in its window until the client takes it.
pub(crate) fn take_place(window: &Arc<ResponseWindow>, response: &mut Response) {
    let bytes = response.inline_bytes();
    match response {
        Response::Part(tensors) | Response::Final(tensors) => tensors.permit = Some(window.permit(bytes)),
        Response::Failed { permit, .. } => *permit = Some(window.permit(bytes)),
        Response::End => {}
    }
}

/// How outputs are changed for the client: to the shapes of the configuration, or to classes.
pub(crate) struct Shown {
    served: Arc<Served>,
    /// How many classes an output is turned into, by its index, in ascending order.
    classes: Vec<(usize, u64)>,
}

impl Shown {
    /// `None` for most requests, whose outputs are not changed.
    pub(crate) fn of(outputs: &[InferRequestedOutput], served: &Arc<Served>) -> Option<Shown> {
        let specs = ByName::new(served.outputs(), |spec| &spec.name);
        let classified = outputs.iter().filter(|output| output.classes > 0);
        let mut classes: Vec<_> =
            classified.filter_map(|output| Some((specs.index_of(&output.name)?, output.classes))).collect();
        classes.sort_unstable();
        (served.declared_shapes().is_some() || !classes.is_empty())
            .then(|| Shown { served: Arc::clone(served), classes })
    }

    /// How many classes the output is turned into, if it is.
    fn classes_of(&self, output: &Output) -> Option<u64> {
        let at = self.classes.binary_search_by_key(&output.index, |(index, _)| *index).ok()?;
        self.classes.get(at).map(|(_, classes)| *classes)
    }

    fn work(&self, response: &InferResponse) -> usize {
        let batching = self.served.config().batches();
        let work = |output| Some(classify::work(output, self.classes_of(output)?, batching));
        response.outputs.iter().filter_map(work).fold(0, usize::saturating_add)
    }

    fn apply(&self, response: &mut InferResponse) -> Result<(), Status> {
        if let Some(shapes) = self.served.declared_shapes() {
            shapes.apply(response);
        }
        let batching = self.served.config().batches();
        for output in &mut response.outputs {
            if let Some(classes) = self.classes_of(output) {
                let labels =
                    self.served.labels().get(output.name.as_str()).map(|labels| &labels[..]).unwrap_or_default();
                *output = classify(output, classes, batching, labels)?;
            }
        }
        Ok(())
    }
}
