//! Which requests wait, in which order, and until when?
//!
//! Each operation takes time in the logarithm of the number of waiting requests, however many of them one client has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};

use crate::event::{Arrival, Ticket, TimeoutAction};
use crate::fair_order::{FairOrder, Place};
use crate::occupancy::Occupancy;

/// The part of the queue that a request is in. Delayed requests are behind the others of their level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    level: u64,
    is_delayed: bool,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub arrival: Arrival,
    /// When it arrived.
    pub since_us: u64,
    class: Class,
    place: Place,
}

/// Requests in the order of their levels. Within a level, clients take turns. The batcher looks at them one after the other, from the first. Those
/// that it has looked at are the prefix.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: BTreeMap<Class, FairOrder>,
    waiting: HashMap<Ticket, Waiting>,
    deadlines: BTreeSet<(u64, Ticket)>,
    occupancy: Occupancy,
    /// The waiting requests of each level that has any.
    levels: HashMap<u64, Occupancy>,
    delayed: u64,
    prefix: Prefix,
}

/// The first requests of the queue, as far as they were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Prefix {
    number: u64,
    /// The class of its last request.
    class: Option<Class>,
}

/// Whether a change in the queue changed the prefix.
pub(super) type PrefixChanged = bool;

/// The action for a request whose deadline has passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// It was removed.
    Rejected(Ticket, PrefixChanged),
    /// It was moved behind the others of its level.
    Delayed(PrefixChanged),
}

impl Queue {
    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether one more request of that peer may wait, if at most `limit` of all levels may.
    pub fn has_place(&self, peer: u64, limit: usize) -> bool {
        self.occupancy.has_place(peer, limit)
    }

    /// Whether one more request of that peer may wait in this level, for which the model's author set the limit. One peer alone may fill the level, as in
    /// Triton. A peer without a request there finds a place even if the level is full, so that no peer keeps another one out.
    pub fn has_place_in(&self, level: u64, peer: u64, limit: usize) -> bool {
        self.levels.get(&level).is_none_or(|of_level| of_level.all() < limit || of_level.of(peer) == 0)
    }

    /// Adds a request to its level.
    pub fn push(&mut self, arrival: Arrival, now_us: u64) -> PrefixChanged {
        let (ticket, peer, level) = (arrival.ticket, arrival.client.peer, arrival.priority);
        if let Some(deadline) = arrival.deadline {
            self.deadlines.insert((deadline.at_us, ticket));
        }
        self.occupancy.add(peer);
        self.levels.entry(level).or_default().add(peer);
        self.insert(arrival, Class { level, is_delayed: false }, ticket.0, now_us)
    }

    /// Adds a request to a class. Requests of one flow are ordered by `number` there.
    fn insert(&mut self, arrival: Arrival, class: Class, number: u64, since_us: u64) -> PrefixChanged {
        let Arrival { ticket, rows, .. } = arrival;
        let order = self.order.entry(class).or_default();
        let (place, is_changed) = order.push(arrival.turns_of(), ticket, number, rows, self.prefix.number);
        self.waiting.insert(ticket, Waiting { arrival, since_us, class, place });
        is_changed || Some(class) < self.prefix.class
    }

    /// Removes a request, if it waits.
    pub fn remove(&mut self, ticket: Ticket) -> Option<(Waiting, PrefixChanged)> {
        let waiting = self.waiting.remove(&ticket)?;
        let is_changed = self.take_out(&waiting);
        self.forget(&waiting);
        Some((waiting, is_changed))
    }

    /// Removes a request from the order.
    fn take_out(&mut self, waiting: &Waiting) -> PrefixChanged {
        let Some(order) = self.order.get_mut(&waiting.class) else { return false };
        let is_changed = order.remove(waiting.place, self.prefix.number);
        if order.is_empty() {
            self.order.remove(&waiting.class);
        }
        is_changed
    }

