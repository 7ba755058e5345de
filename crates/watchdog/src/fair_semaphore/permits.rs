//! Which waiter gets the next permit?
//!
//! A peer's service is the time for which it had permits. The peer with the least service goes first. Among equals, the peer that holds fewer permits
//! goes first, and then the one whose waiter came first. Within a peer, [`Flows`] orders the waiters, so one connection's backlog delays no other one.
//!
//! A peer is known as long as it waits for a permit or has one. One that begins to wait counts as having had at least as much service as the peer that
//! was given a permit last (start-time fair queueing). So it goes before the peers that used permits since, and gets no credit for time that it did
//! not ask for.
//!
//! A peer may have a limited number of permits at a time. Once it has that many, it waits even while permits are free.

mod flows;

use std::collections::{BTreeMap, HashMap};

use flows::Flows;

/// To whom a waiter belongs: the numbers of a peer and of one of its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) peer: u64,
    pub(super) flow: u64,
}

/// The number of a waiter, in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ArrivalNumber(u64);

/// The permits, and who waits for one. `W` is what wakes a waiter. While a permit is free, only peers wait that have as many as they may.
#[derive(Debug)]
pub(super) struct Permits<W> {
    free: usize,
    /// The most permits that one peer may have at a time.
    each_max: usize,
    peers: HashMap<u64, Peer<W>>,
    /// The peers that wait and may have a permit, in the order in which they are served.
    order: BTreeMap<Rank, u64>,
    /// The service of the peer that was given a permit last.
    virtual_time_ns: u64,
    arrivals: u64,
}

#[derive(Debug)]
struct Peer<W> {
    served_ns: u64,
    holds: usize,
    flows: Flows<W>,
}

/// The lowest goes first. No two peers have the same, and no two flows, because no two waiters have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    served_ns: u64,
    holds: usize,
    first: ArrivalNumber,
}

impl<W> Permits<W> {
    pub(super) fn new(free: usize, each_max: usize) -> Permits<W> {
        Permits { free, each_max, peers: HashMap::new(), order: BTreeMap::new(), virtual_time_ns: 0, arrivals: 0 }
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// Takes a permit for this flow, if one is free and its peer may have it.
    pub(super) fn take(&mut self, of: Of) -> bool {
        if self.free == 0 || self.has_all(of.peer) {
            return false;
        }
        self.free -= 1;
        let now_ns = self.virtual_time_ns;
        self.grant(of.peer, |peer| {
            peer.begin_to_wait(now_ns);
            peer.flows.take(of.flow);
        });
        true
    }

    /// Adds a waiter of this flow.
    pub(super) fn wait(&mut self, of: Of, waiter: W) -> ArrivalNumber {
        assert!(self.free == 0 || self.has_all(of.peer), "nobody waits for a permit that is free");
        self.arrivals += 1;
        let arrival = ArrivalNumber(self.arrivals);
        let now_ns = self.virtual_time_ns;
        self.change(of.peer, |peer| {
            peer.begin_to_wait(now_ns);
            peer.flows.wait(of.flow, arrival, waiter);
        });
        arrival
    }

    /// The waiter of this arrival. `None` once it was given a permit.
    pub(super) fn waiter(&mut self, of: Of, arrival: ArrivalNumber) -> Option<&mut W> {
        self.peers.get_mut(&of.peer)?.flows.waiter(of.flow, arrival)
    }

    /// Removes the waiter of this arrival. `None` if it was given a permit already.
    pub(super) fn leave(&mut self, of: Of, arrival: ArrivalNumber) -> Option<W> {
        self.change(of.peer, |peer| peer.flows.leave(of.flow, arrival))
    }

    /// Takes a permit back from this flow, which used it for that time, and gives it to the next waiter. The caller wakes that one.
    pub(super) fn give_back(&mut self, of: Of, spent_ns: u64) -> Option<W> {
        self.change(of.peer, |peer| {
            peer.flows.give_back(of.flow, spent_ns);
            peer.holds -= 1;
            peer.served_ns = peer.served_ns.saturating_add(spent_ns);
        });
        let Some(next) = self.order.first_key_value().map(|(_, next)| *next) else {
            self.free += 1;
            return None;
        };
        self.grant(next, |peer| peer.flows.give_next())
    }

    /// Whether the peer has as many permits as it may.
    fn has_all(&self, peer: u64) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.holds >= self.each_max)
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
        let new = || Peer { served_ns: self.virtual_time_ns, holds: 0, flows: Flows::new() };
        let peer = self.peers.entry(number).or_insert_with(new);
        if let Some(rank) = peer.rank(self.each_max) {
            self.order.remove(&rank);
        }
        let changed = change(peer);
        match peer.rank(self.each_max) {
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
        if self.flows.first().is_none() {
            self.served_ns = self.served_ns.max(virtual_time_ns);
        }
    }

