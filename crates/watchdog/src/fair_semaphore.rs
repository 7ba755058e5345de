//! Who works next, if the number that may work at once is limited?
//!
//! A semaphore whose waiters are queued per peer:
//!
//! ```text
//!   acquire ── a permit is free? ── yes ──► FairPermit ── drop ──► time is charged to the peer
//!                 │ no                          ▲                            │
//!                 ▼                             │                            ▼
//!          the peer's queue ── the peer with the least service first, and of its flows the one with the least service
//! ```
//! [`Permits`] decides. A client that asks for a lot at once delays only itself: a peer that begins to ask gets the permit that is given back next. In the same
//! way a connection with a backlog delays no other one of its peer.
//! A waiter has the number of its arrival and a waker. One that is dropped leaves the queue, and passes on the permit if it was already given one.

mod permits;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use nerite_locks::Mutex;

use crate::fair::Flow;
use crate::slot::now_ns;
use permits::{ArrivalNumber, Of, Permits};

/// A number of permits that peers share fairly. A clone has the same permits.
#[derive(Clone, Debug)]
pub struct FairSemaphore(Arc<Mutex<Permits<Waker>>>);

/// A permit. When this is dropped, the permit goes to the next waiter.
#[derive(Debug)]
pub struct FairPermit {
    semaphore: FairSemaphore,
    waiter: Waiter,
    since_ns: u64,
}

/// Waits for a permit.
#[derive(Debug)]
pub struct Acquire {
    semaphore: FairSemaphore,
    waiter: Waiter,
    state: State,
}

/// The flow that the work belongs to. It keeps the peer's number: as long as its work runs, a client that connects again is the same peer.
#[derive(Clone, Debug)]
struct Waiter(Option<Flow>);

#[derive(Debug)]
enum State {
    New,
    /// It is in the queue, or was given a permit since the last poll.
    Queued(ArrivalNumber),
    Done,
}

impl FairSemaphore {
    /// A semaphore with that many permits.
    pub fn new(permits: usize) -> FairSemaphore {
        FairSemaphore::with_most(permits, permits)
    }

    /// As [`FairSemaphore::new`]. One peer has at most `each_max` permits at a time.
    pub fn with_most(permits: usize, each_max: usize) -> FairSemaphore {
        FairSemaphore(Arc::new(Mutex::new(Permits::new(permits, each_max))))
    }

    /// Waits for a permit, as the peer of this flow. Work without a flow is the server's own, and counts as work of one peer.
    pub fn acquire(&self, flow: Option<Flow>) -> Acquire {
        Acquire { semaphore: self.clone(), waiter: Waiter(flow), state: State::New }
    }

    /// Permits that nobody has.
    pub fn available(&self) -> usize {
        self.permits().free()
    }

    fn permits(&self) -> MutexGuard<'_, Permits<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    fn of(&self) -> Of {
        self.0.as_ref().map_or(Of { peer: 0, flow: 0 }, |flow| Of { peer: flow.peer_number(), flow: flow.number() })
    }
}

impl Acquire {
    fn permit(&mut self) -> FairPermit {
        self.state = State::Done;
        FairPermit { semaphore: self.semaphore.clone(), waiter: self.waiter.clone(), since_ns: now_ns() }
    }
}

impl Future for Acquire {
    type Output = FairPermit;

    /// If it is polled again after it returned the permit, it is pending for ever.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<FairPermit> {
        let of = self.waiter.of();
        let mut permits = self.semaphore.permits();
        let queued = match self.state {
            State::New if permits.take(of) => None,
            State::New => Some(permits.wait(of, cx.waker().clone())),
            State::Queued(arrival) => permits.waiter(of, arrival).map(|waker| {
                waker.clone_from(cx.waker());
                arrival
            }),
            State::Done => return Poll::Pending,
        };
        drop(permits);
        match queued {
            Some(arrival) => self.state = State::Queued(arrival),
            None => return Poll::Ready(self.permit()),
        }
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let State::Queued(arrival) = self.state else { return };
        let left = self.semaphore.permits().leave(self.waiter.of(), arrival);
        if left.is_none() {
            drop(self.permit());
        }
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        let spent_ns = now_ns().saturating_sub(self.since_ns);
        let next = self.semaphore.permits().give_back(self.waiter.of(), spent_ns);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
