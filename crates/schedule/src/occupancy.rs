//! Which request leaves a full queue when a peer with fewer requests there sends another one?
//!
//! A peer that fills the queue must not shut out the others. So the newest request of the peer with the most waiting requests is rejected, if that
//! peer has at least two more than the peer of the new request. With a difference of one, two peers would reject each other's requests without end.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Ticket;

/// The requests of a queue, by peer. Each operation takes time in the logarithm of their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Occupancy {
    tickets: BTreeMap<u64, BTreeSet<Ticket>>,
    /// The number of each peer's requests.
    counts: BTreeSet<(usize, u64)>,
}

impl Occupancy {
    /// Adds a request of that peer.
    pub fn add(&mut self, peer: u64, ticket: Ticket) {
        let tickets = self.tickets.entry(peer).or_default();
        let before = tickets.len();
        tickets.insert(ticket);
        self.recount(peer, before);
    }

    /// Removes a request of that peer.
    pub fn remove(&mut self, peer: u64, ticket: Ticket) {
        let Some(tickets) = self.tickets.get_mut(&peer) else { return };
        let before = tickets.len();
        tickets.remove(&ticket);
        self.recount(peer, before);
    }

    fn recount(&mut self, peer: u64, before: usize) {
        let count = self.tickets.get(&peer).map_or(0, BTreeSet::len);
        self.counts.remove(&(before, peer));
        if count > 0 {
            self.counts.insert((count, peer));
        } else {
            self.tickets.remove(&peer);
        }
    }

    /// The request that is rejected in place of a new one of `peer`. `None`: the new one is rejected, because the peer has its share.
    pub fn gives_way_to(&self, peer: u64) -> Option<Ticket> {
        let own = self.tickets.get(&peer).map_or(0, BTreeSet::len);
        let (most, whose) = self.counts.last()?;
        if own + 1 >= *most {
            return None;
        }
        self.tickets.get(whose)?.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each letter is a request of that peer in the queue, with its position as ticket.
    #[track_caller]
    fn check(waiting: &str, newcomer: char, expect: Option<u64>) {
        let mut occupancy = Occupancy::default();
        let all: Vec<_> = waiting.chars().zip(0..).map(|(peer, ticket)| (peer as u64, Ticket(ticket))).collect();
        for (peer, ticket) in &all {
            occupancy.add(*peer, *ticket);
        }
        assert_eq!(occupancy.gives_way_to(newcomer as u64), expect.map(Ticket), "{waiting} {newcomer}");
        for (peer, ticket) in &all {
            occupancy.remove(*peer, *ticket);
        }
        assert!(occupancy.tickets.is_empty() && occupancy.counts.is_empty(), "{waiting}");
    }

    #[test]
    fn the_newest_request_of_the_peer_with_the_most_gives_way() {
        check("aaab", 'c', Some(2));
        check("aaab", 'b', Some(2));
        check("abab", 'c', Some(3));
        check("aaab", 'a', None);
    }

    #[test]
    fn peers_with_equal_shares_do_not_reject_each_other() {
        check("", 'a', None);
        check("a", 'b', None);
        check("ab", 'c', None);
        check("aab", 'b', None);
        check("aabb", 'b', None);
    }
}
