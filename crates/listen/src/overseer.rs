//! When does a connection end before its client ends it?

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::unconstrained;

use crate::peers::{ConnectionPermit, Peers};
use crate::progress::Progress;
use crate::stall::{Overdue, StallTimer, TimeLimits};

/// What binds the connections of all front ends.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How many there may be.
    pub peers: Arc<Peers>,
    /// How long they may keep the server waiting.
    pub times: TimeLimits,
}

/// A connection, as its protocol serves it.
pub trait Served {
    /// Does what can be done now. Ready when the connection has ended.
    fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Has the connection end once the requests are answered that have begun.
    fn shut_down(&mut self);
}

/// A connection that is a future, and what has it end well.
pub struct Conversation<'c, C> {
    /// Ready when the connection has ended.
    pub connection: Pin<&'c mut C>,
    /// Has it end once the requests are answered that have begun.
    pub shut_down: fn(Pin<&mut C>),
}

impl<C: Future> Served for Conversation<'_, C> {
    fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // How a connection broke is the client's affair.
        self.connection.as_mut().poll(cx).map(drop)
    }

    fn shut_down(&mut self) {
        (self.shut_down)(self.connection.as_mut());
    }
}

/// Serves a connection until it ends, or until it is to end for another reason. Who is told to leave gets `leave` to see it.
pub async fn oversee(served: &mut impl Served, overseer: &mut Overseer, leave: Duration) {
    poll_fn(|cx| {
        loop {
            if served.poll_serve(cx).is_ready() {
                return Poll::Ready(());
            }
            match overseer.poll(cx, leave) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Why::Overdue(overdue)) => {
                    overseer.note_ended(overdue);
                    return Poll::Ready(());
                }
                Poll::Ready(Why::Leave | Why::Stopping) => served.shut_down(),
            }
        }
    })
    .await;
}

/// Looks after one connection, for the task that serves it.
pub struct Overseer {
    place: ConnectionPermit,
    timer: StallTimer,
    stop: watch::Receiver<bool>,
    /// Wakes the task when the server stops or the place is taken.
    news: Pin<Box<dyn Future<Output = ()> + Send>>,
    listening: bool,
    /// Whether [`Why::Stopping`] was said.
    stopping: bool,
    /// Whether [`Why::Leave`] was said.
    leaving: bool,
}

/// Why a connection should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its client kept the server waiting. It is to be closed at once.
    Overdue(Overdue),
    /// Another connection got its place, or it was idle for too long. It is to be closed once nothing is lost by it.
    Leave,
    /// The server stops. It is to be closed once its whole requests are answered.
    Stopping,
}

impl Overseer {
    /// For a connection with this place, which these limits bind until `stop` holds true.
    pub fn new(place: ConnectionPermit, limits: TimeLimits, stop: watch::Receiver<bool>) -> Overseer {
        let (taken, stopped) = (place.taken(), wait_for_stop(stop.clone()));
        let news = Box::pin(async move {
            tokio::select! {
                () = taken => {}
                () = stopped => {}
            }
        });
        let timer = StallTimer::new(limits);
        Overseer { place, timer, stop, news, listening: false, stopping: false, leaving: false }
    }

    /// The connection's notes.
    pub fn progress(&self) -> &Arc<Progress> {
        self.place.progress()
    }

    /// The connection's place.
    pub fn place(&self) -> &ConnectionPermit {
        &self.place
    }

