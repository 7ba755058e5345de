//! Does a client keep the server waiting for too long?
//!
//! Limits are on progress, not on totals: a body may take a day as long as its bytes keep coming. A connection has one timer.
//! It is set anew only when it has run out or when a shorter limit begins to count, so quick requests do not touch it.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::limits::{
    BODY_BYTES_PER_SECOND_MIN, BODY_TIMEOUT, HEAD_TIMEOUT, IDLE_TIMEOUT, LOOK_PAUSE_MIN, LOOKS_PER_LIMIT,
    STOPPING_WRITE_TIMEOUT, WRITE_TIMEOUT,
};
use crate::progress::{Awaited, Progress, Snapshot};

/// How long a client may keep the server waiting; `None` for as long as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// For the first request, and for a request's head from its first byte on.
    pub head: Option<Duration>,
    /// For the next request.
    pub idle: Option<Duration>,
    /// For [`TimeLimits::body_bytes_min`] more bytes of a body.
    pub body: Option<Duration>,
    /// For taking one more byte of an answer.
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
    /// Limits while the server stops: nobody waits for what is not a whole request, but honest clients get `leave` to see that
    /// the connection ends.
    pub fn stopping(leave: Duration) -> TimeLimits {
        let leave = Some(leave);
        TimeLimits { head: leave, idle: leave, body: leave, write: Some(STOPPING_WRITE_TIMEOUT) }
    }

    /// Bytes of a body that must come within the limit for it.
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

    /// Time between two looks while this is awaited.
    fn pause(&self, awaited: Awaited) -> Option<Duration> {
        self.of(awaited).map(|limit| (limit / LOOKS_PER_LIMIT).max(LOOK_PAUSE_MIN))
    }
}

/// What a client did not do in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overdue {
    /// Complete a request's head.
    #[error("the head of its request was not complete in time (--http-header-timeout)")]
    Head,
    /// Ask for anything.
    #[error("it was idle (--http-idle-timeout, --grpc-idle-timeout)")]
    Idle,
    /// Send enough of a body.
    #[error(
        "its request's body stopped coming, or came at less than {BODY_BYTES_PER_SECOND_MIN} bytes per second \
         (--body-progress-timeout)"
    )]
    Body,
    /// Take an answer.
    #[error("it took nothing of its answer for too long (--write-timeout)")]
    Write,
}

impl Overdue {
    /// What metrics call the reasons.
    pub(crate) const WORDS: [&'static str; 4] = ["head", "idle", "body", "write"];

    /// Which of the [`Overdue::WORDS`] it is.
    pub(crate) fn number(self) -> usize {
        match self {
            Overdue::Head => 0,
            Overdue::Idle => 1,
            Overdue::Body => 2,
            Overdue::Write => 3,
        }
    }
}

/// A time in which a client should make progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window<T> {
    since: T,
    then: Snapshot,
}

/// What follows from a look at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict<T> {
    /// Nothing is awaited that has a limit.
    Rest,
    /// There is time left.
    Wait(Window<T>),
    /// The time has passed.
    End(Overdue),
}

/// Looks at a connection. `window` is what the last look left; `elapsed` gives the time from one moment to `at`.
fn judge<T: Copy>(
    limits: &TimeLimits,
    window: Option<Window<T>>,
    now: Snapshot,
    at: T,
    elapsed: impl FnOnce(T) -> Duration,
) -> Verdict<T> {
    let Some(limit) = limits.of(now.awaited) else { return Verdict::Rest };
    let fresh = Verdict::Wait(Window { since: at, then: now });
    let Some(window) = window.filter(|window| is_same_wait(window.then, now)) else { return fresh };
    // Any byte that is taken is progress, at once. Bytes that come are counted at the end.
    if now.awaited == Awaited::Write && now.sent != window.then.sent {
        return fresh;
    }
    if elapsed(window.since) < limit {
        return Verdict::Wait(window);
    }
    match now.awaited {
        Awaited::Body if now.received.saturating_sub(window.then.received) >= limits.body_bytes_min() => fresh,
        Awaited::Body => Verdict::End(Overdue::Body),
        Awaited::Write => Verdict::End(Overdue::Write),
        Awaited::Head => Verdict::End(Overdue::Head),
        Awaited::Request => Verdict::End(Overdue::Idle),
        Awaited::Nothing => Verdict::Rest,
    }
}

