//! Does a client keep the server waiting for too long?
//!
//! The limits apply to progress, not to totals: a body may take a day as long as its bytes keep arriving. A connection has one timer. It is reset
//! only when it has expired, or when a shorter limit begins to apply, so quick requests do not touch it.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::limits::{
    BODY_BYTES_PER_SECOND_MIN, BODY_TIMEOUT, CHECK_PAUSE_MIN, CHECKS_PER_LIMIT, HEAD_TIMEOUT, IDLE_TIMEOUT,
    STOPPING_WRITE_TIMEOUT, WRITE_TIMEOUT,
};
use crate::progress::{Awaited, Progress, Snapshot};

/// How long a client may keep the server waiting. `None` means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// For the first request, and for the head of a request, counted from its first byte.
    pub head: Option<Duration>,
    /// For the next request.
    pub idle: Option<Duration>,
    /// For the next [`TimeLimits::body_bytes_min`] bytes of a body.
    pub body: Option<Duration>,
    /// For reading the next byte of an answer.
    pub write: Option<Duration>,
}

impl Default for TimeLimits {
    fn default() -> TimeLimits {
        TimeLimits {
            head: Some(HEAD_TIMEOUT),
            idle: Some(IDLE_TIMEOUT),
            body: Some(BODY_TIMEOUT),
            write: Some(WRITE_TIMEOUT),
        }
    }
}

impl TimeLimits {
    /// The limits while the server stops. It does not wait for incomplete requests, but clients have the time `grace` to notice that the connection ends.
    pub fn stopping(grace: Duration) -> TimeLimits {
        let grace = Some(grace);
        TimeLimits { head: grace, idle: grace, body: grace, write: Some(STOPPING_WRITE_TIMEOUT) }
    }

    /// The fewest bytes of a body that must arrive within its limit.
    fn body_bytes_min(&self) -> u64 {
        let limit_ms = self.body.map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        (limit_ms.saturating_mul(BODY_BYTES_PER_SECOND_MIN) / 1000).max(1)
    }

    fn of(&self, awaited: Awaited) -> Option<Duration> {
        match awaited {
            Awaited::Nothing => None,
            Awaited::Request => self.idle,
            Awaited::Head => self.head,
            Awaited::Body => self.body,
            Awaited::Write => self.write,
        }
    }

    /// Time between two checks while this is awaited.
    fn pause(&self, awaited: Awaited) -> Option<Duration> {
        self.of(awaited).map(|limit| (limit / CHECKS_PER_LIMIT).max(CHECK_PAUSE_MIN))
    }
}

/// How a client kept the server waiting for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overdue {
    /// It did not complete a request's head.
    #[error("the head of its request was not complete in time (--http-header-timeout)")]
    Head,
    /// It sent no request.
    #[error("it was idle (--http-idle-timeout, --grpc-idle-timeout)")]
    Idle,
    /// It sent too little of a body.
    #[error(
        "its request's body stopped coming, or came at less than {BODY_BYTES_PER_SECOND_MIN} bytes per second \
         (--body-progress-timeout)"
    )]
    Body,
    /// It read nothing of an answer.
    #[error("it took nothing of its answer for too long (--write-timeout)")]
    Write,
}

impl Overdue {
    /// The names of the reasons in metrics.
    pub(crate) const WORDS: [&'static str; 4] = ["head", "idle", "body", "write"];

    /// The index of its name in [`Overdue::WORDS`].
    pub(crate) fn number(self) -> usize {
        match self {
            Overdue::Head => 0,
            Overdue::Idle => 1,
            Overdue::Body => 2,
            Overdue::Write => 3,
        }
    }
}

/// The time in which a client has to make progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window<T> {
    since: T,
    then: Snapshot,
}

/// What a check of a connection decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision<T> {
    /// No limit applies to what is awaited.
    NoLimit,
    /// The client has time left.
    Wait(Window<T>),
    /// The limit has passed.
    End(Overdue),
}

/// Checks a connection at the time `at`. `window` is the result of the last check. `elapsed` returns the time from its argument to `at`.
fn check_progress<T: Copy>(
    limits: &TimeLimits,
    window: Option<Window<T>>,
    now: Snapshot,
    at: T,
    elapsed: impl FnOnce(T) -> Duration,
) -> Decision<T> {
    let Some(limit) = limits.of(now.awaited) else { return Decision::NoLimit };
    let fresh = Decision::Wait(Window { since: at, then: now });
    let Some(window) = window.filter(|window| is_same_wait(window.then, now)) else { return fresh };
    // Any byte that is sent is progress at once. Received bytes are counted when the limit has passed.
    if now.awaited == Awaited::Write && now.sent != window.then.sent {
        return fresh;
    }
    if elapsed(window.since) < limit {
        return Decision::Wait(window);
    }
    match now.awaited {
        Awaited::Body if now.received.saturating_sub(window.then.received) >= limits.body_bytes_min() => fresh,
        Awaited::Body => Decision::End(Overdue::Body),
        Awaited::Write => Decision::End(Overdue::Write),
        Awaited::Head => Decision::End(Overdue::Head),
        Awaited::Request => Decision::End(Overdue::Idle),
        Awaited::Nothing => Decision::NoLimit,
    }
}

