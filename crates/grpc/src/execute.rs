//! Who polls the calls of a connection?

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

use nerite_watchdog::{FrontEnd, watched};

/// Polls each new call once where it is, in its connection's task, and gives it a task of its own only if it has to wait.
///
/// Most calls arrive in one piece and are answered at once. They then cost no task, no queue and no wake-up of another
/// thread, and their answer leaves with the flush that follows in the same poll of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstPollInPlace;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for FirstPollInPlace {
    fn execute(&self, call: F) {
        let mut call = Box::pin(call);
        // Whatever keeps this waker is asked again by the new task, which polls before it sleeps.
        let mut context = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut context))) {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => drop(tokio::spawn(watched(FrontEnd::Grpc, call))),
            // Dropping the call resets its stream; the connection's other calls go on.
            Err(_) => log::error!("a gRPC call panicked; its connection goes on"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, mpsc};

    use hyper::rt::Executor as _;

    use super::*;

    #[test]
    fn a_call_that_need_not_wait_is_done_at_once_and_needs_no_runtime() {
        let done = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&done);
        FirstPollInPlace.execute(async move {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_panic_stays_with_its_call() {
        FirstPollInPlace.execute(async { panic!("a call's own") });
    }

    #[test]
    fn a_call_that_waits_goes_on_in_a_task() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
        let (tell, told) = mpsc::channel();
        runtime.block_on(async {
            FirstPollInPlace.execute(async move {
                tokio::task::yield_now().await;
                tell.send(7).expect("the test waits");
            });
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(told.try_recv(), Ok(7));
    }
}
