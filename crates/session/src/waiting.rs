//! Which calls of a session wait for models that are being loaded?

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use nerite_api::{Api, LoadedModel};
use nerite_budget::Charge;
use nerite_request::{Cancel, Recycled, Status, TraceContext};
use nerite_wire::proto::session::v1;
use nerite_wire::proto::{ExpectedResponse, InferMessage};

/// The calls of one session that wait for models.
#[derive(Default)]
pub(crate) struct ModelWaits {
    waits: Vec<ModelWait>,
    calls: usize,
}

/// The wait for one model. Dropping this ends the wait.
struct ModelWait {
    model: String,
    load: Load,
    /// Never empty.
    calls: VecDeque<WaitingCall>,
}

/// How a load ended. The model is not evicted while any of its calls holds this value.
pub(crate) type Loaded = Result<Arc<LoadedModel>, Status>;

enum Load {
    UnderWay(Pin<Box<dyn Future<Output = Loaded> + Send + Sync>>),
    Ended(Loaded),
}

/// A call that goes on when its model is loaded.
pub(crate) struct WaitingCall {
    pub(crate) id: u64,
    pub(crate) work: RemainingWork,
    /// The client in this call.
    pub(crate) api: Api,
    pub(crate) charge: Charge,
    /// Ends with the error of the call when its timeout is over.
    pub(crate) timeout: Pin<Box<dyn Future<Output = Status> + Send + Sync>>,
}

impl RemainingWork {
    /// The timeout of the call in microseconds; 0 if it has none.
    pub(crate) fn timeout_us(&self) -> u64 {
        match self {
            RemainingWork::Infer(begun) => begun.message.timeout_us(),
            RemainingWork::Prepare(_) | RemainingWork::Describe(_) => 0,
        }
    }
}

/// The remaining work of a call.
pub(crate) enum RemainingWork {
    Infer(Box<BegunInference>),
    Prepare(Box<Preparation>),
    Describe(v1::DescribeModel),
}

/// An inference that was decoded, and counts as in flight.
pub(crate) struct BegunInference {
    pub(crate) message: Recycled<InferMessage>,
    pub(crate) leased_outputs: Vec<String>,
    /// The client's span above it.
    pub(crate) parent: Option<Box<TraceContext>>,
    pub(crate) cancel: Cancel,
}

/// An inference to prepare, which was decoded.
pub(crate) struct Preparation {
    pub(crate) message: Recycled<InferMessage>,
    pub(crate) leased_outputs: Vec<String>,
    pub(crate) expected: Option<Arc<ExpectedResponse>>,
    /// The bytes that are charged for it.
    pub(crate) bytes: usize,
}

impl ModelWaits {
    /// Waits until the load of a model has ended, and takes the first call that waits
    /// for it. A call whose timeout is over is taken earlier. May be cancelled at
    /// any time.
    pub(crate) fn next(&mut self) -> impl Future<Output = (WaitingCall, Loaded)> {
        poll_fn(|cx| self.poll_next(cx))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(WaitingCall, Loaded)> {
        for (at, wait) in self.waits.iter_mut().enumerate() {
            if let Load::UnderWay(load) = &mut wait.load
                && let Poll::Ready(outcome) = load.as_mut().poll(cx)
            {
                wait.load = Load::Ended(outcome);
            }
            if let Load::Ended(outcome) = &wait.load
                && let Some(call) = wait.calls.pop_front()
            {
                let outcome = outcome.clone();
                self.took(at);
                return Poll::Ready((call, outcome));
            }
            let ended =
                wait.calls.iter_mut().enumerate().find_map(|(position, call)| match call.timeout.as_mut().poll(cx) {
                    Poll::Ready(error) => Some((position, error)),
                    Poll::Pending => None,
                });
            if let Some((position, error)) = ended
                && let Some(call) = wait.calls.remove(position)
            {
                self.took(at);
                return Poll::Ready((call, Err(error)));
            }
        }
        Poll::Pending
    }

    /// How many calls wait.
    pub(crate) fn count(&self) -> usize {
        self.calls
    }

    /// Whether calls wait for the model. Later calls of the model then wait behind these.
    pub(crate) fn has(&self, model: &str) -> bool {
        self.waits.iter().any(|wait| wait.model == model)
    }

    /// Adds a call. The first one for its model begins the wait.
    pub(crate) fn add(&mut self, model: &str, call: WaitingCall) {
        self.calls += 1;
        if let Some(wait) = self.waits.iter_mut().find(|wait| wait.model == model) {
            return wait.calls.push_back(call);
        }
        let (api, of) = (call.api.clone(), model.to_owned());
        // Each call has a timeout of its own.
        let load = Load::UnderWay(Box::pin(async move { api.wait_for_model(&of, 0).await.map(Arc::new) }));
        self.waits.push(ModelWait { model: model.to_owned(), load, calls: VecDeque::from([call]) });
    }

    /// Takes the inference with that id, if it waits.
    pub(crate) fn take_inference(&mut self, id: u64) -> Option<WaitingCall> {
        let is_it = |call: &WaitingCall| call.id == id && matches!(call.work, RemainingWork::Infer(_));
        let found = self.waits.iter().enumerate().find_map(|(at, wait)| Some((at, wait.calls.iter().position(is_it)?)));
        let (at, position) = found?;
        let call = self.waits.get_mut(at)?.calls.remove(position)?;
        self.took(at);
        Some(call)
    }

    /// Takes a call with the name of its model.
    pub(crate) fn take_any(&mut self) -> Option<(WaitingCall, String)> {
        let wait = self.waits.first_mut()?;
        let taken = (wait.calls.pop_front()?, wait.model.clone());
        self.took(0);
        Some(taken)
    }

    /// Notes that a call of this wait was taken. The wait for the model ends with its last call.
    fn took(&mut self, at: usize) {
        self.calls -= 1;
        if self.waits.get(at).is_some_and(|wait| wait.calls.is_empty()) {
            self.waits.remove(at);
        }
    }
}
