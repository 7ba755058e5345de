//! When does a front end stop?

use tokio::sync::watch;

/// Reports that the front end stops.
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

    /// Whether the stop was signalled since the last call. Once the service is dropped: whether it was ever signalled. Takes no lock while the service
    /// lives and runs.
    pub(crate) fn has_come(&mut self) -> bool {
        // An error means that the service was dropped. A stop before that may not have been seen yet.
        self.0.has_changed().unwrap_or(true) && *self.0.borrow_and_update()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_seen_after_the_service_was_dropped() {
        for is_stopped in [true, false] {
            let (stop, signal) = watch::channel(false);
            let mut signal = StopSignal(signal);
            assert!(!signal.has_come());
            stop.send_replace(is_stopped);
            drop(stop);
            assert_eq!(signal.has_come(), is_stopped);
        }
    }
}
