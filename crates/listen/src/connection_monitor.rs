//! When does the server end a connection before its client does?

use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::Sleep;

use crate::peers::{ConnectionPermit, Peers};
use crate::progress::Progress;
use crate::stall::{Overdue, StallTimer, TimeLimits};
use crate::stop_signal::{Stage, StopSignal};

/// The limits on the connections of all front ends.
#[derive(Clone, Debug)]
pub struct ConnectionRules {
    /// The limits on the number of connections.
    pub peers: Arc<Peers>,
    /// The limits on how long clients may keep the server waiting.
    pub times: TimeLimits,
}

/// A connection, as its protocol serves it.
pub trait Served {
    /// Serves the connection as far as possible without waiting. Ready when the connection has ended.
    fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Makes the connection end after a request. It is served until then. May be called several times.
    fn drain(&mut self);

    /// Makes the connection end once all requests that have begun are answered.
    fn shut_down(&mut self);
}

/// A connection that is a future, and its graceful shutdown.
pub struct FutureConnection<'c, C> {
    /// Ready when the connection has ended.
    pub connection: Pin<&'c mut C>,
    /// Makes it end once all requests that have begun are answered.
    pub shut_down: fn(Pin<&mut C>),
    /// Set when the connection is to end after a request.
    pub is_draining: &'c AtomicBool,
}

impl<C: Future> Served for FutureConnection<'_, C> {
    fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // An error concerns the client of this connection only, so it is dropped.
        self.connection.as_mut().poll(cx).map(drop)
    }

    fn drain(&mut self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    fn shut_down(&mut self) {
        (self.shut_down)(self.connection.as_mut());
    }
}

/// Serves a connection until it ends, or until the monitor ends it. The monitor ends an overdue connection at once. Otherwise the client has the time
/// `grace` to notice the end.
pub async fn monitor_connection(served: &mut impl Served, monitor: &mut ConnectionMonitor, grace: Duration) {
    poll_fn(|cx| {
        loop {
            if mem::take(&mut monitor.begins_draining) {
                served.drain();
            }
            if served.poll_serve(cx).is_ready() {
                return Poll::Ready(());
            }
            match monitor.poll(cx, grace) {
                Poll::Pending if monitor.begins_draining => {}
                Poll::Pending => return Poll::Pending,
                Poll::Ready(EndReason::Overdue(overdue)) => {
                    monitor.note_ended(overdue);
                    return Poll::Ready(());
                }
                Poll::Ready(EndReason::Leave | EndReason::Stopping) => served.shut_down(),
            }
        }
    })
    .await;
}

/// Watches one connection, and notifies the task that serves it when the connection should end.
pub struct ConnectionMonitor {
    permit: ConnectionPermit,
    timer: StallTimer,
    /// The sleep of the timer.
    sleep: Pin<Box<Option<Sleep>>>,
    stop: StopSignal,
    /// Wakes the task when the server drains or stops, or the connection is evicted.
    wake: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_registered: bool,
    /// Whether the server began to drain, and [`Served::drain`] is to be called.
    begins_draining: bool,
    /// Whether [`EndReason::Stopping`] was returned.
    is_stopping: bool,
    /// Whether [`EndReason::Leave`] was returned.
    is_leaving: bool,
}

/// Why a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Its client kept the server waiting. Close it at once.
    Overdue(Overdue),
    /// It was evicted for another connection, or idle for too long. Close it as soon as closing it loses no request.
    Leave,
    /// The server stops. Close it once its complete requests are answered.
    Stopping,
}

impl ConnectionMonitor {
    /// A monitor for the connection that holds `permit`. `limits` apply until `stop`.
    pub fn new(permit: ConnectionPermit, limits: TimeLimits, stop: StopSignal) -> ConnectionMonitor {
        let wake = Box::pin(evicted_or(&permit, stop.clone(), Stage::Draining));
        let begins_draining = stop.has_advanced();
        let timer = StallTimer::new(limits);
        let sleep = Box::pin(None);
        ConnectionMonitor {
            permit,
            timer,
            sleep,
            stop,
            wake,
            is_registered: false,
            begins_draining,
            is_stopping: false,
            is_leaving: false,
        }
    }

