//! Which requests wait, in which order, and until when?
//!
//! Each operation takes time in the logarithm of the number of waiting requests, however many of them one client has.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::event::{Arrival, Ticket, TimeoutAction};

/// The position of a request: ordered by level. Delayed requests are behind the others of their level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueuePosition {
    level: u64,
    /// 0 for requests that were not delayed. Delayed ones keep their order.
    delayed: u64,
    ticket: Ticket,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub arrival: Arrival,
    /// Its arrival.
    pub since_us: u64,
}

/// Requests by level and arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: BTreeMap<QueuePosition, Waiting>,
    positions: HashMap<Ticket, QueuePosition>,
    deadlines: BTreeSet<(u64, Ticket)>,
    /// The number of waiting requests of each level that has any.
    levels: HashMap<u64, usize>,
    delayed: u64,
}

/// The action for a request whose deadline has passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// It was removed.
    Rejected(Ticket, QueuePosition),
    /// It was moved from this position behind the others of its level.
    Delayed(QueuePosition),
}

impl Queue {
    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Requests of that level that wait.
    pub fn len_of(&self, level: u64) -> usize {
        self.levels.get(&level).copied().unwrap_or(0)
    }

    /// Adds a request at the end of its level. Returns its position.
    pub fn push(&mut self, arrival: Arrival, now_us: u64) -> QueuePosition {
        let position = QueuePosition { level: arrival.priority, delayed: 0, ticket: arrival.ticket };
        if let Some(deadline) = arrival.deadline {
            self.deadlines.insert((deadline.at_us, arrival.ticket));
        }
        *self.levels.entry(position.level).or_default() += 1;
        self.positions.insert(arrival.ticket, position);
        self.order.insert(position, Waiting { arrival, since_us: now_us });
        position
    }

    /// Removes a request, if it waits. Returns the position it had.
    pub fn remove(&mut self, ticket: Ticket) -> Option<(QueuePosition, Waiting)> {
        let position = self.positions.remove(&ticket)?;
        let waiting = self.order.remove(&position)?;
        self.forget(&waiting, position);
        Some((position, waiting))
    }

    /// Removes the first `count` requests and returns them in order.
    pub fn take_first(&mut self, count: usize) -> Vec<Waiting> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count
            && let Some((position, waiting)) = self.order.pop_first()
        {
            self.positions.remove(&position.ticket);
            self.forget(&waiting, position);
            taken.push(waiting);
        }
        taken
    }

    fn forget(&mut self, waiting: &Waiting, position: QueuePosition) {
        if let Some(deadline) = waiting.arrival.deadline {
            self.deadlines.remove(&(deadline.at_us, position.ticket));
        }
        if let Some(count) = self.levels.get_mut(&position.level) {
            *count -= 1;
            if *count == 0 {
                self.levels.remove(&position.level);
            }
        }
    }

    /// The requests behind `position`, or all.
    pub fn behind(&self, position: Option<QueuePosition>) -> impl Iterator<Item = (QueuePosition, &Waiting)> {
        let from = position.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.order.range((from, std::ops::Bound::Unbounded)).map(|(position, waiting)| (*position, waiting))
    }

    /// The earliest deadline.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.deadlines.first().map(|(at_us, _)| *at_us)
    }

    /// Rejects or delays one request whose deadline has passed, by its policy. A request is delayed once only.
    pub fn expire(&mut self, now_us: u64) -> Option<Expired> {
        let (_, ticket) = *self.deadlines.first().filter(|(at_us, _)| *at_us <= now_us)?;
        let (position, mut waiting) = self.remove(ticket)?;
        let action = waiting.arrival.deadline.take().map(|deadline| deadline.action)?;
        if action == TimeoutAction::Reject {
            return Some(Expired::Rejected(ticket, position));
        }
        self.delayed += 1;
        let behind = QueuePosition { delayed: self.delayed, ..position };
        *self.levels.entry(behind.level).or_default() += 1;
        self.positions.insert(ticket, behind);
        self.order.insert(behind, waiting);
        Some(Expired::Delayed(position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Deadline;

    fn order(queue: &Queue) -> Vec<u64> {
        queue.behind(None).map(|(_, waiting)| waiting.arrival.ticket.0).collect()
    }

    fn arrival(ticket: u64, priority: u64, due: Option<(u64, TimeoutAction)>) -> Arrival {
        let deadline = due.map(|(at_us, action)| Deadline { at_us, action });
        Arrival { priority, deadline, ..Arrival::new(Ticket(ticket), 1) }
    }

    #[test]
    fn levels_come_first_and_delayed_requests_last_in_theirs() {
        let mut queue = Queue::default();
        queue.push(arrival(1, 2, None), 0);
        queue.push(arrival(2, 1, Some((10, TimeoutAction::Delay))), 0);
        queue.push(arrival(3, 1, Some((20, TimeoutAction::Delay))), 0);
        queue.push(arrival(4, 1, Some((5, TimeoutAction::Reject))), 0);
        queue.push(arrival(5, 1, None), 0);
        assert_eq!(order(&queue), [2, 3, 4, 5, 1]);
        assert_eq!(queue.next_deadline_us(), Some(5));
        assert!(queue.expire(4).is_none());
        assert!(matches!(queue.expire(10), Some(Expired::Rejected(Ticket(4), _))));
        assert!(matches!(queue.expire(10), Some(Expired::Delayed(_))));
        assert!(queue.expire(10).is_none());
        assert_eq!(order(&queue), [3, 5, 2, 1]);
        assert!(queue.expire(20).is_some());
        assert_eq!(order(&queue), [5, 2, 3, 1]);
        queue.push(arrival(6, 1, None), 20);
        assert_eq!(order(&queue), [5, 6, 2, 3, 1]);
        assert_eq!((queue.len_of(1), queue.len_of(2), queue.len()), (4, 1, 5));
        assert_eq!(queue.next_deadline_us(), None);
    }

    #[test]
    fn a_removed_request_leaves_no_entry() {
        let mut queue = Queue::default();
        for ticket in 1..=4 {
            queue.push(arrival(ticket, 0, Some((9, TimeoutAction::Reject))), 0);
        }
        assert!(queue.remove(Ticket(2)).is_some() && queue.remove(Ticket(2)).is_none());
        let taken: Vec<u64> = queue.take_first(2).iter().map(|waiting| waiting.arrival.ticket.0).collect();
        assert_eq!((taken, order(&queue)), (vec![1, 3], vec![4]));
        assert!(queue.remove(Ticket(4)).is_some());
        assert!(queue.positions.is_empty() && queue.deadlines.is_empty() && queue.levels.is_empty());
    }
}