    /// `None` if it does not wait, or may not have another permit.
    fn rank(&self, each_max: usize) -> Option<Rank> {
        if self.holds >= each_max {
            return None;
        }
        Some(Rank { served_ns: self.served_ns, holds: self.holds, first: self.flows.first()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies events to `permits` permits, and returns who was given one, in order. The events:
    /// `a1` peer `a` asks, for waiter 1; `-a5` peer `a` gives a permit back after 5 ns; `!a1` waiter 1 of peer `a` leaves. `ax1` is of flow `x` of peer `a`.
    fn given((permits, each_max): (usize, usize), events: &str) -> String {
        let mut permits = Permits::new(permits, each_max);
        let (mut given, mut arrivals) = (Vec::new(), HashMap::new());
        for event in events.split_whitespace() {
            let (sign, who) = match event.split_at(1) {
                ("-", who) => (Some('-'), who),
                ("!", who) => (Some('!'), who),
                _ => (None, event),
            };
            let (letters, number) = who.split_at(who.find(|c: char| c.is_ascii_digit()).expect("a number"));
            let letter = |at: usize| letters.as_bytes().get(at).map_or(0, |letter| u64::from(*letter));
            let (of, number) = (Of { peer: letter(0), flow: letter(1) }, number.parse().expect("a number"));
            match sign {
                Some('-') => given.extend(permits.give_back(of, number)),
                Some(_) => {
                    let left = permits.leave(of, arrivals[who]);
                    assert_eq!(left.as_deref(), Some(who), "it had not been given one");
                }
                None if permits.take(of) => given.push(who.to_owned()),
                None => drop(arrivals.insert(who.to_owned(), permits.wait(of, who.to_owned()))),
            }
        }
        let (waiting, holding) = permits.peers.values().fold((0, 0), |(w, h), p| (w + p.flows.waiting(), h + p.holds));
        let may_have_more =
            permits.peers.values().filter(|peer| peer.holds < each_max && peer.flows.waiting() > 0).count();
        assert!(permits.free == 0 || may_have_more == 0);
        assert_eq!((permits.peers.is_empty(), permits.order.len()), (waiting + holding == 0, may_have_more));
        given.join(" ")
    }

    #[track_caller]
    fn check(permits: usize, events: &str, expect: &str) {
        assert_eq!(given((permits, permits), events), expect, "{permits} permits, {events}");
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
    fn a_connection_with_a_backlog_delays_no_other_one_of_its_peer() {
        // A flow that begins to ask gets the next permit of its peer.
        check(1, "ax1 ax2 ax3 ay4 -ax5 -ay5 -ax5", "ax1 ay4 ax2 ax3");
        check(2, "ax1 ax2 ax3 ax4 ay5 -ax5 -ax5", "ax1 ax2 ay5 ax3");
        // Pieces of `x` take 10 ns, and those of `y` 4: three of `y` for one of `x`.
        check(1, "ax1 ax2 ax3 ay4 ay5 ay6 ay7 -ax10 -ay4 -ay4 -ay4 -ax10 -ay4", "ax1 ay4 ay5 ay6 ax2 ay7 ax3");
        // A flow that did not wait while `x` used 20 ns goes first once.
        check(1, "ay1 -ay1 ax1 ax2 ax3 ax4 -ax10 -ax10 ay2 ay3 -ax10 -ay11 -ax5", "ay1 ax1 ax2 ax3 ay2 ax4 ay3");
        check(1, "ax1 ax2 ay3 ay4 !ay3 !ax2 -ax5", "ax1 ay4");
    }

    #[test]
    fn a_peer_gains_nothing_by_many_connections() {
        check(1, "ax1 ay2 az3 av4 b1 b2 -ax10 -b10 -ay10 -b10 -az10", "ax1 b1 ay2 b2 az3 av4");
        let check = |events, expect: &str| assert_eq!(given((2, 1), events), expect, "{events}");
        check("ax1 ay2 az3 b1 -ax5 -ay5", "ax1 b1 ay2 az3");
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
        // `b` did not wait while `a` used 20 ns. It goes first once, and then the peer with less service.
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
    fn a_peer_that_has_as_many_as_it_may_leaves_the_others_free() {
        let check = |events, expect: &str| assert_eq!(given((2, 1), events), expect, "{events}");
        check("a1 a2 b1", "a1 b1");
        check("a1 a2 a3 -a5 -a5", "a1 a2 a3");
        check("a1 b1 a2 b2 c1 -a5", "a1 b1 c1");
        check("a1 a2 b1 -b5 b2 -a5", "a1 b1 b2 a2");
        check("a1 a2 !a2 b1 -a5", "a1 b1");
    }

    #[test]
    #[should_panic(expected = "a permit is given back once")]
    fn a_permit_that_nobody_has_is_not_given_back() {
        given((1, 1), "-a1");
    }
}
