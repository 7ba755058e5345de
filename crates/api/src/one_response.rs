//! How does the only response of a request get to the task that waits for it?
//!
//! Through a channel. The task that received the response keeps the channel for a later request of its thread.

use std::cell::RefCell;

use nerite_request::{InferResponse, Recycled, Status};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The response, or the error of the request.
type Only = Result<Recycled<InferResponse>, Status>;

/// The most channels that a thread keeps. Each takes about 3 KiB.
const FREE_MAX: usize = 32;

thread_local! {
    /// Channels whose response was received.
    static FREE: RefCell<Vec<Channel>> = const { RefCell::new(Vec::new()) };
}

/// Both ends of a channel. `None` is sent if the request was dropped without a response.
struct Channel {
    sender: UnboundedSender<Option<Only>>,
    receiver: UnboundedReceiver<Option<Only>>,
}

/// Sends the response.
pub(crate) struct OneSender(
    /// `None` after the response was sent.
    Option<UnboundedSender<Option<Only>>>,
);

/// Receives the response.
pub(crate) struct OneReceiver(Channel);

/// The two ends for one request.
pub(crate) fn channel() -> (OneSender, OneReceiver) {
    // A thread that is ending keeps no channels.
    let free = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
    let channel = free.unwrap_or_else(Channel::new);
    (OneSender(Some(channel.sender.clone())), OneReceiver(channel))
}

impl Channel {
    #[expect(
        clippy::disallowed_methods,
        reason = "one value is sent for each request, and a channel is kept only after its value was received"
    )]
    fn new() -> Channel {
        let (sender, receiver) = unbounded_channel();
        Channel { sender, receiver }
    }
}

impl OneSender {
    /// Sends the response. It is dropped if nobody waits for it any more.
    pub(crate) fn send(mut self, only: Only) {
        self.send_once(Some(only));
    }

    fn send_once(&mut self, only: Option<Only>) {
        if let Some(sender) = self.0.take() {
            // An error means that the receiver was dropped.
            drop(sender.send(only));
        }
    }
}

impl Drop for OneSender {
    fn drop(&mut self) {
        self.send_once(None);
    }
}

impl OneReceiver {
    /// The response. `None` if the sender was dropped without one.
    pub(crate) async fn receive(self) -> Option<Only> {
        let OneReceiver(mut channel) = self;
        let only = channel.receiver.recv().await.flatten();
        // The sender sends exactly one value, which was received above. So the channel is empty for the next request. An error means that the thread ends.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < FREE_MAX {
                free.push(channel);
            }
        });
        only
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn free_count() -> usize {
        FREE.with_borrow(Vec::len)
    }

    fn poll(receive: impl Future<Output = Option<Only>>) -> Poll<Option<Only>> {
        pin!(receive).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn failed(why: &str) -> Only {
        Err(Status::internal(why))
    }

    #[track_caller]
    fn check_received(from: OneReceiver, expected: Option<&str>) {
        let Poll::Ready(received) = poll(from.receive()) else { panic!("nothing was sent") };
        assert_eq!(
            received.map(|only| only.map(drop).map_err(|error| error.message)),
            expected.map(|why| Err(why.into()))
        );
    }

    #[test]
    fn a_channel_is_used_again_after_its_response_was_received() {
        for why in ["one", "two"] {
            let (to, from) = channel();
            assert_eq!(free_count(), 0);
            to.send(failed(why));
            check_received(from, Some(why));
            assert_eq!(free_count(), 1);
        }
    }

    #[test]
    fn a_request_that_is_dropped_without_a_response_is_noticed() {
        let (to, from) = channel();
        drop(to);
        check_received(from, None);
        let (to, from) = channel();
        to.send(failed("the next request has its own response"));
        check_received(from, Some("the next request has its own response"));
    }

    #[test]
    fn a_response_that_nobody_waits_for_reaches_no_other_request() {
        let (to, from) = channel();
        assert!(poll(from.receive()).is_pending());
        let (other_to, other_from) = channel();
        to.send(failed("late"));
        let (sent_to, sent_from) = channel();
        sent_to.send(failed("not received"));
        drop(sent_from);
        assert_eq!(free_count(), 0);
        other_to.send(failed("other"));
        check_received(other_from, Some("other"));
    }

    #[test]
    fn a_thread_keeps_a_bounded_number_of_channels() {
        let many: Vec<_> = (0..2 * FREE_MAX).map(|_| channel()).collect();
        for (to, from) in many {
            to.send(failed("no"));
            check_received(from, Some("no"));
        }
        assert_eq!(free_count(), FREE_MAX);
    }
}
