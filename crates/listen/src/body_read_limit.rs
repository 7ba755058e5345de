//! When may more of a body be read without exceeding the memory budgets?

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use nerite_budget::limits::{LEAVE_MS_MAX, LEAVING_BYTES_MAX, LIGHT_BYTES_MAX, RETRY_MS, STALL_MS};
use nerite_budget::{Account, ReadDecision, ReadPermit, Shed};
use tokio::time::{Sleep, sleep};

/// Stops reading a body while the memory budgets are used up.
#[derive(Debug)]
pub struct BodyReadLimit {
    read_permit: ReadPermit,
    /// When to check again. `Some` while the body waits.
    retry: Option<Pin<Box<Sleep>>>,
    retries: u64,
}

impl BodyReadLimit {
    /// The limit for one body on the connection of `account`.
    pub fn new(account: &Account) -> BodyReadLimit {
        BodyReadLimit { read_permit: account.read_permit(), retry: None, retries: 0 }
    }

    /// Ready when more of the body may be read. `held` is the number of its bytes in memory. An error means that the connection must end.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>, held: usize) -> Poll<Result<(), Shed>> {
        // The budgets can end a body that holds much memory even while it waits for its client.
        let is_heavy = held as u64 > LIGHT_BYTES_MAX;
        loop {
            match self.read_permit.decide(cx.waker(), is_heavy) {
                ReadDecision::Read => {
                    self.retry = None;
                    self.retries = 0;
                    return Poll::Ready(Ok(()));
                }
                ReadDecision::End(shed) => return Poll::Ready(Err(shed)),
                ReadDecision::Wait => {}
            }
            let timer = self.retry.get_or_insert_with(|| Box::pin(sleep(Duration::from_millis(RETRY_MS))));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.retry = None;
            self.retries += 1;
            if self.retries.is_multiple_of(STALL_MS / RETRY_MS) {
                self.read_permit.check_stall();
            }
        }
    }

    /// Ready when bytes of any kind may be read from the socket. They may not be read while memory is above the high mark. The
    /// wait is short, because the connection that holds too much is closed soon.
    pub fn poll_socket_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.read_permit.may_read_socket(cx.waker()) {
            let timer = self.retry.get_or_insert_with(|| Box::pin(sleep(Duration::from_millis(RETRY_MS))));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.retry = None;
        }
        self.retry = None;
        Poll::Ready(())
    }

    /// Waits until more of the body may be read. `held` is the number of its bytes in memory. May be cancelled at any time.
    pub async fn ready(&mut self, held: usize) -> Result<(), Shed> {
        poll_fn(|cx| self.poll_ready(cx, held)).await
    }

    /// Whether the body waits for the budgets, and not for its client.
    pub fn is_waiting(&self) -> bool {
        self.retry.is_some()
    }

    /// Call this when the body, or one message of a stream, is complete.
    pub fn done(&mut self) {
        self.read_permit.done();
    }
}

/// Serves a connection by `work`, and ends it when the budgets require that. `work` then has some time to send its client the reason: up to `longest`
/// if it has released its memory, otherwise [`LEAVE_MS_MAX`].
pub async fn until_shed<T>(account: &Account, longest: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut deadline) = (pin!(work), pin!(shed_deadline(account, longest)));
    let done = poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => deadline.as_mut().poll(cx).map(|()| None),
    })
    .await;
    account.close();
    done
}

/// Resolves when the budgets require the connection to end. Only the task that drives the connection may await it.
pub async fn shed(account: &Account) -> Shed {
    let mut is_registered = false;
    poll_fn(|cx| {
        // A connection is polled many times in a request. The waker is registered only once, because a task's waker stays the same.
        let shed = if is_registered { account.shed() } else { account.shed_or_wake(cx.waker()) };
        is_registered = true;
        shed.cloned().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Resolves when a connection that the budgets end must be closed.
async fn shed_deadline(account: &Account, longest: Duration) {
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
        let (mut first, mut second) = (BodyReadLimit::new(&one), BodyReadLimit::new(&two));
        first.ready(0).await.unwrap();
        let waits = tokio::spawn(async move { second.ready(0).await });
        sleep(Duration::from_millis(STALL_MS / 2)).await;
        assert!(!waits.is_finished());
        first.done();
        waits.await.unwrap().unwrap();
        drop(charges);
    }

    #[tokio::test(start_paused = true)]
    async fn if_bodies_wait_for_each_other_the_largest_is_ended() {
        let budgets = budgets();
        let (one, two) = (budgets.open("a"), budgets.open("a"));
        let _charges = (one.charge(45 << 20), two.charge(50 << 20));
        let (mut first, mut second) = (BodyReadLimit::new(&one), BodyReadLimit::new(&two));
        first.ready(0).await.unwrap();
        let shed = second.ready(0).await.unwrap_err();
        assert_eq!(shed.held >> 20, 50);
        let ended = until_shed(&two, Duration::from_mins(1), std::future::pending::<()>());
        assert_eq!(tokio::time::timeout(Duration::from_secs(5), ended).await.unwrap(), None);
    }
}
