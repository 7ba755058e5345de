//! Which task polls the calls of a connection?

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nerite_listen::{Overdue, Peers, StallTimer, TimeLimits};
use nerite_request::Peer;
use nerite_watchdog::{FairPolls, Flow, FrontEnd, busy_for};
use tokio::time::Sleep;

use crate::serve::{Call, ConnectionCalls};

/// If a poll of a connection has taken this long, it spawns further calls as tasks without polling them first.
const IN_PLACE_MAX: Duration = Duration::from_millis(2);

/// Polls each new call once in its connection's task, and spawns it as a task only if it must wait.
///
/// Most calls arrive in one piece and are answered at once. They need no task, no queue and no wake-up of another thread, and their answer is sent by
/// the flush at the end of the same poll of the connection.
#[derive(Clone, Debug)]
pub(crate) struct FirstPollInPlace(Arc<ExecutorState>);

/// State shared by the calls of one connection.
#[derive(Debug)]
pub(crate) struct ExecutorState {
    /// The connection's calls.
    pub(crate) connection_calls: Arc<ConnectionCalls>,
    /// The limits on how long clients may keep the server waiting.
    pub(crate) times: TimeLimits,
    /// Counts the calls that exceed the limits.
    pub(crate) peers: Arc<Peers>,
    /// The client.
    pub(crate) peer: Peer,
    /// The flow that is charged for the processor time of the calls.
    pub(crate) flow: Flow,
}

impl FirstPollInPlace {
    pub(crate) fn new(shared: ExecutorState) -> FirstPollInPlace {
        FirstPollInPlace(Arc::new(shared))
    }

    /// Spawns a call as a task.
    fn spawn<F: Future<Output = ()> + Send + Unpin + 'static>(&self, mut call: F, state: Option<Call>) {
        let mut polls = FairPolls::new(FrontEnd::Grpc, &self.0.flow);
        let mut limited =
            state.map(|state| Limited { state, timer: StallTimer::new(self.0.times), shared: Arc::clone(&self.0) });
        drop(tokio::spawn(async move {
            // The timer is stored in the task, so that it needs no box.
            let mut sleep = pin!(None);
            let mut poll = |cx: &mut Context<'_>| match &mut limited {
                Some(limited) => limited.poll(cx, &mut call, sleep.as_mut()),
                None => Pin::new(&mut call).poll(cx),
            };
            poll_fn(|cx| polls.poll(cx, &mut poll)).await;
        }));
    }
}

/// A call can be moved after its first poll, because its service's future is in a box.
impl<F: Future<Output = ()> + Send + Unpin + 'static> hyper::rt::Executor<F> for FirstPollInPlace {
    fn execute(&self, mut call: F) {
        let state = self.0.connection_calls.take_next();
        if busy_for() > IN_PLACE_MAX {
            return self.spawn(call, state);
        }
        // No one uses this waker later: the new task polls the call again before it sleeps.
        let mut context = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut call).poll(&mut context))) {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => self.spawn(call, state),
            // Dropping the call resets its stream. Other calls of the connection continue.
            Err(_) => log::error!("a gRPC call panicked; its connection goes on"),
        }
    }
}

/// The limits on how long the client of a waiting call may keep the server waiting.
struct Limited {
    state: Call,
    timer: StallTimer,
    shared: Arc<ExecutorState>,
}

impl Limited {
    /// Polls the call. Ready also if the client keeps the server waiting for too long. Then the call must be dropped, which resets its stream.
    fn poll<F: Future<Output = ()> + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        call: &mut F,
        mut sleep: Pin<&mut Option<Sleep>>,
    ) -> Poll<()> {
        loop {
            if Pin::new(&mut *call).poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let stalled = self.timer.poll(cx, &self.state.progress, sleep.as_mut());
            let Poll::Ready(overdue) = stalled else { return Poll::Pending };
            self.shared.peers.note_ended(&self.shared.peer, overdue);
            if overdue != Overdue::Body || self.state.gave_up() {
                return Poll::Ready(());
            }
            // The client gets the reason, if it still reads.
            self.state.give_up();
            self.timer.set_limits(self.shared.times);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use hyper::rt::Executor as _;

    use super::*;
    use nerite_listen::{Awaited, ConnectionLimits, Progress};
    use nerite_watchdog::fair;

    fn executor() -> FirstPollInPlace {
        FirstPollInPlace::new(ExecutorState {
            connection_calls: ConnectionCalls::new(Arc::new(Progress::new(Awaited::Head))),
            times: TimeLimits::default(),
            peers: Peers::new(ConnectionLimits::for_descriptors(64)),
            peer: Peer::Unknown,
            flow: Flow::alone(),
        })
    }

    #[test]
    fn a_call_that_need_not_wait_is_executed_without_a_runtime() {
        let done = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&done);
        executor().execute(Box::pin(async move {
            seen.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the test holds its thread on purpose")]
    async fn a_poll_that_took_long_executes_no_more_calls() {
        let (executor, done) = (executor(), Arc::new(AtomicU32::new(0)));
        let call = || {
            let done = Arc::clone(&done);
            Box::pin(async move {
                std::thread::sleep(2 * IN_PLACE_MAX);
                done.fetch_add(1, Ordering::Relaxed);
            })
        };
        let connection = fair(FrontEnd::Grpc, &Flow::alone(), async {
            (0..3).for_each(|_| executor.execute(call()));
            done.load(Ordering::Relaxed)
        });
        // 0 if the system suspended the thread before the first call.
        assert!(connection.await <= 1);
        while done.load(Ordering::Relaxed) < 3 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_panic_ends_only_its_call() {
        executor().execute(Box::pin(async { panic!("a call's own") }));
    }

    #[test]
    fn a_call_that_waits_continues_in_a_task() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
        let (sender, receiver) = mpsc::channel();
        runtime.block_on(async {
            executor().execute(Box::pin(async move {
                tokio::task::yield_now().await;
                sender.send(7).expect("the test waits");
            }));
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(receiver.try_recv(), Ok(7));
    }

    /// Executes a call that never ends by itself. Returns the time after which it was dropped.
    async fn ended_after(awaited: Awaited, gives_up: bool) -> (u64, bool) {
        let executor = executor();
        let call = executor.0.connection_calls.begin_call(&Arc::default());
        call.progress.wait_for(awaited);
        let state = call.clone();
        let begun = tokio::time::Instant::now();
        executor.execute(std::future::poll_fn(move |_| {
            let _held = &call;
            if gives_up && call.gave_up() { Poll::Ready(()) } else { Poll::Pending }
        }));
        while state.owners() > 1 {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        (begun.elapsed().as_secs(), state.gave_up())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_keeps_the_server_waiting_ends() {
        // One call reacts when it has to give up. The other does not even wake up.
        let (seconds, gave_up) = ended_after(Awaited::Body, true).await;
        assert!((60..=62).contains(&seconds) && gave_up, "{seconds}");
        let (seconds, gave_up) = ended_after(Awaited::Body, false).await;
        assert!((120..=122).contains(&seconds) && gave_up, "{seconds}");
        let (seconds, gave_up) = ended_after(Awaited::Write, false).await;
        assert!((60..=62).contains(&seconds) && !gave_up, "{seconds}");
        let forever = tokio::time::timeout(std::time::Duration::from_hours(1), ended_after(Awaited::Nothing, false));
        assert!(forever.await.is_err());
    }
}
