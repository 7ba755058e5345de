//! How do calls wait for models that they have caused to load, while the session's later packets are read?
//!
//! ```text
//!   Infer, Prepare, DescribeModel of a model that is not loaded ──► queue of the model ──► loaded, or not ──► one call after the other goes on
//!   later packets: of other models at once, of the same model behind those that wait
//! ```

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use nerite_api::Api;
use nerite_budget::Charge;
use nerite_request::{Code, Status};
use nerite_wire::proto::session::v1;

use crate::answer::CallOutcome;
use crate::inference::BegunInference;
use crate::limits::{INFERENCE_BYTES, WAITING_CALLS_MAX};
use crate::prepared::Preparation;
use crate::session::Session;

/// The calls of one session that wait for models.
#[derive(Default)]
pub(crate) struct ModelWaits {
    waits: Vec<ModelWait>,
    calls: usize,
}

/// The wait for one model. It ends when this is dropped.
struct ModelWait {
    model: String,
    load: Load,
    /// Never empty.
    calls: VecDeque<WaitingCall>,
}

enum Load {
    UnderWay(Pin<Box<dyn Future<Output = Result<(), Status>> + Send + Sync>>),
    Ended(Result<(), Status>),
}

/// A call that goes on when its model is loaded.
pub(crate) struct WaitingCall {
    id: u64,
    step: Step,
    /// The client in this call.
    api: Api,
    _charge: Charge,
}

/// What is left to do of a call.
pub(crate) enum Step {
    Infer(Box<BegunInference>),
    Prepare(Box<Preparation>),
    Describe(v1::DescribeModel),
}

impl ModelWaits {
    /// Waits until the load of a model has ended, and takes the first call that waits for it. May be cancelled at any time.
    pub(crate) fn next(&mut self) -> impl Future<Output = (WaitingCall, Result<(), Status>)> {
        poll_fn(|cx| self.poll_next(cx))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(WaitingCall, Result<(), Status>)> {
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
        }
        Poll::Pending
    }

    /// Whether calls wait for the model. Those that come then wait behind them.
    fn has(&self, model: &str) -> bool {
        self.waits.iter().any(|wait| wait.model == model)
    }

    fn add(&mut self, model: &str, call: WaitingCall) {
        self.calls += 1;
        if let Some(wait) = self.waits.iter_mut().find(|wait| wait.model == model) {
            return wait.calls.push_back(call);
        }
        let (api, of) = (call.api.clone(), model.to_owned());
        let load = Load::UnderWay(Box::pin(async move { api.wait_for_model(&of).await }));
        self.waits.push(ModelWait { model: model.to_owned(), load, calls: VecDeque::from([call]) });
    }

    /// Takes the inference with that id, if it waits.
    fn take_inference(&mut self, id: u64) -> Option<WaitingCall> {
        let is_it = |call: &WaitingCall| call.id == id && matches!(call.step, Step::Infer(_));
        let found = self.waits.iter().enumerate().find_map(|(at, wait)| Some((at, wait.calls.iter().position(is_it)?)));
        let (at, position) = found?;
        let call = self.waits.get_mut(at)?.calls.remove(position)?;
        self.took(at);
        Some(call)
    }

    /// Takes a call with the name of its model.
    fn take_any(&mut self) -> Option<(WaitingCall, String)> {
        let wait = self.waits.first_mut()?;
        let taken = (wait.calls.pop_front()?, wait.model.clone());
        self.took(0);
        Some(taken)
    }

    /// Notes that a call of this wait was taken. Nobody waits for the model after the last one.
    fn took(&mut self, at: usize) {
        self.calls -= 1;
        if self.waits.get(at).is_some_and(|wait| wait.calls.is_empty()) {
            self.waits.remove(at);
        }
    }
}

impl Session {
    /// What `find` finds of a model. `None` if the call has to wait for the model, because it is not loaded or because others wait for it.
    pub(crate) fn find_unless_waiting<T>(
        &self,
        model: &str,
        find: impl FnOnce() -> Result<T, Status>,
    ) -> Result<Option<T>, Status> {
        if self.waits.has(model) {
            return Ok(None);
        }
        self.api.unless_loadable(model, find())
    }

    /// Lets a call wait for its model. `bytes` is what it keeps of its packet.
    pub(crate) fn wait_for(&mut self, model: &str, id: u64, bytes: usize, step: Step) -> Result<(), Status> {
        if self.waits.calls >= WAITING_CALLS_MAX {
            return Err(Status::unavailable(format!(
                "model '{model}' is not loaded yet, and {WAITING_CALLS_MAX} calls of this session wait for models, which is all that may; \
                 wait for one of their answers"
            )));
        }
        let charge = self.api.account().charge(INFERENCE_BYTES + bytes);
        self.waits.add(model, WaitingCall { id, step, api: self.api.in_session_call(), _charge: charge });
        Ok(())
    }

    /// Carries out a call whose model is loaded, or failed to load.
    pub(crate) async fn resume(&mut self, call: WaitingCall, loaded: Result<(), Status>) {
        let WaitingCall { id, step, api, _charge } = call;
        api.resume_session_call();
        let outcome = match step {
            Step::Infer(begun) => self.start_loaded(id, *begun, loaded).await.map(|()| CallOutcome::UnderWay),
            Step::Prepare(preparation) => self.finish_preparation(*preparation, loaded).await,
            Step::Describe(model) => loaded.and_then(|()| self.describe(&model)).map(CallOutcome::from),
        };
        self.answer(id, outcome);
        // The calls of a loaded model follow one another at once.
        tokio::task::yield_now().await;
    }

    /// Refuses the inference with that id if it waits for its model, because its client does not wait for it any more.
    pub(crate) fn cancel_waiting(&mut self, id: u64) {
        if let Some(call) = self.waits.take_inference(id) {
            self.refuse_waiting(call, Status::new(Code::Cancelled, ""));
        }
    }

    /// Refuses all calls that wait, because the server stops.
    pub(crate) fn refuse_all_waiting(&mut self) {
        while let Some((call, model)) = self.waits.take_any() {
            let text = format!("model '{model}' is not loaded yet, and the server stops");
            self.refuse_waiting(call, Status::unavailable(text));
        }
    }

    fn refuse_waiting(&self, call: WaitingCall, refusal: Status) {
        if matches!(call.step, Step::Infer(_)) {
            self.in_flight.release(call.id);
            self.in_flight.end();
        }
        call.api.resume_session_call();
        self.answer(call.id, Err(refusal));
    }
}
