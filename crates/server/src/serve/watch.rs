//! How do the front ends' threads wait for models' processes, beside their connections?
//!
//! There is one task for each instance. The socket of its process is registered with the runtime when a run is left to front threads for the first
//! time, and stays registered for the runs after it. To register it anew costs two system calls and a task for each request.
//!
//! That task also does the work that follows: it takes the answer over, sends the next request to the process, and passes the answer on. If the
//! process answers meanwhile, that answer waits for the end of this work, even if another front thread is idle. The work is short: a worker does it
//! if the run took long. A task of its own for it would be one allocation more for each request.

use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use nerite_backend::Awaited;
use nerite_engine::{Waiter, Watch};
use nerite_locks::Mutex;
use nerite_watchdog::{FrontEnd, watched};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

type Then = Box<dyn FnOnce() + Send>;

/// Waits by the runtime of the front threads.
pub struct OnFrontThreads(pub Handle);

impl Watch for OnFrontThreads {
    fn is_here(&self) -> bool {
        Handle::try_current().is_ok()
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        let shared = Arc::<Shared>::default();
        let task = Task(Arc::clone(&shared));
        let task = self.0.spawn(watched(FrontEnd::Server, poll_fn(move |cx| task.poll(cx)))).abort_handle();
        Arc::new(OneWaiter { shared, runtime: self.0.clone(), task })
    }
}

/// Waits for one instance.
struct OneWaiter {
    shared: Arc<Shared>,
    runtime: Handle,
    task: AbortHandle,
}

/// The task of a waiter.
struct Task(Arc<Shared>);

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    /// The descriptor, as long as it is registered.
    registered: Option<AsyncFd<Watched>>,
    /// Called once the descriptor is readable.
    then: Option<Then>,
    /// Whether the descriptor became readable before there was a `then`.
    is_readable: bool,
    /// Wakes the task. `None` until the task was polled.
    waker: Option<Waker>,
    /// Whether the task has ended, because the runtime has.
    has_ended: bool,
}

impl Waiter for OneWaiter {
    fn when_readable(&self, what: Awaited, then: Then) {
        let mut state = self.shared.lock();
        // Fails if the system cannot watch more descriptors.
        let is_watched = !state.has_ended && state.register(what, &self.runtime);
        if !is_watched {
            drop(state);
            return drop(then);
        }
        state.then = Some(then);
        let waker = if state.is_readable { state.waker.clone() } else { None };
        drop(state);
        waker.iter().for_each(Waker::wake_by_ref);
    }

    fn release(&self) {
        let mut state = self.shared.lock();
        state.is_readable = false;
        state.registered = None;
    }
}

impl Drop for OneWaiter {
    fn drop(&mut self) {
        self.release();
        self.task.abort();
    }
}

impl State {
    /// Registers the descriptor unless it is registered already. Returns whether it is.
    fn register(&mut self, what: Awaited, runtime: &Handle) -> bool {
        if self.registered.as_ref().is_some_and(|known| known.get_ref().is(&what)) {
            return true;
        }
        let _entered = runtime.enter();
        self.registered = None;
        #[expect(
            deprecated,
            reason = "what follows it is unsafe for types that could name a descriptor that is not theirs; this one holds what it names"
        )]
        let registered = AsyncFd::with_interest(Watched(what), Interest::READABLE);
        self.registered = registered.ok();
        // If the task was not polled yet, its first poll looks.
        let waker = self.waker.clone();
        self.is_readable = waker.is_some_and(|waker| self.look(&mut Context::from_waker(&waker)));
        self.registered.is_some()
    }

    /// Whether the descriptor has become readable. Otherwise the task is woken when it is.
    fn look(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(Poll::Ready(ready)) = self.registered.as_ref().map(|registered| registered.poll_read_ready(cx)) else {
            return false;
        };
        // Packets that arrive after this are reported again. If there was an error, the reader of the descriptor gets it.
        let _ = ready.map(|mut ready| ready.clear_ready());
        true
    }
}

