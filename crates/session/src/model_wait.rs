//! How do calls wait for models whose load they began, while the session's later packets are read?
//!
//! ```text
//!   Infer, Prepare, DescribeModel of a model that is not loaded ──► queue of the model ──► loaded, or not ──► one call after the other goes on
//!   later packets: calls of other models begin at once, calls of the same model wait in its queue
//! ```

use nerite_api::timeout_is_over;
use nerite_request::{Code, Status};

use crate::answer::CallOutcome;
use crate::limits::{INFERENCE_BYTES, WAITING_CALLS_MAX};
use crate::session::Session;
use crate::waiting::{Loaded, RemainingWork, WaitingCall};

impl Session {
    /// The result of `find`. `None` if the call has to wait for the model, because the model is not loaded or because earlier calls still wait for it.
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

    /// Lets a call wait for its model. `bytes` is how many bytes of its packet the call keeps.
    pub(crate) fn wait_for(&mut self, model: &str, id: u64, bytes: usize, work: RemainingWork) -> Result<(), Status> {
        if self.waits.count() >= WAITING_CALLS_MAX {
            return Err(Status::unavailable(format!(
                "model '{model}' is not loaded yet, and {WAITING_CALLS_MAX} calls of this session wait for models, which is all that may; \
                 wait for one of their answers"
            )));
        }
        let charge = self.api.account().charge(INFERENCE_BYTES + bytes);
        let timeout = Box::pin(timeout_is_over(work.timeout_us()));
        self.waits.add(model, WaitingCall { id, work, api: self.api.in_session_call(), charge, timeout });
        Ok(())
    }

    /// Continues a call whose model is loaded, or failed to load.
    pub(crate) async fn resume(&mut self, call: WaitingCall, loaded: Loaded) {
        let WaitingCall { id, work, api, charge: _charge, .. } = call;
        api.resume_session_call();
        let (_held, loaded) = loaded.map_or_else(|error| (None, Err(error)), |held| (Some(held), Ok(())));
        let outcome = match work {
            RemainingWork::Infer(begun) => self.start_loaded(id, *begun, loaded).await.map(|()| CallOutcome::UnderWay),
            RemainingWork::Prepare(preparation) => self.finish_preparation(*preparation, loaded).await,
            RemainingWork::Describe(model) => loaded.and_then(|()| self.describe(&model)).map(CallOutcome::from),
        };
        self.answer(id, outcome);
        // All calls that waited for a model can go on at once. Other sessions of this thread get their turn between them.
        tokio::task::yield_now().await;
    }

    /// Refuses the inference with that id if it waits for its model, because the client has cancelled it.
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
        if matches!(call.work, RemainingWork::Infer(_)) {
            self.in_flight.release(call.id);
            self.in_flight.end();
        }
        call.api.resume_session_call();
        self.answer(call.id, Err(refusal));
    }
}
