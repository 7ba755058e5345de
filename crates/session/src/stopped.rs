//! When does the server stop?

use tokio::sync::watch;

/// Ready when the server is asked to stop.
#[derive(Clone)]
pub(crate) struct Stopped(pub(crate) watch::Receiver<bool>);

impl Stopped {
    pub(crate) async fn wait(&mut self) {
        // An error means that the handle is gone, and with it everybody who could ask.
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
