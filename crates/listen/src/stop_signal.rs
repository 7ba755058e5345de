//! How far has a front end come on the way to its end?

use tokio::sync::watch;

/// A stage of a front end. Stages only advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// All connections and requests are served.
    #[default]
    Serving,
    /// Connections and requests are served, and each connection ends after a request.
    Draining,
    /// The same, and the listeners are closed.
    ListenersClosed,
    /// Connections end once their complete requests are answered.
    Stopping,
}

/// Reports that the front end stops, or drains before.
#[derive(Clone, Debug)]
pub struct StopSignal(pub(crate) watch::Receiver<Stage>);

impl StopSignal {
    /// Waits for the stop.
    pub async fn wait(&mut self) {
        self.wait_for(Stage::Stopping).await;
    }

    /// Waits for this stage or a later one.
    pub(crate) async fn wait_for(&mut self, stage: Stage) {
        // An error means that the service was dropped, so it can no longer be stopped.
        if self.0.wait_for(|now| *now >= stage).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether the stage advanced since the last call of [`StopSignal::advanced`].
    pub(crate) fn has_advanced(&self) -> bool {
        // An error means that the service was dropped. A stage before that may not have been seen yet.
        self.0.has_changed().unwrap_or(true)
    }

    /// The stage, if it advanced since the last call. Once the service is dropped: the stage. Takes no lock while the service lives and its stage stays.
    pub(crate) fn advanced(&mut self) -> Option<Stage> {
        self.has_advanced().then(|| *self.0.borrow_and_update())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_seen_after_the_service_was_dropped() {
        for stage in [Stage::Serving, Stage::Draining, Stage::Stopping] {
            let (stop, signal) = watch::channel(Stage::Serving);
            let mut signal = StopSignal(signal);
            assert_eq!(signal.advanced(), None);
            stop.send_replace(stage);
            drop(stop);
            assert_eq!(signal.advanced(), Some(stage));
        }
    }
}