impl Task {
    /// Calls what is to be done for a readable descriptor. Never ends.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut has_run = false;
        loop {
            let mut state = self.0.lock();
            if state.waker.is_none() {
                state.waker = Some(cx.waker().clone());
            }
            if !state.is_readable && !state.look(cx) {
                return Poll::Pending;
            }
            state.is_readable = true;
            if state.then.is_some() && has_run {
                // This task yields after each call, so that tasks of connections run first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Some(then) = state.then.take() else { return Poll::Pending };
            state.is_readable = false;
            drop(state);
            then();
            has_run = true;
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_ended = true;
        let (registered, then) = (state.registered.take(), state.then.take());
        drop(state);
        drop((registered, then));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watched(Awaited);

impl Watched {
    fn is(&self, what: &Awaited) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(what))
    }
}

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::net::UnixDatagram;
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    struct Bench {
        runtime: Runtime,
        waiter: Arc<dyn Waiter>,
        says: Sender<bool>,
        said: Receiver<bool>,
    }

    impl Bench {
        fn new() -> Bench {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let waiter = OnFrontThreads(runtime.handle().clone()).waiter();
            let (says, said) = mpsc::channel();
            Bench { runtime, waiter, says, said }
        }

        /// Waits for a packet of this socket. The thread that sees it says `true`, and `false` if the packet is not there.
        fn wait_for(&self, socket: &Arc<UnixDatagram>) {
            let (says, ours) = (self.says.clone(), Arc::clone(socket));
            let then = move || {
                let is_there = ours.recv(&mut [0; 1]).is_ok();
                // The test may count the owners of the socket once it is told.
                drop(ours);
                says.send(is_there).unwrap();
            };
            self.waiter.when_readable(Arc::clone(socket) as Awaited, Box::new(then));
        }

        #[track_caller]
        fn check_said(&self, is_there: bool) {
            assert_eq!(self.said.recv_timeout(LONG).unwrap(), is_there);
        }
    }

    /// A socket of the server's, and the process's end of it.
    fn pair() -> (Arc<UnixDatagram>, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Arc::new(ours), theirs)
    }

    #[test]
    fn a_packet_is_seen_whether_it_comes_before_or_after_the_wait_begins() {
        let (bench, (ours, theirs)) = (Bench::new(), pair());
        for _ in 0..100 {
            theirs.send(&[1]).unwrap();
            bench.wait_for(&ours);
            bench.check_said(true);
            bench.wait_for(&ours);
            theirs.send(&[1]).unwrap();
            bench.check_said(true);
        }
    }

    #[test]
    fn the_next_process_has_a_socket_of_its_own() {
        let bench = Bench::new();
        for _ in 0..3 {
            let (ours, theirs) = pair();
            bench.wait_for(&ours);
            theirs.send(&[1]).unwrap();
            bench.check_said(true);
            bench.waiter.release();
            assert_eq!(Arc::strong_count(&ours), 1, "a released socket is not held");
        }
    }

    #[test]
    fn a_packet_that_another_thread_took_does_not_hide_the_next_one() {
        let (bench, (ours, theirs)) = (Bench::new(), pair());
        bench.wait_for(&ours);
        theirs.send(&[1]).unwrap();
        bench.check_said(true);
        theirs.send(&[1]).unwrap();
        while ours.recv(&mut [0; 1]).is_err() {}
        bench.wait_for(&ours);
        theirs.send(&[1]).unwrap();
        // The first packet may be noticed after it was taken.
        if !bench.said.recv_timeout(LONG).unwrap() {
            bench.wait_for(&ours);
            bench.check_said(true);
        }
    }

    #[test]
    fn what_cannot_be_called_any_more_is_dropped() {
        struct Dropped(Sender<bool>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.send(false).unwrap();
            }
        }
        let (Bench { runtime, waiter, says, said }, (ours, _theirs)) = (Bench::new(), pair());
        let wait = || {
            let dropped = Dropped(says.clone());
            waiter.when_readable(Arc::clone(&ours) as Awaited, Box::new(move || drop(dropped)));
        };
        wait();
        runtime.shutdown_timeout(LONG);
        assert!(!said.recv_timeout(LONG).unwrap());
        wait();
        assert!(!said.try_recv().unwrap());
        assert_eq!(Arc::strong_count(&ours), 1, "the socket is not held");
    }
}
