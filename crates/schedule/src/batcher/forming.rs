//! How many of the waiting requests make the next batch, and does it start now?

use super::policy::BatchPolicy;
use super::queue::{QueuePosition, Waiting};
use crate::event::Ticket;

/// The requests at the head of the queue that may run together, as far as the queue has been looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forming {
    /// The first of them, with its key of shapes.
    head: Option<(Ticket, u64)>,
    /// The position of the last of them.
    last: Option<QueuePosition>,
    /// The position of the request that the model's strategy is asked about.
    awaited_at: Option<QueuePosition>,
    count: usize,
    rows: u32,
    /// The arrival of the one that has waited longest.
    oldest_us: u64,
    /// The number of them that make the best batch without waiting for more.
    best: Option<usize>,
    /// The next request does not fit, so the batch cannot grow.
    closed: bool,
    /// It was closed by a change among its requests, and is not formed anew for another change.
    is_cut: bool,
}

/// The decision about the requests of a [`Forming`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchDecision {
    /// There are none.
    Idle,
    /// This many requests from the head run now.
    Run(usize),
    /// They wait for more requests until this time.
    WaitUntil(u64),
    /// They wait for an answer about the next one.
    AwaitAnswer,
}

impl Forming {
    /// The position of the last of them.
    pub fn last(&self) -> Option<QueuePosition> {
        self.last
    }

    /// Whether the batch cannot grow any more.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether it waits for an answer.
    pub fn awaits_answer(&self) -> bool {
        self.awaited_at.is_some()
    }

    /// Call this when an answer may have come. It is found by asking again.
    pub fn answered(&mut self) {
        self.awaited_at = None;
    }

    /// Whether a change at `position` changes the forming batch.
    pub fn covers(&self, position: QueuePosition) -> bool {
        self.awaited_at.or(self.last).is_some_and(|last| position <= last) || self.closed
    }

    /// Whether a change behind its first request, which is now `first`, closes it. Otherwise the batch would form anew
    /// at each change while the strategy is asked, and might never start.
    pub fn is_cut_by_changes_behind(&self, first: Option<Ticket>) -> bool {
        (self.awaits_answer() || self.is_cut) && self.head.is_some() && self.head.map(|(head, _)| head) == first
    }

    /// Closes it with those of its requests that are before a change at `position`. `waiting` are all that wait, in the order of the queue.
    pub fn cut<'a>(
        &mut self,
        position: QueuePosition,
        waiting: impl Iterator<Item = (QueuePosition, &'a Waiting)>,
        policy: &BatchPolicy,
    ) {
        let mut kept = Forming { is_cut: true, ..Forming::default() };
        for (at, waiting) in waiting.take_while(|(at, _)| *at < position && Some(*at) <= self.last) {
            kept.look_at(at, waiting, policy, |_, _| Some(true));
        }
        // The first one itself may have moved in the queue, because it was delayed.
        *self = if kept.count > 0 { Forming { closed: true, ..kept } } else { Forming::default() };
    }

    /// The first request of the batch is at this position, and it is not yet known whether the batch may begin.
    pub fn await_answer_at(&mut self, position: QueuePosition) {
        self.awaited_at = Some(position);
    }

    /// Adds the next request of the queue, if it fits. `may_join` says whether it may share a batch with the first one; `None`: not yet known.
    pub fn look_at(
        &mut self,
        position: QueuePosition,
        waiting: &Waiting,
        policy: &BatchPolicy,
        may_join: impl FnOnce(Ticket, Ticket) -> Option<bool>,
    ) {
        let (ticket, rows) = (waiting.arrival.ticket, waiting.arrival.rows.max(1));
        let rows_then = self.rows.saturating_add(rows);
        if let Some((head, shapes)) = self.head {
            // As in Triton: if no preferred size can be filled, the best batch is the largest one below the largest preferred size.
            if rows_then > policy.preferred_max() && self.best.is_none() {
                self.best = Some(self.count);
            }
            let has_room = rows_then <= policy.rows_max();
            let fits = has_room && shapes == waiting.arrival.shapes;
            match if fits { may_join(head, ticket) } else { Some(false) } {
                Some(true) => {}
                Some(false) => {
                    self.closed = true;
                    return;
                }
                None => return self.await_answer_at(position),
            }
            self.oldest_us = self.oldest_us.min(waiting.since_us);
        } else {
            self.head = Some((ticket, waiting.arrival.shapes));
            self.oldest_us = waiting.since_us;
        }
        (self.last, self.count, self.rows) = (Some(position), self.count + 1, rows_then);
        if policy.preferred.contains(&self.rows) {
            self.best = Some(self.count);
        }
    }

