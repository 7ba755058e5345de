//! When does the server stop?

use tokio::sync::watch;

/// Becomes ready when the server is to stop.
#[derive(Clone)]
pub(crate) struct Stopped(pub(crate) watch::Receiver<bool>);

impl Stopped {
    pub(crate) async fn wait(&mut self) {
        // An error means that the handle was dropped, so the server can no longer be stopped through it.
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
