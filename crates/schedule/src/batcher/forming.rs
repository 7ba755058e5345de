//! How many of the waiting requests make the next batch, and does it start now?

use super::policy::BatchPolicy;
use super::queue::Waiting;
use crate::event::Ticket;

/// The requests at the head of the queue that may run together, as far as the queue has been looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forming {
    /// The first of them, with its key of shapes.
    head: Option<(Ticket, u64)>,
    count: usize,
    rows: u32,
    /// The arrival of the one that has waited longest.
    oldest_us: u64,
    /// How many of them make the best batch if it starts without waiting for more.
    best: Option<usize>,
    /// The next request does not fit, so the batch cannot grow.
    closed: bool,
}

/// The decision about the requests of a [`Forming`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchDecision {
    /// There are no requests.
    Idle,
    /// This many requests from the head run now.
    Run(usize),
    /// They wait for more requests until this time.
    WaitUntil(u64),
}

impl Forming {
    /// Whether the batch cannot grow any more.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Adds the next request of the queue, if it fits. `may_join` says whether it may share a batch with the first one. Returns whether it was added.
    pub fn look_at(
        &mut self,
        waiting: &Waiting,
        policy: &BatchPolicy,
        may_join: impl FnOnce(Ticket, Ticket) -> bool,
    ) -> bool {
        let (ticket, rows) = (waiting.arrival.ticket, waiting.arrival.rows.max(1));
        let rows_then = self.rows.saturating_add(rows);
        if let Some((head, shapes)) = self.head {
            // As in Triton: if no preferred size can be filled, the best batch is the largest one below the largest preferred size.
            if rows_then > policy.preferred_max() && self.best.is_none() {
                self.best = Some(self.count);
            }
            let has_room = rows_then <= policy.rows_max();
            if !has_room || shapes != waiting.arrival.shapes || !may_join(head, ticket) {
                self.closed = true;
                return false;
            }
            self.oldest_us = self.oldest_us.min(waiting.since_us);
        } else {
            self.head = Some((ticket, waiting.arrival.shapes));
            self.oldest_us = waiting.since_us;
        }
        (self.count, self.rows) = (self.count + 1, rows_then);
        if policy.preferred.contains(&self.rows) {
            self.best = Some(self.count);
        }
        true
    }

    /// When the batch starts, even if no more requests arrive.
    pub fn due_us(&self, policy: &BatchPolicy) -> u64 {
        self.oldest_us.saturating_add(policy.delay_us)
    }

    /// Decides whether the requests run now. `has_no_delay`: the delay does not apply any more.
    pub fn decide(&self, policy: &BatchPolicy, has_no_delay: bool, now_us: u64) -> BatchDecision {
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
        if is_full || is_late || has_no_delay || policy.delay_us == 0 {
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

    /// `rows` lists requests that arrived at 0, 1, 2 … µs: the number of rows of each, and after a dot its key of shapes if that is not 0.
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
        while let Some(waiting) = queue.next()
            && forming.look_at(waiting, &policy, |_, _| true)
        {
            queue.advance();
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
