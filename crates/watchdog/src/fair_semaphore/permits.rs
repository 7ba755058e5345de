//! Which waiter gets the next permit?
//!
//! A peer's service is the time for which it had permits. The peer with the least service goes first. Among equals, the peer that holds fewer permits
//! goes first, and then the one whose waiter came first. Within a peer, waiters go in the order in which they came.
//!
//! A peer is known as long as it waits for a permit or has one. One that begins to wait counts as having had at least as much service as the peer that
//! was given a permit last (start-time fair queueing). So it goes before the peers that used permits since, and gets no credit for time that it did
//! not ask for.

use std::collections::{BTreeMap, HashMap};

/// The number of a waiter, in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ArrivalNumber(u64);

/// The permits, and who waits for one. `W` is what wakes a waiter. While a permit is free nobody waits.
#[derive(Debug)]
pub(super) struct Permits<W> {
    free: usize,
    peers: HashMap<u64, Peer<W>>,
    /// The peers that wait, in the order in which they are served.
    order: BTreeMap<Rank, u64>,
    /// The service of the peer that was given a permit last.
    virtual_time_ns: u64,
    arrivals: u64,
}

#[derive(Debug)]
struct Peer<W> {
    served_ns: u64,
    holds: usize,
    waiting: BTreeMap<ArrivalNumber, W>,
}

/// The lowest goes first. No two peers have the same, because no two waiters have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    served_ns: u64,
    holds: usize,
    first: ArrivalNumber,
}

impl<W> Permits<W> {
    pub(super) fn new(free: usize) -> Permits<W> {
        Permits { free, peers: HashMap::new(), order: BTreeMap::new(), virtual_time_ns: 0, arrivals: 0 }
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// Takes a permit for this peer, if one is free.
    pub(super) fn take(&mut self, peer: u64) -> bool {
        if self.free == 0 {
            return false;
        }
        self.free -= 1;
        let now_ns = self.virtual_time_ns;
        self.grant(peer, |peer| peer.begin_to_wait(now_ns));
        true
    }

    /// Adds a waiter of this peer.
    pub(super) fn wait(&mut self, peer: u64, waiter: W) -> ArrivalNumber {
        assert_eq!(self.free, 0, "nobody waits while a permit is free");
        self.arrivals += 1;
        let arrival = ArrivalNumber(self.arrivals);
        let now_ns = self.virtual_time_ns;
        self.change(peer, |peer| {
            peer.begin_to_wait(now_ns);
            peer.waiting.insert(arrival, waiter);
        });
        arrival
    }

    /// The waiter of this arrival. `None` once it was given a permit.
    pub(super) fn waiter(&mut self, peer: u64, arrival: ArrivalNumber) -> Option<&mut W> {
        self.peers.get_mut(&peer)?.waiting.get_mut(&arrival)
    }

    /// Removes the waiter of this arrival. `None` if it was given a permit already.
    pub(super) fn leave(&mut self, peer: u64, arrival: ArrivalNumber) -> Option<W> {
        self.change(peer, |peer| peer.waiting.remove(&arrival))
    }

    /// Takes a permit back from this peer, which used it for that time, and gives it to the next waiter. The caller wakes that one.
    pub(super) fn give_back(&mut self, peer: u64, spent_ns: u64) -> Option<W> {
        self.change(peer, |peer| {
            assert!(peer.holds > 0, "a permit is given back once");
            peer.holds -= 1;
            peer.served_ns = peer.served_ns.saturating_add(spent_ns);
        });
        let Some(next) = self.order.first_key_value().map(|(_, next)| *next) else {
            self.free += 1;
            return None;
        };
        self.grant(next, |peer| peer.waiting.pop_first()).map(|(_, waiter)| waiter)
    }

    fn grant<T>(&mut self, peer: u64, change: impl FnOnce(&mut Peer<W>) -> T) -> T {
        let (served_ns, changed) = self.change(peer, |peer| {
            peer.holds += 1;
            let changed = change(peer);
            (peer.served_ns, changed)
        });
        self.virtual_time_ns = self.virtual_time_ns.max(served_ns);
        changed
    }

    /// Changes what is known of a peer, and keeps the order.
    fn change<T>(&mut self, number: u64, change: impl FnOnce(&mut Peer<W>) -> T) -> T {
        let new = || Peer { served_ns: self.virtual_time_ns, holds: 0, waiting: BTreeMap::new() };
        let peer = self.peers.entry(number).or_insert_with(new);
        if let Some(rank) = peer.rank() {
            self.order.remove(&rank);
        }
        let changed = change(peer);
        match peer.rank() {
            Some(rank) => drop(self.order.insert(rank, number)),
            None if peer.holds == 0 => drop(self.peers.remove(&number)),
            None => {}
        }
        changed
    }
}

impl<W> Peer<W> {
    /// A peer that did not wait until now gets no credit, whether it has permits or not.
    fn begin_to_wait(&mut self, virtual_time_ns: u64) {
        if self.waiting.is_empty() {
            self.served_ns = self.served_ns.max(virtual_time_ns);
        }
    }

