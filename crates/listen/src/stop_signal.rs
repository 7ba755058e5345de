//! When does a front end stop?

use tokio::sync::watch;

/// Tells that the server stops.
#[derive(Clone, Debug)]
pub struct StopSignal(pub(crate) watch::Receiver<bool>);

impl StopSignal {
    /// Waits for the stop.
    pub async fn wait(&mut self) {
        // An error means that the service was dropped, so it can no longer be stopped.
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether a stop came since the last call. Takes no lock unless it did.
    pub(crate) fn has_come(&mut self) -> bool {
        self.0.has_changed().unwrap_or(false) && *self.0.borrow_and_update()
    }
}