/// Whether the server still waits for the same thing. Answers on one connection may overlap with new requests.
fn is_same_wait(then: Snapshot, now: Snapshot) -> bool {
    then.awaited == now.awaited && (now.awaited == Awaited::Write || then.requests == now.requests)
}

/// The timer of one connection, or of one call.
#[derive(Debug)]
pub struct StallTimer {
    limits: TimeLimits,
    window: Option<Window<Instant>>,
    /// The time that the timer was last set to. `None` if it does not run.
    pause: Option<Duration>,
}

impl StallTimer {
    /// A timer that does not run yet.
    pub fn new(limits: TimeLimits) -> StallTimer {
        StallTimer { limits, window: None, pause: None }
    }

    /// Replaces the limits and restarts the current wait.
    pub fn set_limits(&mut self, limits: TimeLimits) {
        *self = StallTimer::new(limits);
    }

    /// The task that serves the connection calls this each time it can do no more. Ready when the client has kept the server waiting for
    /// too long. The task is woken to call it again. `sleep` belongs to the task, is used only here, and is `None` at first.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        progress: &Progress,
        mut sleep: Pin<&mut Option<Sleep>>,
    ) -> Poll<Overdue> {
        let Some(pause) = self.limits.pause(progress.awaited()) else { return Poll::Pending };
        // A timer that expires earlier is sufficient. It has the right waker already, because a task's waker stays the same.
        if self.pause.is_some_and(|set| set <= pause)
            && sleep.as_ref().as_pin_ref().is_some_and(|sleep| !sleep.is_elapsed())
        {
            return Poll::Pending;
        }
        loop {
            let now = Instant::now();
            match check_progress(&self.limits, self.window, progress.snapshot(), now, |then| now.duration_since(then)) {
                Decision::End(overdue) => return Poll::Ready(overdue),
                Decision::NoLimit => {
                    (self.window, self.pause) = (None, None);
                    return Poll::Pending;
                }
                Decision::Wait(window) => self.window = Some(window),
            }
            self.pause = Some(pause);
            let at = now + pause;
            match sleep.as_mut().as_pin_mut() {
                Some(sleep) => sleep.reset(at),
                None => sleep.set(Some(sleep_until(at))),
            }
            let Some(sleep) = sleep.as_mut().as_pin_mut() else { continue };
            // Unconstrained: if the task has used up its tokio budget, the sleep would return before it registers the waker.
            if pin!(unconstrained(sleep)).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// Waits for the time `limit`, or for ever if it is `None`.
pub async fn sleep_or_forever(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use super::*;

    const LIMITS: TimeLimits = TimeLimits {
        head: Some(Duration::from_secs(30)),
        idle: Some(Duration::from_mins(15)),
        body: Some(Duration::from_mins(1)),
        write: Some(Duration::from_secs(20)),
    };

    fn snapshot(awaited: Awaited, requests: u32, received: u64, sent: u64) -> Snapshot {
        Snapshot { awaited, requests, received, sent }
    }

    #[track_caller]
    fn check(then: Snapshot, seconds: u64, now: Snapshot, expect: Decision<u64>) {
        let window = Window { since: 0, then };
        let found = check_progress(&LIMITS, Some(window), now, seconds, |then| Duration::from_secs(seconds - then));
        assert_eq!(found, expect, "{then:?} {seconds} s later {now:?}");
    }

    #[test]
    fn heads_and_idle_connections_have_a_limit() {
        use Awaited::{Head, Nothing, Request};
        let same = |then, seconds, overdue: Option<Overdue>| {
            let kept = Window { since: 0, then };
            check(then, seconds, then, overdue.map_or(Decision::Wait(kept), Decision::End));
        };
        same(snapshot(Head, 0, 7, 0), 29, None);
        same(snapshot(Head, 0, 7, 0), 30, Some(Overdue::Head));
        same(snapshot(Request, 3, 7, 9), 899, None);
        same(snapshot(Request, 3, 7, 9), 900, Some(Overdue::Idle));
        check(snapshot(Request, 3, 0, 0), 9999, snapshot(Nothing, 4, 0, 0), Decision::NoLimit);
        // Bytes of a head are not progress. A complete request is.
        check(snapshot(Head, 1, 0, 0), 30, snapshot(Head, 1, 9999, 0), Decision::End(Overdue::Head));
        let now = snapshot(Head, 2, 9, 0);
        check(snapshot(Head, 1, 0, 0), 30, now, Decision::Wait(Window { since: 30, then: now }));
    }

    #[test]
    fn a_body_has_no_limit_while_its_bytes_keep_arriving() {
        use Awaited::Body;
        let then = snapshot(Body, 1, 1000, 0);
        check(then, 59, then, Decision::Wait(Window { since: 0, then }));
        check(then, 60, snapshot(Body, 1, 1000 + 60 * 1024 - 1, 0), Decision::End(Overdue::Body));
        let now = snapshot(Body, 1, 1000 + 60 * 1024, 0);
        check(then, 60, now, Decision::Wait(Window { since: 60, then: now }));
    }

    #[test]
    fn an_answer_has_no_limit_while_its_bytes_are_read() {
        use Awaited::Write;
        let then = snapshot(Write, 1, 0, 500);
        let now = snapshot(Write, 1, 0, 501);
        check(then, 5, now, Decision::Wait(Window { since: 5, then: now }));
        check(then, 19, then, Decision::Wait(Window { since: 0, then }));
        check(then, 20, snapshot(Write, 2, 9, 500), Decision::End(Overdue::Write));
    }

    /// The second in which a connection is overdue, and the reason. `change` is called each second.
    async fn overdue(limits: TimeLimits, awaited: Awaited, change: fn(u64, &Progress)) -> (u64, Overdue) {
        let progress = Arc::new(Progress::new(awaited));
        let begun = Instant::now();
        let theirs = Arc::clone(&progress);
        let changing = tokio::spawn(async move {
            for second in 1.. {
                tokio::time::sleep(Duration::from_secs(1)).await;
                change(second, &theirs);
            }
        });
        let (mut timer, mut sleep) = (StallTimer::new(limits), pin!(None));
        let overdue = poll_fn(|cx| timer.poll(cx, &progress, sleep.as_mut())).await;
        changing.abort();
        (begun.elapsed().as_secs(), overdue)
    }

    #[tokio::test(start_paused = true)]
    async fn the_timer_ends_only_overdue_connections() {
        assert_eq!(overdue(LIMITS, Awaited::Head, |_, _| ()).await, (30, Overdue::Head));
        assert_eq!(overdue(LIMITS, Awaited::Request, |_, _| ()).await, (900, Overdue::Idle));
        assert_eq!(overdue(LIMITS, Awaited::Body, |_, progress| progress.receive(1)).await, (60, Overdue::Body));
        let for_an_hour = |second, progress: &Progress| progress.receive(if second <= 3600 { 2048 } else { 0 });
        assert_eq!(overdue(LIMITS, Awaited::Body, for_an_hour).await, (3660, Overdue::Body));
        let taking = |second, progress: &Progress| progress.send(usize::from(second % 15 == 0 && second < 100));
        // The last progress is noticed up to a quarter of the limit late.
        assert_eq!(overdue(LIMITS, Awaited::Write, taking).await, (115, Overdue::Write));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_limit_applies_at_once() {
        let progress = Progress::new(Awaited::Request);
        let (mut timer, mut stall) = (StallTimer::new(LIMITS), pin!(None));
        assert!(poll_fn(|cx| Poll::Ready(timer.poll(cx, &progress, stall.as_mut()))).await.is_pending());
        tokio::time::sleep(Duration::from_secs(7)).await;
        progress.wait_for(Awaited::Head);
        let begun = Instant::now();
        assert_eq!(poll_fn(|cx| timer.poll(cx, &progress, stall.as_mut())).await, Overdue::Head);
        assert_eq!(begun.elapsed().as_secs(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_has_used_up_its_budget_is_woken_too() {
        let progress = Progress::new(Awaited::Head);
        let (mut timer, mut sleep) = (StallTimer::new(LIMITS), Box::pin(None));
        let ending = poll_fn(move |cx| {
            while tokio::task::coop::has_budget_remaining() {
                // Reading and writing much has the same effect.
                let _ = pin!(tokio::task::coop::consume_budget()).poll(cx);
            }
            timer.poll(cx, &progress, sleep.as_mut())
        });
        assert_eq!(tokio::spawn(ending).await.expect("it ends"), Overdue::Head);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_a_wait_never_ends() {
        let never = TimeLimits { head: None, idle: None, body: None, write: None };
        for awaited in [Awaited::Nothing, Awaited::Request, Awaited::Head, Awaited::Body, Awaited::Write] {
            let wait = tokio::time::timeout(Duration::from_hours(2), overdue(never, awaited, |_, _| ()));
            assert!(wait.await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_server_waits_for_complete_requests_only() {
        let limits = TimeLimits::stopping(Duration::ZERO);
        for awaited in [Awaited::Request, Awaited::Head, Awaited::Body] {
            assert_eq!(overdue(limits, awaited, |_, _| ()).await.0, 0);
        }
        assert_eq!(overdue(limits, Awaited::Write, |_, _| ()).await, (1, Overdue::Write));
    }
}
