//! How does a call wait for a model that it has caused to load?

use nerite_request::Status;

use crate::session::Session;

impl Session {
    /// As [`nerite_api::Api::find_or_load`]. Stops waiting if the client closes the connection or the server stops.
    pub(crate) async fn find_or_load<T>(&self, model: &str, find: impl Fn() -> Result<T, Status>) -> Result<T, Status> {
        if let Some(found) = self.api.unless_loadable(model, find())? {
            return Ok(found);
        }
        // Boxed, so that the future of every other call does not include the wait.
        Box::pin(self.wait_for_model(model)).await?;
        find()
    }

    async fn wait_for_model(&self, model: &str) -> Result<(), Status> {
        let mut stop = self.stop.clone();
        let given_up = |why: &str| Err(Status::unavailable(format!("model '{model}' is not loaded yet, and {why}")));
        tokio::select! {
            biased;
            outcome = self.api.wait_for_model(model) => outcome,
            () = stop.wait() => given_up("the server stops"),
            () = self.socket.hung_up() => given_up("the client has gone"),
        }
    }
}