    /// Removes the first `count` requests and returns them in order. A new prefix begins.
    pub fn take_first(&mut self, count: usize) -> Vec<Waiting> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count
            && let Some(mut first) = self.order.first_entry()
        {
            let ticket = first.get_mut().take_first();
            if first.get().is_empty() {
                first.remove();
            }
            let Some(waiting) = ticket.and_then(|ticket| self.waiting.remove(&ticket)) else { continue };
            self.forget(&waiting);
            taken.push(waiting);
        }
        self.restart();
        taken
    }

    fn forget(&mut self, waiting: &Waiting) {
        let Arrival { ticket, priority: level, deadline, client, .. } = waiting.arrival;
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline.at_us, ticket));
        }
        self.occupancy.remove(client.peer);
        if let Some(of_level) = self.levels.get_mut(&level) {
            of_level.remove(client.peer);
            if of_level.all() == 0 {
                self.levels.remove(&level);
            }
        }
    }

    /// The first request behind the prefix.
    pub fn next(&self) -> Option<&Waiting> {
        self.waiting.get(&self.next_of_class()?.1)
    }

    fn next_of_class(&self) -> Option<(Class, Ticket)> {
        let Prefix { number, class: last, .. } = self.prefix;
        let here = last.and_then(|class| Some((class, self.order.get(&class)?.next(number)?)));
        here.or_else(|| {
            let (class, order) = self.order.range((last.map_or(Unbounded, Excluded), Unbounded)).next()?;
            Some((*class, order.next(number)?))
        })
    }

    /// Adds [`Queue::next`] to the prefix.
    pub fn advance(&mut self) {
        let Some((class, _)) = self.next_of_class() else { return };
        if let Some(order) = self.order.get_mut(&class) {
            order.advance(self.prefix.number);
        }
        self.prefix.class = Some(class);
    }

    /// A new prefix begins, without requests.
    pub fn restart(&mut self) {
        self.prefix = Prefix { number: self.prefix.number + 1, class: None };
    }

    /// The earliest deadline.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.deadlines.first().map(|(at_us, _)| *at_us)
    }

    /// Rejects or delays one request whose deadline has passed, by its policy. A request is delayed once only.
    pub fn expire(&mut self, now_us: u64) -> Option<Expired> {
        let (at_us, ticket) = *self.deadlines.first().filter(|(at_us, _)| *at_us <= now_us)?;
        let action = self.waiting.get(&ticket)?.arrival.deadline.map(|deadline| deadline.action)?;
        if action == TimeoutAction::Reject {
            let (_, is_changed) = self.remove(ticket)?;
            return Some(Expired::Rejected(ticket, is_changed));
        }
        self.deadlines.remove(&(at_us, ticket));
        let mut waiting = self.waiting.remove(&ticket)?;
        let was_in_prefix = self.take_out(&waiting);
        waiting.arrival.deadline = None;
        self.delayed += 1;
        let behind = Class { is_delayed: true, ..waiting.class };
        let is_changed = self.insert(waiting.arrival, behind, self.delayed, waiting.since_us);
        Some(Expired::Delayed(was_in_prefix || is_changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Client, Deadline};

    fn order(queue: &mut Queue) -> Vec<u64> {
        queue.restart();
        let mut tickets = Vec::new();
        while let Some(waiting) = queue.next() {
            tickets.push(waiting.arrival.ticket.0);
            queue.advance();
        }
        tickets
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
        assert_eq!(order(&mut queue), [2, 3, 4, 5, 1]);
        assert_eq!(queue.next_deadline_us(), Some(5));
        assert!(queue.expire(4).is_none());
        assert!(matches!(queue.expire(10), Some(Expired::Rejected(Ticket(4), _))));
        assert!(matches!(queue.expire(10), Some(Expired::Delayed(_))));
        assert!(queue.expire(10).is_none());
        assert_eq!(order(&mut queue), [3, 5, 2, 1]);
        assert!(queue.expire(20).is_some());
        assert_eq!(order(&mut queue), [5, 2, 3, 1]);
        queue.push(arrival(6, 1, None), 20);
        assert_eq!(order(&mut queue), [5, 6, 2, 3, 1]);
        assert_eq!(queue.len(), 5);
        // Level 1 has four requests, and level 2 has one.
        for (level, limit, expect) in [(1, 4, false), (1, 5, true), (2, 1, false), (2, 2, true), (3, 1, true)] {
            assert_eq!(queue.has_place_in(level, 0, limit), expect, "{level} {limit}");
            assert!(queue.has_place_in(level, 1, limit), "{level} {limit}, of another peer");
        }
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
        assert_eq!((taken, order(&mut queue)), (vec![1, 3], vec![4]));
        assert!(queue.remove(Ticket(4)).is_some());
        assert!(
            queue.order.is_empty()
                && queue.deadlines.is_empty()
                && queue.levels.is_empty()
                && queue.occupancy.all() == 0
        );
    }

    /// Each letter of `waiting` is a request of the peer of that name. A capital letter is a request of the first of two levels. The first
    /// `looked_at` requests are in the prefix when a request of `newcomer` arrives. `expect`: whether that changes the prefix.
    #[track_caller]
    fn check_prefix(waiting: &str, looked_at: usize, newcomer: char, expect: PrefixChanged) {
        let mut queue = Queue::default();
        let arrival = |letter: char, ticket: usize| {
            let client = Client { peer: letter.to_ascii_lowercase() as u64, flow: 0 };
            let priority = if letter.is_ascii_uppercase() { 1 } else { 2 };
            Arrival { priority, client, ..Arrival::new(Ticket(ticket as u64), 1) }
        };
        for (at, letter) in waiting.chars().enumerate() {
            queue.push(arrival(letter, at), 0);
        }
        (0..looked_at).for_each(|_| queue.advance());
        let changed = queue.push(arrival(newcomer, waiting.len()), 0);
        assert_eq!(changed, expect, "{waiting}, {looked_at} looked at, {newcomer}");
        let tickets: Vec<_> = (0..looked_at as u64).collect();
        let kept = order(&mut queue).starts_with(&tickets);
        assert_eq!(kept, !changed, "{waiting}, {looked_at} looked at, {newcomer}");
    }

    #[test]
    fn a_newcomer_changes_the_prefix_if_it_goes_before_its_last_request() {
        check_prefix("aaaa", 3, 'b', true);
        check_prefix("aaaa", 1, 'b', false);
        check_prefix("aaaa", 4, 'a', false);
        check_prefix("abab", 4, 'c', true);
        check_prefix("aaaa", 1, 'B', true);
        check_prefix("AAaa", 3, 'A', true);
        check_prefix("AAaa", 2, 'A', false);
        check_prefix("AAaa", 2, 'b', false);
    }
}
