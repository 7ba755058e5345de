//! How does a request wait for a model that is loaded on demand?

use nerite_request::Status;
use tokio::sync::oneshot;

use crate::Api;

impl Api {
    /// Whether this client may load and unload models. Where requests load them, a client could else take those of others away.
    pub(crate) fn check_control(&self) -> Result<(), Status> {
        self.0.engine.check_client_control()?;
        if self.0.engine.is_on_demand() && !self.peer().is_operator() {
            return Err(Status::unavailable(
                "explicit model load / unload is not allowed; the server runs with --model-control-mode=demand, and only root and the \
                 user who runs it load and unload models there",
            ));
        }
        Ok(())
    }

    /// Whether a request for this model must wait for [`Api::wait_for_model`] before it is admitted.
    pub fn must_wait_for(&self, model: &str) -> bool {
        self.0.engine.is_loadable(model)
    }

    /// As [`Api::wait_for_model`], where that is needed.
    pub async fn want_model(&self, model: &str) -> Result<(), Status> {
        // Boxed: the room for the wait is not kept in every call.
        if self.must_wait_for(model) { Box::pin(self.wait_for_model(model)).await } else { Ok(()) }
    }

    /// Has a model loaded that is not up, in control mode `demand`. Who drops the future waits no more.
    pub async fn wait_for_model(&self, model: &str) -> Result<(), Status> {
        self.check_started()?;
        let (tell, told) = oneshot::channel();
        let _waiting = self.0.engine.demand(model, self.peer(), move |outcome| drop(tell.send(outcome)))?;
        told.await.unwrap_or_else(|_| Err(Status::internal(format!("the load of '{model}' was abandoned"))))
    }
}
