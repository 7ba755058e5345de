//! How long does a response wait for its client?
//!
//! | the response is sent | while the client's window is full |
//! |---|---|
//! | during the run, which holds the instance | it is kept beyond the window. If no more can be kept, the run waits at most [`CLIENT_WAITS_MAX`] |
//! | after the run, by a thread of the model | it waits for room. If the process has other requests, it is kept after [`CLIENT_WAITS_MAX`] |
//!
//! The second limit exists because the same thread may have to answer the other requests. The time starts anew when half of the window is free. If it
//! started anew with each response that the client takes, a client that takes one in 30 ms would make the thread wait 30 ms before each response.
//!
//! If the time is over and no more can be kept, the request ends. Requests that models make are an exception: their responses lie in memory that all
//! processes share, so they wait without a limit.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nerite_request::limits::CLIENT_WAITS_MAX;

use super::lock;

/// What a request has left of the time that its responses may wait for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitBudget {
    /// Whether the run that got the request has not ended.
    in_run: bool,
    /// Whether the wait is limited. Requests of other models have no account, and their responses wait without a limit.
    ends: bool,
    left: Duration,
}

/// The responses that wait for room, by the numbers of their requests.
#[derive(Default)]
pub(crate) struct WaitingResponses(Mutex<HashMap<u64, Waiting>>);

struct Waiting {
    /// The call that waits.
    call: u64,
    budget: WaitBudget,
    /// The time since which other requests may be waiting for it.
    since: Option<Instant>,
}

/// A response that has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waited {
    pub(crate) number: u64,
    pub(crate) call: u64,
    pub(crate) budget: WaitBudget,
}

impl WaitBudget {
    /// The budget of a request whose run begins.
    pub(crate) fn of_run(has_account: bool) -> WaitBudget {
        WaitBudget { in_run: true, ends: has_account, left: CLIENT_WAITS_MAX }
    }

    /// Notes that the run has ended. From now on only the model's own threads answer the request.
    pub(crate) fn run_ends(&mut self) {
        (self.in_run, self.left) = (false, CLIENT_WAITS_MAX);
    }

    /// Whether waits have used a part of the time.
    pub(crate) fn has_waited(&self) -> bool {
        self.left < CLIENT_WAITS_MAX
    }

    /// Notes that half of the window is free. After the run the time starts anew. During the run it does not: all waits of a run count together.
    pub(crate) fn note_half_free(&mut self) {
        if !self.in_run {
            self.left = CLIENT_WAITS_MAX;
        }
    }

    /// Whether the next response may be kept beyond the window. `has_others`: the process has other requests too.
    pub(crate) fn may_keep(&self, has_others: bool) -> bool {
        self.ends && (self.in_run || (has_others && self.left.is_zero()))
    }

    /// How long other requests may still wait for it.
    pub(crate) fn left(&self) -> Duration {
        self.left
    }

    /// The budget after other requests have waited since that time.
    fn after(self, since: Option<Instant>, now: Instant) -> WaitBudget {
        let waited = since.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        WaitBudget { left: self.left.saturating_sub(waited), ..self }
    }
}

impl WaitingResponses {
    /// Adds a response that waits.
    pub(crate) fn add(&self, waits: Waited) {
        let Waited { number, call, budget } = waits;
        lock(&self.0).insert(number, Waiting { call, budget, since: None });
    }

    /// Removes a response whose client may have made room. `None` if it does not wait any more.
    pub(crate) fn take(&self, number: u64, call: u64, now: Instant) -> Option<Waited> {
        let mut all = lock(&self.0);
        if all.get(&number)?.call != call {
            return None;
        }
        let Waiting { budget, since, .. } = all.remove(&number)?;
        Some(Waited { number, call, budget: budget.after(since, now) })
    }

    /// Notes that the run of a request has ended.
    pub(crate) fn run_ends(&self, number: u64) {
        if let Some(waiting) = lock(&self.0).get_mut(&number) {
            waiting.budget.run_ends();
            waiting.since = None;
        }
    }

    /// Removes the response of a request that has ended.
    pub(crate) fn forget(&self, number: u64) {
        lock(&self.0).remove(&number);
    }