    /// `None` if it does not wait.
    fn rank(&self) -> Option<Rank> {
        let (first, _) = self.waiting.first_key_value()?;
        Some(Rank { served_ns: self.served_ns, holds: self.holds, first: *first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies events to `permits` permits, and returns who was given one, in order. The events:
    /// `a1` peer `a` asks, for waiter 1; `-a5` peer `a` gives a permit back after 5 ns; `!a1` waiter 1 of peer `a` leaves.
    fn given(permits: usize, events: &str) -> String {
        let mut permits = Permits::new(permits);
        let (mut given, mut arrivals) = (Vec::new(), HashMap::new());
        for event in events.split_whitespace() {
            let (sign, who) = match event.split_at(1) {
                ("-", who) => (Some('-'), who),
                ("!", who) => (Some('!'), who),
                _ => (None, event),
            };
            let (peer, number) = who.split_at(1);
            let (peer, number) = (u64::from(peer.as_bytes()[0]), number.parse().expect("a number"));
            match sign {
                Some('-') => given.extend(permits.give_back(peer, number)),
                Some(_) => {
                    let left = permits.leave(peer, arrivals[who]);
                    assert_eq!(left.as_deref(), Some(who), "it had not been given one");
                }
                None if permits.take(peer) => given.push(who.to_owned()),
                None => drop(arrivals.insert(who.to_owned(), permits.wait(peer, who.to_owned()))),
            }
        }
        let (waiting, holding) = permits.peers.values().fold((0, 0), |(w, h), p| (w + p.waiting.len(), h + p.holds));
        assert!(permits.free == 0 || waiting == 0);
        assert_eq!((permits.peers.is_empty(), permits.order.is_empty()), (waiting + holding == 0, waiting == 0));
        given.join(" ")
    }

    #[track_caller]
    fn check(permits: usize, events: &str, expect: &str) {
        assert_eq!(given(permits, events), expect, "{permits} permits, {events}");
    }

    #[test]
    fn one_peer_is_served_in_its_order() {
        check(2, "a1 a2", "a1 a2");
        check(2, "a1 a2 a3 a4 a5", "a1 a2");
        check(2, "a1 a2 a3 a4 a5 -a9 -a0 -a3", "a1 a2 a3 a4 a5");
        check(1, "a1 -a5 a2 -a5 a3", "a1 a2 a3");
    }

    #[test]
    fn a_peer_that_begins_to_ask_gets_the_next_permit() {
        check(1, "a1 a2 a3 a4 b1 -a5", "a1 b1");
        check(2, "a1 a2 a3 a4 b1 -a5 -a5", "a1 a2 b1 a3");
        check(2, "a1 a2 a3 a4 a5 -a5 -a5 -a5 b1 -a5", "a1 a2 a3 a4 a5 b1");
        // Three that begin go in the order in which they came.
        check(1, "a1 a2 c1 b1 d1 -a5 -c5 -b5 -d5", "a1 c1 b1 d1 a2");
    }

    #[test]
    fn waiting_peers_get_the_same_time() {
        // Pieces of `a` take 10 ns, and those of `b` 2: five of `b` for one of `a`.
        let events = "a1 a2 a3 b1 b2 b3 b4 b5 b6 b7 -a10 -b2 -b2 -b2 -b2 -b2 -a10 -b2";
        check(1, events, "a1 b1 b2 b3 b4 b5 a2 b6 b7");
    }

    #[test]
    fn of_two_with_the_same_service_the_one_with_fewer_permits_goes_first() {
        check(2, "c1 a1 a2 a3 b1 b2 -c0 -a0", "c1 a1 b1 a2");
        check(3, "c1 a1 a2 a3 b1 b2 -c0 -a0", "c1 a1 a2 b1 a3");
    }

    #[test]
    fn who_comes_back_is_owed_no_time() {
        // `b` was away while `a` used 20 ns. It goes first once, and then who had less.
        check(1, "b1 -b1 a1 a2 a3 a4 a5 -a10 -a10 b2 b3 b4 -a10 -b11 -a5", "b1 a1 a2 a3 b2 a4 b3");
        // `b` has a permit all the time, and asks for no other one while `a` uses 40 ns. Then each of them gets every other permit.
        check(
            2,
            "b1 a1 a2 a3 a4 a5 a6 a7 -a10 -a10 -a10 -a10 b2 b3 b4 -a10 -b10 -a10 -b10",
            "b1 a1 a2 a3 a4 a5 b2 a6 b3 a7",
        );
    }

    #[test]
    fn who_leaves_is_not_given_one() {
        check(1, "a1 a2 a3 !a2 -a5", "a1 a3");
        check(1, "a1 b1 a2 !b1 -a5", "a1 a2");
        check(1, "a1 b1 !b1 -a5", "a1");
        check(1, "a1 a2 b1 !a2 b2 -a5 -b5 -b5", "a1 b1 b2");
    }

    #[test]
    #[should_panic(expected = "a permit is given back once")]
    fn a_permit_that_nobody_has_is_not_given_back() {
        given(1, "-a1");
    }
}
