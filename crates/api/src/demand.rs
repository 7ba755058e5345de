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

    /// As [`Api::wait_for_model`], if the model is not loaded.
    pub async fn want_model(&self, model: &str) -> Result<(), Status> {
        // Boxed, so that the future of every call does not contain the space for the wait.
        if self.must_wait_for(model) { Box::pin(self.wait_for_model(model)).await } else { Ok(()) }
    }

    /// Loads a model that is not loaded, in control mode `demand`. Dropping the future ends the wait.
    pub async fn wait_for_model(&self, model: &str) -> Result<(), Status> {
        self.check_started()?;
        self.check_model(model)?;
        let (tell, told) = oneshot::channel();
        let _waiting = self.inner.engine.demand(model, self.peer(), move |outcome| drop(tell.send(outcome)))?;
        told.await.unwrap_or_else(|_| Err(Status::internal(format!("the load of '{model}' was abandoned"))))
    }
}
