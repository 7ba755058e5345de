//! Which task polls the calls of a connection?

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nerite_listen::{Overdue, Peers, StallTimer, TimeLimits};
use nerite_request::Peer;
use nerite_watchdog::{Flow, FrontEnd, busy_for, fair_unpin};

use crate::serve::{Call, Link};

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
    pub(crate) link: Arc<Link>,
    /// The limits on how long clients may keep the server waiting.
    pub(crate) times: TimeLimits,
    /// Counts the calls that exceed them.
    pub(crate) peers: Arc<Peers>,
    /// The client.
    pub(crate) peer: Peer,
    /// The flow that their processor time is charged to.
    pub(crate) flow: Flow,
}

impl FirstPollInPlace {
    pub(crate) fn new(shared: ExecutorState) -> FirstPollInPlace {
        FirstPollInPlace(Arc::new(shared))
    }

    /// Spawns a call as a task.
    fn spawn<F: Future<Output = ()> + Send + Unpin + 'static>(&self, call: F, state: Option<Arc<Call>>) {
        let flow = &self.0.flow;
        match state {
            Some(state) => {
                let timer = StallTimer::new(self.0.times);
                let waiting = Waiting { call, state, timer, shared: Arc::clone(&self.0) };
                drop(tokio::spawn(fair_unpin(FrontEnd::Grpc, flow, waiting)));
            }
            None => drop(tokio::spawn(fair_unpin(FrontEnd::Grpc, flow, call))),
        }
    }
}

/// A call can be moved after its first poll, because its service's future is in a box.
impl<F: Future<Output = ()> + Send + Unpin + 'static> hyper::rt::Executor<F> for FirstPollInPlace {
    fn execute(&self, mut call: F) {
        let state = self.0.link.take_next();
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

/// A call that waits. It is dropped, which resets its stream, if its client keeps the server waiting for too long.
struct Waiting<F> {
    call: F,
    state: Arc<Call>,
    timer: StallTimer,
    shared: Arc<ExecutorState>,
}

impl<F: Future<Output = ()> + Unpin> Future for Waiting<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            if Pin::new(&mut this.call).poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let Poll::Ready(overdue) = this.timer.poll(cx, &this.state.progress) else { return Poll::Pending };
            this.shared.peers.note_ended(&this.shared.peer, overdue);
            if overdue != Overdue::Body || this.state.gave_up() {
                return Poll::Ready(());
            }
            // The client gets the reason, if it still reads.
            this.state.give_up();
            this.timer.set_limits(this.shared.times);
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
            link: Link::new(Arc::new(Progress::new(Awaited::Head))),
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
        let call = executor.0.link.begin_call(&Arc::default());
        call.progress.wait_for(awaited);
        let state = Arc::clone(&call);
        let begun = tokio::time::Instant::now();
        executor.execute(std::future::poll_fn(move |_| {
            let _held = &call;
            if gives_up && call.gave_up() { Poll::Ready(()) } else { Poll::Pending }
        }));
        while Arc::strong_count(&state) > 1 {
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
