//! How does a request wait for a model that is loaded on demand?

use nerite_request::Status;
use tokio::sync::oneshot;

use crate::Api;

impl Api {
    /// Whether this client may load and unload models. If requests load models, a client could otherwise unload models that others use.
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
        Box::pin(self.wait_for_model(model)).await?;
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

    /// Loads a model that is not loaded, in control mode `demand`. Dropping the future ends the wait. A stop of the server ends it too, and refuses
    /// the call like all calls that come later.
    pub async fn wait_for_model(&self, model: &str) -> Result<(), Status> {
        self.check_taking_on()?;
        self.check_started()?;
        self.check_model(model)?;
        let (sender, outcome) = oneshot::channel();
        let _waiting = self.inner.engine.demand(model, self.peer(), move |outcome| drop(sender.send(outcome)))?;
        outcome.await.unwrap_or_else(|_| Err(Status::internal(format!("the load of '{model}' was abandoned"))))?;
        // The load may have ended at the moment of the stop.
        self.check_taking_on()
    }
}
