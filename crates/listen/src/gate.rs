//! When is a body read on?

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use nerite_budget::limits::{LEAVE_MS_MAX, LEAVING_BYTES_MAX, LIGHT_BYTES_MAX, LOOK_AGAIN_MS, STALL_MS};
use nerite_budget::{Account, ReadPermit, Shed, Turn};
use tokio::time::{Sleep, sleep};

/// A body's place before the memory budgets: open while they are kept.
#[derive(Debug)]
pub struct Gate {
    read_permit: ReadPermit,
    /// There while the body waits.
    look_again: Option<Pin<Box<Sleep>>>,
    looks: u64,
}

impl Gate {
    /// The gate of one body that comes over the connection of `account`.
    pub fn new(account: &Account) -> Gate {
        Gate { read_permit: account.read_permit(), look_again: None, looks: 0 }
    }

    /// Ready when the body, of which `held` bytes are there, may be read on; with an error when its connection has to end.
    pub fn poll_open(&mut self, cx: &mut Context<'_>, held: usize) -> Poll<Result<(), Shed>> {
        // One that holds much is told even while it waits for its client.
        let is_heavy = held as u64 > LIGHT_BYTES_MAX;
        loop {
            match self.read_permit.turn(cx.waker(), is_heavy) {
                Turn::Now => {
                    self.look_again = None;
                    self.looks = 0;
                    return Poll::Ready(Ok(()));
                }
                Turn::Never(shed) => return Poll::Ready(Err(shed)),
                Turn::Later => {}
            }
            let timer = self.look_again.get_or_insert_with(|| Box::pin(sleep(Duration::from_millis(LOOK_AGAIN_MS))));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.look_again = None;
            self.looks += 1;
            if self.looks.is_multiple_of(STALL_MS / LOOK_AGAIN_MS) {
                self.read_permit.waited();
            }
        }
    }

    /// Ready when bytes of any kind may be taken from the socket. Where that would be past a high mark, whoever held too much is ended
    /// soon, so nobody waits long.
    pub fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.read_permit.socket_turn(cx.waker()) {
            let timer = self.look_again.get_or_insert_with(|| Box::pin(sleep(Duration::from_millis(LOOK_AGAIN_MS))));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.look_again = None;
        }
        self.look_again = None;
        Poll::Ready(())
    }

    /// Waits until the body, of which `held` bytes are there, may be read on. May be dropped at any time.
    pub async fn open(&mut self, held: usize) -> Result<(), Shed> {
        poll_fn(|cx| self.poll_open(cx, held)).await
    }

    /// Whether the body waits for the budgets, and so not for its client.
    pub fn is_closed(&self) -> bool {
        self.look_again.is_some()
    }

    /// The body, or one message of it, is there.
    pub fn done(&mut self) {
        self.read_permit.done();
    }
}

/// Serves a connection by `work`, and ends it when the budgets want it to go. It has a moment then to tell its client why: a short one
/// if it still holds much, up to `longest` if what it held is gone.
pub async fn until_shed<T>(account: &Account, longest: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut leaving) = (pin!(work), pin!(leave(account, longest)));
    let done = poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => leaving.as_mut().poll(cx).map(|()| None),
    })
    .await;
    account.close();
    done
}

/// Resolves when the budgets want the connection to end. For the task that drives the connection.
pub async fn shed(account: &Account) -> Shed {
    let mut is_asked = false;
    poll_fn(|cx| {
        // A connection is woken many times a request. The news is asked for once: a task's waker stays the same.
        let shed = if is_asked { account.shed() } else { account.shed_or_wake(cx.waker()) };
        is_asked = true;
        shed.cloned().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Resolves when the connection has to be gone.
async fn leave(account: &Account, longest: Duration) {
    shed(account).await;
    let step = Duration::from_millis(LEAVE_MS_MAX);
    let mut passed = Duration::ZERO;
    while passed < longest {
        sleep(step).await;
        passed += step;
        if account.held() > LEAVING_BYTES_MAX {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_budget::{Budgets, Limits};

    use super::*;

    fn budgets() -> Budgets {
        Budgets::new(Limits::new(0, Some(100 << 20), Some(100 << 20), None))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_waits_until_another_is_done() {
        let budgets = budgets();
        let (one, two) = (budgets.open("a"), budgets.open("a"));
        let charges = (one.charge(50 << 20), two.charge(45 << 20));
        let (mut first, mut second) = (Gate::new(&one), Gate::new(&two));
        first.open(0).await.unwrap();
        let waits = tokio::spawn(async move { second.open(0).await });
        sleep(Duration::from_millis(STALL_MS / 2)).await;
        assert!(!waits.is_finished());
        first.done();
        waits.await.unwrap().unwrap();
        drop(charges);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_wait_for_each_other_lose_the_costliest() {
        let budgets = budgets();
        let (one, two) = (budgets.open("a"), budgets.open("a"));
        let _charges = (one.charge(45 << 20), two.charge(50 << 20));
        let (mut first, mut second) = (Gate::new(&one), Gate::new(&two));
        first.open(0).await.unwrap();
        let shed = second.open(0).await.unwrap_err();
        assert_eq!(shed.held >> 20, 50);
        let ended = until_shed(&two, Duration::from_mins(1), std::future::pending::<()>());
        assert_eq!(tokio::time::timeout(Duration::from_secs(5), ended).await.unwrap(), None);
    }
}