    /// To be called each time the connection has been polled, with the same waker. Ready when it should end.
    ///
    /// After [`Why::Leave`] and [`Why::Stopping`] the connection may be served on; each is said once. From then on requests are
    /// not waited for any more: a client gets `leave` to see that the connection ends.
    pub fn poll(&mut self, cx: &mut Context<'_>, leave: Duration) -> Poll<Why> {
        if !self.listening {
            self.listening = true;
            // Woken or not, the two questions below tell what happened. A task that has used up its turn is put off before its waker is
            // kept, and would not ask again.
            let _ = pin!(unconstrained(self.news.as_mut())).poll(cx);
        }
        // Answered without a lock. What it says is news only until it was said.
        if !self.stopping && self.stop.has_changed().unwrap_or(false) && *self.stop.borrow_and_update() {
            self.stopping = true;
            self.timer.set_limits(TimeLimits::stopping(leave));
            return Poll::Ready(Why::Stopping);
        }
        if !self.leaving && !self.stopping && self.place.is_taken() {
            self.news = Box::pin(wait_for_stop(self.stop.clone()));
            self.listening = false;
            let at_once = self.place.leaves_at_once();
            return self.leave(if at_once { Duration::ZERO } else { leave });
        }
        match self.timer.poll(cx, self.place.progress()) {
            Poll::Ready(Overdue::Idle) if !self.leaving && !self.stopping => {
                self.note_ended(Overdue::Idle);
                self.leave(leave)
            }
            outcome => outcome.map(Why::Overdue),
        }
    }

    fn leave(&mut self, leave: Duration) -> Poll<Why> {
        self.leaving = true;
        self.timer.set_limits(TimeLimits::stopping(leave));
        Poll::Ready(Why::Leave)
    }

    /// Notes that the client kept the server waiting, unless it was told to leave anyway.
    pub fn note_ended(&self, overdue: Overdue) {
        if !self.stopping && !self.leaving {
            self.place.note_ended(overdue);
        }
    }
}

async fn wait_for_stop(mut stop: watch::Receiver<bool>) {
    // An error means that nobody is left who could stop the server.
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_request::Peer;

    use super::*;
    use crate::peers::ConnectionLimits;
    use crate::progress::Awaited;

    const LEAVE: Duration = Duration::from_millis(200);

    fn overseer(peers: &Arc<Peers>, stop: &watch::Sender<bool>) -> Overseer {
        Overseer::new(peers.admit(&Peer::Unknown).unwrap(), TimeLimits::default(), stop.subscribe())
    }

    async fn next(overseer: &mut Overseer) -> Why {
        poll_fn(|cx| overseer.poll(cx, LEAVE)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_who_has_no_whole_request_and_waits_for_the_others() {
        let peers = Peers::new(ConnectionLimits::for_descriptors(64));
        let stop = watch::Sender::new(false);
        for (awaited, ends) in [(Awaited::Head, true), (Awaited::Body, true), (Awaited::Nothing, false)] {
            stop.send_replace(false);
            let mut overseer = overseer(&peers, &stop);
            overseer.progress().wait_for(awaited);
            let (why, _) = tokio::join!(next(&mut overseer), async { stop.send_replace(true) });
            assert_eq!(why, Why::Stopping);
            let ended = tokio::time::timeout(Duration::from_hours(1), next(&mut overseer)).await;
            assert_eq!(ended.is_ok(), ends, "{awaited:?}");
        }
        // Nobody is to blame for a stop.
        assert!(peers.counts().ended.iter().all(|(_, count)| *count == 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_idle_is_told_to_leave_first() {
        let peers = Peers::new(ConnectionLimits::for_descriptors(64));
        let stop = watch::Sender::new(false);
        let mut overseer = overseer(&peers, &stop);
        overseer.progress().wait_for(Awaited::Request);
        assert_eq!(next(&mut overseer).await, Why::Leave);
        assert_eq!(next(&mut overseer).await, Why::Overdue(Overdue::Idle));
        assert_eq!(peers.counts().ended, [("head", 0), ("idle", 1), ("body", 0), ("write", 0), ("shed", 0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn whose_place_is_taken_is_told_once_and_sees_a_stop_all_the_same() {
        let peers = Peers::new(ConnectionLimits { all_max: 16, per_peer_max: 1 });
        let stop = watch::Sender::new(false);
        let mut first = overseer(&peers, &stop);
        first.progress().wait_for(Awaited::Request);
        let (why, second) = tokio::join!(next(&mut first), async { overseer(&peers, &stop) });
        assert_eq!(why, Why::Leave);
        first.progress().begin_request();
        let (why, _) = tokio::join!(next(&mut first), async { stop.send_replace(true) });
        assert_eq!(why, Why::Stopping);
        drop(second);
    }
}
