//! How is the memory of a call's future reused?
//!
//! The future of a call is large, so it lies in a box. The thread on which it ends keeps the box for a later call.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio_util::sync::ReusableBoxFuture;

use crate::answer::Answer;

/// The most boxes that a thread keeps. Each takes about 4 KiB.
const FREE_MAX: usize = 16;

thread_local! {
    /// The boxes of futures that are done. Such a future has dropped all its values.
    static FREE: RefCell<Vec<Boxed>> = const { RefCell::new(Vec::new()) };
}

type Answered = Result<Answer, Infallible>;
type Boxed = ReusableBoxFuture<'static, Answered>;

/// The future of a call, in a box that is used again. It may be moved.
pub(crate) struct ReusedFuture(
    /// `None` once it is done.
    Option<Boxed>,
);

impl ReusedFuture {
    pub(crate) fn new(call: impl Future<Output = Answered> + Send + 'static) -> ReusedFuture {
        // A thread that is ending keeps no boxes.
        let free = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
        ReusedFuture(Some(match free {
            Some(mut free) => {
                free.set(call);
                free
            }
            None => ReusableBoxFuture::new(call),
        }))
    }
}

impl Future for ReusedFuture {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let answered = ready!(self.0.as_mut().expect("no future is polled after its end").poll(cx));
        // A future that is dropped before its end, or that panics, is freed with its box.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < FREE_MAX {
                free.extend(self.0.take());
            }
        });
        Poll::Ready(answered)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use http::StatusCode;

    use super::*;
    use crate::answer;

    fn free_count() -> usize {
        FREE.with_borrow(Vec::len)
    }

    /// A future that holds `held`. It is ready at its second poll.
    fn future(held: &Arc<()>) -> ReusedFuture {
        let held = Arc::clone(held);
        ReusedFuture::new(async move {
            tokio::task::yield_now().await;
            drop(held);
            Ok(answer::not_grpc(StatusCode::METHOD_NOT_ALLOWED))
        })
    }

    fn poll(future: &mut ReusedFuture) -> Poll<Answered> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_future_that_is_done_leaves_its_box_and_holds_nothing() {
        let held = Arc::new(());
        for _ in 0..3 {
            let mut one = future(&held);
            assert_eq!(free_count(), 0);
            assert!(poll(&mut one).is_pending());
            assert!(poll(&mut one).is_ready());
            assert_eq!((free_count(), Arc::strong_count(&held)), (1, 1));
        }
    }

    #[test]
    fn a_future_that_is_not_done_is_freed() {
        let held = Arc::new(());
        let mut one = future(&held);
        assert!(poll(&mut one).is_pending());
        drop((one, future(&held)));
        assert_eq!((free_count(), Arc::strong_count(&held)), (0, 1));
    }

    #[test]
    fn a_thread_keeps_a_bounded_number_of_boxes() {
        let held = Arc::new(());
        let mut many: Vec<_> = (0..2 * FREE_MAX).map(|_| future(&held)).collect();
        for one in &mut many {
            assert!(poll(one).is_pending());
            assert!(poll(one).is_ready());
        }
        assert_eq!(free_count(), FREE_MAX);
    }
}