    /// The connection's progress.
    pub fn progress(&self) -> &Arc<Progress> {
        self.permit.progress()
    }

    /// The connection's permit.
    pub fn permit(&self) -> &ConnectionPermit {
        &self.permit
    }

    /// Must be called each time after the connection was polled, with the same waker. Ready when the connection is to end.
    ///
    /// [`EndReason::Leave`] and [`EndReason::Stopping`] are returned once each, and the connection may be served further. From then on the server does not wait
    /// for new requests: the client has the time `grace` to notice that the connection ends.
    pub fn poll(&mut self, cx: &mut Context<'_>, grace: Duration) -> Poll<EndReason> {
        if self.next_stage(cx) == Some(Stage::Stopping) {
            self.is_stopping = true;
            self.timer.set_limits(TimeLimits::stopping(grace));
            return Poll::Ready(EndReason::Stopping);
        }
        if !self.is_leaving && !self.is_stopping && self.permit.is_evicted() {
            self.wake_at_stop();
            let at_once = self.permit.closes_at_once();
            return self.leave(if at_once { Duration::ZERO } else { grace });
        }
        match self.timer.poll(cx, self.permit.progress(), self.sleep.as_mut()) {
            Poll::Ready(Overdue::Idle) if !self.is_leaving && !self.is_stopping => {
                self.note_ended(Overdue::Idle);
                self.leave(grace)
            }
            outcome => outcome.map(EndReason::Overdue),
        }
    }

    /// The stage of the server, if it is another one than at the last call. Registers the task to be woken.
    fn next_stage(&mut self, cx: &mut Context<'_>) -> Option<Stage> {
        loop {
            if !self.is_registered {
                self.is_registered = true;
                // The result does not matter: the checks that follow find out what happened. Unconstrained, because a task that has used up its
                // tokio budget would return before the waker is registered.
                let _ = pin!(unconstrained(self.wake.as_mut())).poll(cx);
            }
            match self.stop.advanced() {
                Some(Stage::Draining | Stage::ListenersClosed) => {
                    self.begins_draining = true;
                    self.wake_at_stop();
                }
                stage => return stage,
            }
        }
    }

    /// Has the task woken when the server stops, and when the connection is evicted if that has not happened.
    fn wake_at_stop(&mut self) {
        let stop = self.stop.clone();
        self.wake = if self.permit.is_evicted() {
            Box::pin(wait_for_stop(stop))
        } else {
            Box::pin(evicted_or(&self.permit, stop, Stage::Stopping))
        };
        self.is_registered = false;
    }

    fn leave(&mut self, grace: Duration) -> Poll<EndReason> {
        self.is_leaving = true;
        self.timer.set_limits(TimeLimits::stopping(grace));
        Poll::Ready(EndReason::Leave)
    }

    /// Counts a client that kept the server waiting, unless its connection was to end anyway.
    pub fn note_ended(&self, overdue: Overdue) {
        if !self.is_stopping && !self.is_leaving {
            self.permit.note_ended(overdue);
        }
    }
}

/// Waits until the connection is evicted, or the server has come to this stage.
fn evicted_or(permit: &ConnectionPermit, mut stop: StopSignal, stage: Stage) -> impl Future<Output = ()> + use<> {
    let evicted = permit.evicted();
    async move {
        tokio::select! {
            () = evicted => {}
            () = stop.wait_for(stage) => {}
        }
    }
}

