//! How does a request wait for a model that is loaded on demand?

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use nerite_engine::Waiting;
use nerite_request::Status;
use tokio::sync::oneshot;

use crate::Api;

/// A load that was requested. The wait for the load ends when this is dropped.
pub struct ModelLoad {
    api: Api,
    model: String,
    outcome: oneshot::Receiver<Result<(), Status>>,
    waiting: Waiting,
}

/// A model that was loaded for a request. It is not evicted before this is dropped. Drop it once the request is admitted.
#[must_use]
pub struct LoadedModel {
    _waiting: Waiting,
}

impl Api {
    /// Refuses clients that may not load and unload models. If requests load models, only the operator may, because any other client could unload models
    /// that others use.
    pub(crate) fn check_control(&self) -> Result<(), Status> {
        self.inner.engine.check_client_control()?;
        if self.inner.engine.is_on_demand() && !self.peer().is_operator() {
            return Err(Status::unavailable(
                "explicit model load / unload is not allowed; the server runs with --model-control-mode=demand, and only root and the \
                 user who runs it load and unload models there",
            ));
        }
        Ok(())
    }

    /// Whether a request for this model must wait for [`Api::wait_for_model`] before it is admitted.
    pub fn must_wait_for(&self, model: &str) -> bool {
        self.inner.engine.is_loadable(model)
    }

    /// The result of `find` for a model. If the model is not loaded and requests load models, it is loaded and `find` is called again. So a loaded
    /// model is looked up once.
    pub async fn find_or_load<T>(&self, model: &str, mut find: impl FnMut() -> Result<T, Status>) -> Result<T, Status> {
        if let Some(found) = self.unless_loadable(model, find())? {
            return Ok(found);
        }
        // Boxed, so that the future of every call does not contain the space for the wait.
        let _loaded = Box::pin(self.wait_for_model(model, 0)).await?;
        find()
    }

    /// The result of a look-up. `None` if the caller must call [`Api::wait_for_model`] and look the model up again.
    pub fn unless_loadable<T>(&self, model: &str, found: Result<T, Status>) -> Result<Option<T>, Status> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(_) if self.must_wait_for(model) => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// Loads a model that is not loaded, in control mode `demand`, and waits for it as [`ModelLoad::within`] does.
    pub async fn wait_for_model(&self, model: &str, timeout_us: u64) -> Result<LoadedModel, Status> {
        self.request_load(model, true)?.within(timeout_us).await
    }

    /// Requests the load of a model that is not loaded, in control mode `demand`, while the rest of the client's message has yet to arrive.
    pub fn begin_load(&self, model: &str) -> Result<ModelLoad, Status> {
        self.request_load(model, false)
    }

    fn request_load(&self, model: &str, holds: bool) -> Result<ModelLoad, Status> {
        self.check_accepting()?;
        self.check_started()?;
        self.check_model(model)?;
        let (sender, outcome) = oneshot::channel();
        let done = move |outcome| drop(sender.send(outcome));
        let waiting = self.inner.engine.demand(model, self.peer(), holds, done)?;
        Ok(ModelLoad { api: self.clone(), model: model.to_owned(), outcome, waiting })
    }
}

impl ModelLoad {
    /// Waits for the load, at most for the timeout of a request; 0 is no timeout. The load goes on after the timeout. The wait also ends when the future is
    /// dropped and when the server stops. A stop refuses the call, as it refuses all later calls. Call this only when the client's message has arrived
    /// completely.
    pub async fn within(mut self, timeout_us: u64) -> Result<LoadedModel, Status> {
        self.waiting.hold();
        let mut over = pin!(timeout_is_over(timeout_us));
        let ended = poll_fn(|cx| match Pin::new(&mut self.outcome).poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(Ok(outcome)),
            Poll::Pending => over.as_mut().poll(cx).map(Err),
        });
        let abandoned = |_| Err(Status::internal(format!("the load of '{}' was abandoned", self.model)));
        ended.await?.unwrap_or_else(abandoned)?;
        // The load may have ended at the moment of the stop.
        self.api.check_accepting()?;
        Ok(LoadedModel { _waiting: self.waiting })
    }
}

/// The error of a request that waits for its model, once its timeout in microseconds is over. 0 is no timeout.
pub async fn timeout_is_over(timeout_us: u64) -> Status {
    if timeout_us == 0 {
        return pending().await;
    }
    tokio::time::sleep(Duration::from_micros(timeout_us)).await;
    Status::timed_out()
}