    /// Whether no response waits.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Removes the responses that have waited for as long as they may. Returns them, and the time until further ones may be due. `has_others`: the
    /// process has more than one request.
    pub(crate) fn take_due(&self, has_others: bool, now: Instant) -> (Vec<Waited>, Option<Duration>) {
        let mut all = lock(&self.0);
        let (mut due, mut next) = (Vec::new(), None::<Duration>);
        for (number, waiting) in &mut *all {
            if !waiting.budget.ends || !(has_others || waiting.budget.in_run) {
                waiting.budget = waiting.budget.after(waiting.since.take(), now);
                continue;
            }
            let budget = waiting.budget.after(Some(*waiting.since.get_or_insert(now)), now);
            if budget.left.is_zero() {
                due.push(Waited { number: *number, call: waiting.call, budget });
            } else {
                next = Some(next.map_or(budget.left, |next| next.min(budget.left)));
            }
        }
        for waited in &due {
            all.remove(&waited.number);
        }
        (due, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Lets a response wait, and calls `take_due` at these times, in ms. Each says whether the process has other requests then. Checks at which of
    /// them the response is due.
    #[track_caller]
    fn check(in_run: bool, looks: &[(u32, bool)], due_at: Option<u32>) {
        let (waiting, began, mut budget) = (WaitingResponses::default(), Instant::now(), WaitBudget::of_run(true));
        if !in_run {
            budget.run_ends();
        }
        waiting.add(Waited { number: 7, call: 1, budget });
        let found = looks.iter().find_map(|(ms, has_others)| {
            let (due, next) = waiting.take_due(*has_others, began + MS * *ms);
            assert!(due.is_empty() || next.is_none(), "{looks:?}");
            let waited = due.first()?;
            assert_eq!((waited.number, waited.call, waited.budget.left), (7, 1, Duration::ZERO));
            assert!(waited.budget.may_keep(*has_others) && waiting.is_empty());
            Some(*ms)
        });
        assert_eq!(found, due_at, "{looks:?}");
    }

    #[test]
    fn a_response_waits_for_long_only_if_nobody_waits_for_it() {
        check(true, &[(0, false), (49, false), (50, false)], Some(50));
        check(true, &[(0, true), (60, true)], Some(60));
        check(false, &[(0, false), (10_000, false)], None);
        check(false, &[(0, true), (49, true), (50, true)], Some(50));
        // The time counts only while there are others.
        check(false, &[(0, false), (1000, true), (1030, false), (2000, true), (2019, true), (2020, true)], Some(2020));
    }

    #[test]
    fn a_thread_of_the_model_waits_first_and_a_run_keeps_first() {
        let mut budget = WaitBudget::of_run(true);
        assert!(budget.may_keep(false) && budget.may_keep(true));
        budget.run_ends();
        assert!(!budget.may_keep(false) && !budget.may_keep(true));
        let now = Instant::now();
        budget = budget.after(Some(now), now + CLIENT_WAITS_MAX);
        assert!(!budget.may_keep(false) && budget.may_keep(true));
        // A client that reads is waited for again.
        budget.note_half_free();
        assert_eq!((budget.left(), budget.may_keep(true)), (CLIENT_WAITS_MAX, false));
    }

    #[test]
    fn all_waits_of_a_run_count_together() {
        let (waiting, now) = (WaitingResponses::default(), Instant::now());
        waiting.add(Waited { number: 7, call: 1, budget: WaitBudget::of_run(true) });
        assert_eq!(waiting.take_due(false, now).1, Some(CLIENT_WAITS_MAX));
        let mut budget = waiting.take(7, 1, now + MS * 30).map(|waited| waited.budget);
        budget.iter_mut().for_each(WaitBudget::note_half_free);
        assert_eq!(budget.map(|budget| budget.left()), CLIENT_WAITS_MAX.checked_sub(MS * 30));
    }

    #[test]
    fn a_request_of_another_model_waits() {
        let (waiting, now, budget) = (WaitingResponses::default(), Instant::now(), WaitBudget::of_run(false));
        assert!(!budget.may_keep(true));
        waiting.add(Waited { number: 7, call: 1, budget });
        for ms in [0, 1000] {
            assert_eq!(waiting.take_due(true, now + MS * ms), (Vec::new(), None));
        }
    }

    #[test]
    fn a_call_that_was_answered_is_not_answered_again() {
        let (waiting, now) = (WaitingResponses::default(), Instant::now());
        let add = |call| waiting.add(Waited { number: 7, call, budget: WaitBudget::of_run(true) });
        add(1);
        assert!(waiting.take(7, 1, now).is_some());
        assert_eq!(waiting.take(7, 1, now), None);
        add(2);
        // This notice is for the first call.
        assert_eq!(waiting.take(7, 1, now), None);
        assert!(waiting.take(7, 2, now).is_some());
        add(3);
        waiting.forget(7);
        assert!(waiting.is_empty());
    }
}
