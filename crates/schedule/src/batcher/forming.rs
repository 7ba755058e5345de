//! How many of those that wait make the next batch, and is it time to start it?

use super::policy::BatchPolicy;
use super::queue::{Place, Waiting};
use crate::event::Ticket;

/// The requests at the head of the queue that may run together, as far as the queue has been looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forming {
    /// The first of them, with its key of shapes.
    head: Option<(Ticket, u64)>,
    /// Where the last of them stands.
    last: Option<Place>,
    count: usize,
    rows: u32,
    /// When the one came that waits longest.
    oldest_us: u64,
    /// How many of them make the best batch that waits for nobody.
    best: Option<usize>,
    /// The next request does not fit: no more will join.
    closed: bool,
}

/// What follows for the requests of a [`Forming`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There are none.
    Idle,
    /// The first so many run now.
    Run(usize),
    /// They wait for others until then.
    WaitUntil(u64),
}

impl Forming {
    /// Where the last of them stands.
    pub fn last(&self) -> Option<Place> {
        self.last
    }

    /// Whether no more will join, whoever comes.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether what happens at `place` changes which requests are the first.
    pub fn covers(&self, place: Place) -> bool {
        self.last.is_some_and(|last| place <= last) || self.closed
    }

    /// Looks at the next request of the queue. `may_join` says whether it may share a batch with the first one.
    pub fn look_at(
        &mut self,
        place: Place,
        waiting: &Waiting,
        policy: &BatchPolicy,
        may_join: impl FnOnce(Ticket, Ticket) -> bool,
    ) {
        let (ticket, rows) = (waiting.arrival.ticket, waiting.arrival.rows.max(1));
        let rows_then = self.rows.saturating_add(rows);
        if let Some((head, shapes)) = self.head {
            // As in Triton: where no preferred size can be met, the best is what lies below the largest of them.
            if rows_then > policy.preferred_max() && self.best.is_none() {
                self.best = Some(self.count);
            }
            let has_room = rows_then <= policy.rows_max();
            if !has_room || shapes != waiting.arrival.shapes || !may_join(head, ticket) {
                self.closed = true;
                return;
            }
            self.oldest_us = self.oldest_us.min(waiting.since_us);
        } else {
            self.head = Some((ticket, waiting.arrival.shapes));
            self.oldest_us = waiting.since_us;
        }
        (self.last, self.count, self.rows) = (Some(place), self.count + 1, rows_then);
        if policy.preferred.contains(&self.rows) {
            self.best = Some(self.count);
        }
    }

    /// When they run, whoever comes.
    pub fn due_us(&self, policy: &BatchPolicy) -> u64 {
        self.oldest_us.saturating_add(policy.delay_us)
    }

    /// Whether they run now. `hurry`: nobody waits for others any more.
    pub fn step(&self, policy: &BatchPolicy, hurry: bool, now_us: u64) -> Step {
        if self.count == 0 {
            return Step::Idle;
        }
        let due_us = self.due_us(policy);
        let is_late = policy.delay_us > 0 && due_us <= now_us;
        if let Some(best) = self.best
            && !is_late
        {
            return Step::Run(best);
        }
        let is_full = self.closed || self.rows >= policy.preferred_max();
        if is_full || is_late || hurry || policy.delay_us == 0 {
            Step::Run(self.count)
        } else {
            Step::WaitUntil(due_us)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Queue;
    use super::*;
    use crate::event::Arrival;

    /// `rows` of requests that came at 0, 1, 2 … µs, each with its key of shapes behind a dot if that is not 0.
    #[track_caller]
    fn check(preferred: &[u32], delay_us: u64, rows: &str, now_us: u64, expect: Step) {
        let policy = BatchPolicy { rows_max: 8, preferred: preferred.to_vec(), delay_us, ..BatchPolicy::default() };
        let mut queue = Queue::default();
        for (number, one) in rows.split_whitespace().enumerate() {
            let (rows, shapes) = one.split_once('.').unwrap_or((one, "0"));
            let (rows, shapes) = (rows.parse().expect("rows"), shapes.parse().expect("a key"));
            let number = number as u64;
            queue.push(Arrival { shapes, ..Arrival::new(Ticket(number + 1), rows) }, number);
        }
        let mut forming = Forming::default();
        for (place, waiting) in queue.behind(None) {
            if !forming.closed {
                forming.look_at(place, waiting, &policy, |_, _| true);
            }
        }
        assert_eq!(forming.step(&policy, false, now_us), expect, "{preferred:?} {delay_us} {rows} at {now_us}");
    }

    #[test]
    fn without_a_delay_what_waits_runs_up_to_the_largest_preferred_size_there_is() {
        use Step::{Idle, Run};
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
    fn a_delay_is_waited_for_until_a_preferred_size_is_there_or_nobody_can_join() {
        use Step::{Run, WaitUntil};
        check(&[8], 100, "1", 9, WaitUntil(100));
        check(&[8], 100, "1", 100, Run(1));
        check(&[8], 100, "1 1 1", 99, WaitUntil(100));
        check(&[8], 100, "4 4", 9, Run(2));
        check(&[4], 100, "4 1", 9, Run(1));
        check(&[4], 100, "1 1 1", 9, WaitUntil(100));
        check(&[4], 100, "1.5 1.6", 9, Run(1));
        check(&[8], 100, "5 5", 9, Run(1));
        // Late requests take along all that fits, whatever is preferred.
        check(&[4], 100, "4 1 1", 100, Run(3));
        check(&[2], 100, "1 1 1 1 1 1 1 1 1", 100, Run(8));
    }
}