    /// When the batch starts, even if no more requests come.
    pub fn due_us(&self, policy: &BatchPolicy) -> u64 {
        self.oldest_us.saturating_add(policy.delay_us)
    }

    /// Whether they run now. `hurry`: the delay does not apply any more.
    pub fn decide(&self, policy: &BatchPolicy, hurry: bool, now_us: u64) -> BatchDecision {
        if self.awaits_answer() {
            return BatchDecision::AwaitAnswer;
        }
        if self.count == 0 {
            return BatchDecision::Idle;
        }
        let due_us = self.due_us(policy);
        let is_late = policy.delay_us > 0 && due_us <= now_us;
        if let Some(best) = self.best
            && !is_late
        {
            return BatchDecision::Run(best);
        }
        let is_full = self.closed || self.rows >= policy.preferred_max();
        if is_full || is_late || hurry || policy.delay_us == 0 {
            BatchDecision::Run(self.count)
        } else {
            BatchDecision::WaitUntil(due_us)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Queue;
    use super::*;
    use crate::event::Arrival;

    /// `rows` lists requests that came at 0, 1, 2 … µs, each with its number of rows, and behind a dot its key of shapes if that is not 0.
    #[track_caller]
    fn check(preferred: &[u32], delay_us: u64, rows: &str, now_us: u64, expect: BatchDecision) {
        let policy = BatchPolicy { rows_max: 8, preferred: preferred.to_vec(), delay_us, ..BatchPolicy::default() };
        let mut queue = Queue::default();
        for (number, one) in rows.split_whitespace().enumerate() {
            let (rows, shapes) = one.split_once('.').unwrap_or((one, "0"));
            let (rows, shapes) = (rows.parse().expect("rows"), shapes.parse().expect("a key"));
            let number = number as u64;
            queue.push(Arrival { shapes, ..Arrival::new(Ticket(number + 1), rows) }, number);
        }
        let mut forming = Forming::default();
        for (position, waiting) in queue.behind(None) {
            if !forming.closed {
                forming.look_at(position, waiting, &policy, |_, _| Some(true));
            }
        }
        assert_eq!(forming.decide(&policy, false, now_us), expect, "{preferred:?} {delay_us} {rows} at {now_us}");
    }

    #[test]
    fn without_a_delay_a_batch_has_the_largest_preferred_size_that_can_be_filled() {
        use BatchDecision::{Idle, Run};
        check(&[8], 0, "", 9, Idle);
        check(&[8], 0, "1", 9, Run(1));
        check(&[8], 0, "1 1 1", 9, Run(3));
        check(&[8], 0, "1 1 1 1 1 1 1 1 1", 9, Run(8));
        check(&[8], 0, "3 3 3", 9, Run(2));
        check(&[2, 4], 0, "1 1 1", 9, Run(2));
        check(&[2, 4], 0, "1 1 1 1 1 1", 9, Run(4));
        check(&[4], 0, "3 3", 9, Run(1));
        check(&[4], 0, "7 1", 9, Run(1));
        check(&[4], 0, "1 1", 9, Run(2));
        check(&[], 0, "1 1", 9, Run(1));
        check(&[8], 0, "1.5 1.5 1.6", 9, Run(2));
    }

    #[test]
    fn a_batch_waits_for_the_delay_a_preferred_size_or_until_it_is_full() {
        use BatchDecision::{Run, WaitUntil};
        check(&[8], 100, "1", 9, WaitUntil(100));
        check(&[8], 100, "1", 100, Run(1));
        check(&[8], 100, "1 1 1", 99, WaitUntil(100));
        check(&[8], 100, "4 4", 9, Run(2));
        check(&[4], 100, "4 1", 9, Run(1));
        check(&[4], 100, "1 1 1", 9, WaitUntil(100));
        check(&[4], 100, "1.5 1.6", 9, Run(1));
        check(&[8], 100, "5 5", 9, Run(1));
        // Once the delay is over, all requests that fit start, whatever the preferred sizes are.
        check(&[4], 100, "4 1 1", 100, Run(3));
        check(&[2], 100, "1 1 1 1 1 1 1 1 1", 100, Run(8));
    }
}
