//! Is no permit lost or doubled, whoever waits, leaves and gives back at the same time?
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::FairQueue;

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waiter that is polled by hand.
struct Waiter {
    acquire: Pin<Box<Acquire>>,
    woken: Arc<Woken>,
}

impl Waiter {
    fn of(semaphore: &FairSemaphore, flow: &Flow) -> Waiter {
        Waiter { acquire: Box::pin(semaphore.acquire(Some(flow.clone()))), woken: Arc::default() }
    }

    fn poll(&mut self) -> Option<FairPermit> {
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.acquire.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    fn woken(&self) -> usize {
        self.woken.0.load(Ordering::SeqCst)
    }
}

#[test]
fn a_waiter_is_woken_when_it_is_given_a_permit() {
    let (semaphore, queue) = (FairSemaphore::new(1), FairQueue::default());
    let (busy, other) = (queue.open("busy"), queue.open("other"));
    let permit = Waiter::of(&semaphore, &busy).poll().unwrap();
    let [mut first, mut second] = [&busy, &other].map(|flow| Waiter::of(&semaphore, flow));
    assert!(first.poll().is_none() && second.poll().is_none() && second.poll().is_none());
    drop(permit);
    assert_eq!((first.woken(), second.woken()), (0, 1), "the other peer goes first");
    assert!(first.poll().is_none());
    let permit = second.poll().unwrap();
    assert!(second.poll().is_none(), "it is given one");
    drop(permit);
    assert_eq!((first.woken(), semaphore.available()), (1, 0));
    drop(first.poll().unwrap());
    assert_eq!(semaphore.available(), 1);
}

#[test]
fn of_one_peer_the_connection_that_had_no_permit_goes_first() {
    let (semaphore, queue) = (FairSemaphore::new(1), FairQueue::default());
    let (busy, other) = (queue.open("one"), queue.open("one"));
    let permit = Waiter::of(&semaphore, &busy).poll().unwrap();
    let [mut backlog, mut first] = [&busy, &other].map(|flow| Waiter::of(&semaphore, flow));
    assert!(backlog.poll().is_none() && first.poll().is_none());
    drop(permit);
    assert_eq!((backlog.woken(), first.woken()), (0, 1));
    drop(first.poll().unwrap());
    assert_eq!(backlog.woken(), 1);
    drop(backlog.poll().unwrap());
    assert_eq!(semaphore.available(), 1);
}

#[test]
fn a_waiter_that_is_dropped_leaves_the_queue_or_passes_its_permit_on() {
    let (semaphore, queue) = (FairSemaphore::new(1), FairQueue::default());
    let flow = queue.open("one");
    let permit = Waiter::of(&semaphore, &flow).poll().unwrap();
    let [mut leaves, mut given, mut last] = [(); 3].map(|()| Waiter::of(&semaphore, &flow));
    assert!(leaves.poll().is_none() && given.poll().is_none() && last.poll().is_none());
    drop(leaves);
    drop(permit);
    assert_eq!((given.woken(), last.woken()), (1, 0));
    drop(given);
    assert_eq!(last.woken(), 1);
    drop(last);
    assert_eq!(semaphore.available(), 1);
    // An acquire that was never polled is in no queue.
    drop(Waiter::of(&semaphore, &flow));
    assert_eq!(semaphore.available(), 1);
}

#[test]
fn a_client_that_connects_again_while_its_work_runs_is_the_same_peer() {
    let (semaphore, queue) = (FairSemaphore::new(2), FairQueue::default());
    let other = queue.open("other");
    let running = Waiter::of(&semaphore, &queue.open("busy")).poll().unwrap();
    let freed = Waiter::of(&semaphore, &queue.open("third")).poll().unwrap();
    // The other peer begins later, and holds no permit yet.
    let [mut again, mut light] = [&queue.open("busy"), &other].map(|flow| Waiter::of(&semaphore, flow));
    assert!(again.poll().is_none() && light.poll().is_none());
    drop(freed);
    assert!(again.poll().is_none());
    let permit = light.poll().unwrap();
    drop(running);
    drop((permit, again.poll().unwrap()));
    assert_eq!(semaphore.available(), 2);
}

/// Tasks of several peers on several threads ask at once. Some give up after a few polls.
#[test]
fn no_permit_is_lost_or_doubled_by_threads() {
    const PERMITS: usize = 3;
    let (semaphore, queue) = (FairSemaphore::new(PERMITS), FairQueue::default());
    let (holding, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let (semaphore, flow) = (semaphore.clone(), queue.open(["a", "b", "c", "d"][task % 4]));
            let (holding, most) = (Arc::clone(&holding), Arc::clone(&most));
            runtime.spawn(async move {
                for round in 0..500 {
                    let mut polls_left = if (task + round) % 3 == 0 { round % 4 } else { usize::MAX };
                    let mut acquire = Box::pin(semaphore.acquire(Some(flow.clone())));
                    let permit = std::future::poll_fn(|cx| {
                        if polls_left == 0 {
                            return Poll::Ready(None);
                        }
                        polls_left -= 1;
                        if polls_left < 4 {
                            cx.waker().wake_by_ref();
                        }
                        acquire.as_mut().poll(cx).map(Some)
                    })
                    .await;
                    drop(acquire);
                    if let Some(permit) = permit {
                        most.fetch_max(holding.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        holding.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    assert_eq!((semaphore.available(), holding.load(Ordering::SeqCst)), (PERMITS, 0));
    assert!(most.load(Ordering::SeqCst) <= PERMITS);
}