async fn wait_for_stop(mut stop: StopSignal) {
    stop.wait().await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_request::Peer;
    use tokio::sync::watch;

    use super::*;
    use crate::peers::ConnectionLimits;
    use crate::progress::Awaited;

    const LEAVE: Duration = Duration::from_millis(200);

    fn monitor(peers: &Arc<Peers>, stop: &watch::Sender<Stage>) -> ConnectionMonitor {
        ConnectionMonitor::new(
            peers.admit(&Peer::Unknown).unwrap(),
            TimeLimits::default(),
            StopSignal(stop.subscribe()),
        )
    }

    async fn next(monitor: &mut ConnectionMonitor) -> EndReason {
        poll_fn(|cx| monitor.poll(cx, LEAVE)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_only_for_connections_with_a_complete_request() {
        let peers = Peers::new(ConnectionLimits::for_descriptors(64));
        let stop = watch::Sender::new(Stage::Serving);
        for (awaited, ends) in [(Awaited::Head, true), (Awaited::Body, true), (Awaited::Nothing, false)] {
            stop.send_replace(Stage::Serving);
            let mut monitor = monitor(&peers, &stop);
            monitor.progress().wait_for(awaited);
            let (why, _) = tokio::join!(next(&mut monitor), async { stop.send_replace(Stage::Stopping) });
            assert_eq!(why, EndReason::Stopping);
            let ended = tokio::time::timeout(Duration::from_hours(1), next(&mut monitor)).await;
            assert_eq!(ended.is_ok(), ends, "{awaited:?}");
        }
        // A stop is not counted as a client's fault.
        assert!(peers.counts().ended.iter().all(|(_, count)| *count == 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_ended_gracefully_first() {
        let peers = Peers::new(ConnectionLimits::for_descriptors(64));
        let stop = watch::Sender::new(Stage::Serving);
        let mut monitor = monitor(&peers, &stop);
        monitor.progress().wait_for(Awaited::Request);
        assert_eq!(next(&mut monitor).await, EndReason::Leave);
        assert_eq!(next(&mut monitor).await, EndReason::Overdue(Overdue::Idle));
        assert_eq!(peers.counts().ended, [("head", 0), ("idle", 1), ("body", 0), ("write", 0), ("shed", 0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_evicted_connection_is_notified_once_and_still_notices_a_stop() {
        let peers = Peers::new(ConnectionLimits { all_max: 16, per_peer_max: 1 });
        let stop = watch::Sender::new(Stage::Serving);
        let mut first = monitor(&peers, &stop);
        first.progress().wait_for(Awaited::Request);
        let (why, second) = tokio::join!(next(&mut first), async { monitor(&peers, &stop) });
        assert_eq!(why, EndReason::Leave);
        first.progress().begin_request();
        let (why, _) = tokio::join!(next(&mut first), async { stop.send_replace(Stage::Stopping) });
        assert_eq!(why, EndReason::Stopping);
        drop(second);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_drains_is_told_once_and_is_served_until_the_stop() {
        #[derive(Default)]
        struct Counting {
            drains: usize,
            is_served_afterwards: bool,
        }
        impl Served for Counting {
            fn poll_serve(&mut self, _: &mut Context<'_>) -> Poll<()> {
                self.is_served_afterwards = self.drains > 0;
                Poll::Pending
            }

            fn drain(&mut self) {
                self.drains += 1;
            }

            fn shut_down(&mut self) {}
        }
        let peers = Peers::new(ConnectionLimits::for_descriptors(64));
        let stop = watch::Sender::new(Stage::Serving);
        let mut monitor = monitor(&peers, &stop);
        monitor.progress().wait_for(Awaited::Nothing);
        let mut served = Counting::default();
        let hour = Duration::from_hours(1);
        let mut serving = Box::pin(monitor_connection(&mut served, &mut monitor, LEAVE));
        assert!(tokio::time::timeout(hour, &mut serving).await.is_err());
        stop.send_replace(Stage::Draining);
        assert!(tokio::time::timeout(hour, &mut serving).await.is_err());
        drop(serving);
        assert_eq!((served.drains, served.is_served_afterwards), (1, true));
        let (why, _) = tokio::join!(next(&mut monitor), async { stop.send_replace(Stage::Stopping) });
        assert_eq!(why, EndReason::Stopping);
    }
}