/// Whether the same is still waited for. Answers on one connection may overlap with new requests.
fn is_same_wait(then: Snapshot, now: Snapshot) -> bool {
    then.awaited == now.awaited && (now.awaited == Awaited::Write || then.requests == now.requests)
}

/// The timer of one connection, or of one call.
#[derive(Debug)]
pub struct StallTimer {
    limits: TimeLimits,
    window: Option<Window<Instant>>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// The time for which the timer was last set; `None` if it does not run.
    pause: Option<Duration>,
}

impl StallTimer {
    /// A timer that does not run yet.
    pub fn new(limits: TimeLimits) -> StallTimer {
        StallTimer { limits, window: None, sleep: None, pause: None }
    }

    /// Other limits from now on.
    pub fn set_limits(&mut self, limits: TimeLimits) {
        *self = StallTimer { limits, window: None, sleep: self.sleep.take(), pause: None };
    }

    /// To be called by the task that serves the connection each time it has done what it could. Ready when the client has kept
    /// the server waiting for too long. The task is woken to ask again.
    pub fn poll(&mut self, cx: &mut Context<'_>, progress: &Progress) -> Poll<Overdue> {
        let Some(pause) = self.limits.pause(progress.awaited()) else { return Poll::Pending };
        // A timer that is set for a shorter time fires soon enough. A task's waker stays the same, so it need not be told again.
        if self.pause.is_some_and(|set| set <= pause) && self.sleep.as_ref().is_some_and(|sleep| !sleep.is_elapsed()) {
            return Poll::Pending;
        }
        loop {
            let now = Instant::now();
            match judge(&self.limits, self.window, progress.snapshot(), now, |then| now.duration_since(then)) {
                Verdict::End(overdue) => return Poll::Ready(overdue),
                Verdict::Rest => {
                    (self.window, self.pause) = (None, None);
                    return Poll::Pending;
                }
                Verdict::Wait(window) => self.window = Some(window),
            }
            self.pause = Some(pause);
            let at = now + pause;
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
            sleep.as_mut().reset(at);
            // A task that has used up its turn is put off before its waker is kept. It would not ask again.
            if pin!(unconstrained(sleep.as_mut())).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
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
    fn check(then: Snapshot, seconds: u64, now: Snapshot, expect: Verdict<u64>) {
        let window = Window { since: 0, then };
        let found = judge(&LIMITS, Some(window), now, seconds, |then| Duration::from_secs(seconds - then));
        assert_eq!(found, expect, "{then:?} {seconds} s later {now:?}");
    }

    #[test]
    fn heads_and_pauses_have_a_limit() {
        use Awaited::{Head, Nothing, Request};
        let same = |then, seconds, overdue: Option<Overdue>| {
            let kept = Window { since: 0, then };
            check(then, seconds, then, overdue.map_or(Verdict::Wait(kept), Verdict::End));
        };
        same(snapshot(Head, 0, 7, 0), 29, None);
        same(snapshot(Head, 0, 7, 0), 30, Some(Overdue::Head));
        same(snapshot(Request, 3, 7, 9), 899, None);
        same(snapshot(Request, 3, 7, 9), 900, Some(Overdue::Idle));
        check(snapshot(Request, 3, 0, 0), 9999, snapshot(Nothing, 4, 0, 0), Verdict::Rest);
        // Bytes of a head are no progress; a whole request is.
        check(snapshot(Head, 1, 0, 0), 30, snapshot(Head, 1, 9999, 0), Verdict::End(Overdue::Head));
        let now = snapshot(Head, 2, 9, 0);
        check(snapshot(Head, 1, 0, 0), 30, now, Verdict::Wait(Window { since: 30, then: now }));
    }

    #[test]
    fn a_body_may_take_as_long_as_it_likes_if_its_bytes_keep_coming() {
        use Awaited::Body;
        let then = snapshot(Body, 1, 1000, 0);
        check(then, 59, then, Verdict::Wait(Window { since: 0, then }));
        check(then, 60, snapshot(Body, 1, 1000 + 60 * 1024 - 1, 0), Verdict::End(Overdue::Body));
        let now = snapshot(Body, 1, 1000 + 60 * 1024, 0);
        check(then, 60, now, Verdict::Wait(Window { since: 60, then: now }));
    }

    #[test]
    fn an_answer_of_which_a_byte_is_taken_goes_on() {
        use Awaited::Write;
        let then = snapshot(Write, 1, 0, 500);
        let now = snapshot(Write, 1, 0, 501);
        check(then, 5, now, Verdict::Wait(Window { since: 5, then: now }));
        check(then, 19, then, Verdict::Wait(Window { since: 0, then }));
        check(then, 20, snapshot(Write, 2, 9, 500), Verdict::End(Overdue::Write));
    }

    /// The moment at which a connection is overdue; `change` is called each second.
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
        let mut timer = StallTimer::new(limits);
        let overdue = poll_fn(|cx| timer.poll(cx, &progress)).await;
        changing.abort();
        (begun.elapsed().as_secs(), overdue)
    }

    #[tokio::test(start_paused = true)]
    async fn the_timer_ends_who_is_late_and_nobody_else() {
        assert_eq!(overdue(LIMITS, Awaited::Head, |_, _| ()).await, (30, Overdue::Head));
        assert_eq!(overdue(LIMITS, Awaited::Request, |_, _| ()).await, (900, Overdue::Idle));
        assert_eq!(overdue(LIMITS, Awaited::Body, |_, progress| progress.receive(1)).await, (60, Overdue::Body));
        let for_an_hour = |second, progress: &Progress| progress.receive(if second <= 3600 { 2048 } else { 0 });
        assert_eq!(overdue(LIMITS, Awaited::Body, for_an_hour).await, (3660, Overdue::Body));
        let taking = |second, progress: &Progress| progress.send(usize::from(second % 15 == 0 && second < 100));
        // It was seen up to a quarter of the limit later that the last byte went.
        assert_eq!(overdue(LIMITS, Awaited::Write, taking).await, (115, Overdue::Write));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_limit_begins_to_count_at_once() {
        let progress = Progress::new(Awaited::Request);
        let mut timer = StallTimer::new(LIMITS);
        assert!(poll_fn(|cx| Poll::Ready(timer.poll(cx, &progress))).await.is_pending());
        tokio::time::sleep(Duration::from_secs(7)).await;
        progress.wait_for(Awaited::Head);
        let begun = Instant::now();
        assert_eq!(poll_fn(|cx| timer.poll(cx, &progress)).await, Overdue::Head);
        assert_eq!(begun.elapsed().as_secs(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_has_used_up_its_turn_is_woken_all_the_same() {
        let progress = Progress::new(Awaited::Head);
        let mut timer = StallTimer::new(LIMITS);
        let ending = poll_fn(move |cx| {
            while tokio::task::coop::has_budget_remaining() {
                // Whoever reads and writes a lot uses it up.
                let _ = pin!(tokio::task::coop::consume_budget()).poll(cx);
            }
            timer.poll(cx, &progress)
        });
        assert_eq!(tokio::spawn(ending).await.expect("it ends"), Overdue::Head);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_limit_never_ends() {
        let never = TimeLimits { head: None, idle: None, body: None, write: None };
        for awaited in [Awaited::Nothing, Awaited::Request, Awaited::Head, Awaited::Body, Awaited::Write] {
            let wait = tokio::time::timeout(Duration::from_hours(2), overdue(never, awaited, |_, _| ()));
            assert!(wait.await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_waits_for_whole_requests_only() {
        let limits = TimeLimits::stopping(Duration::ZERO);
        for awaited in [Awaited::Request, Awaited::Head, Awaited::Body] {
            assert_eq!(overdue(limits, awaited, |_, _| ()).await.0, 0);
        }
        assert_eq!(overdue(limits, Awaited::Write, |_, _| ()).await, (1, Overdue::Write));
    }
}
