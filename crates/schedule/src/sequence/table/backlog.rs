//! Which waiting sequence gets the next free slot?
//!
//! It is one of the peer that has the fewest slots. Among peers that have equally many, it is one of the peer that has waited longest: since its last
//! sequence got a slot from the backlog, or since it began to wait if that was later. The connections of a peer share what it gets by the same rule.
//! The sequences of one connection get slots in the order in which they started.
//!
//! ```text
//!   slots:  p p p p q      backlog:  p p p p … │ q │ r      r gets the first slot that p leaves, and q the second
//! ```
//! So each other peer gets at most one slot before a newcomer, however many sequences it has in the backlog, and none if it has more slots than the
//! newcomer. No state is kept of a peer that has no slot and does not wait. Each operation takes time in the logarithm of the number of waiting
//! sequences and of peers.

use std::collections::{BTreeMap, BTreeSet};

use super::SequenceNumber;
use crate::event::Client;

/// Sequences that wait for a slot, and the number of slots of each client.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// The sequences, by client and place.
    waiting: BTreeMap<(Client, SequenceNumber), SequenceNumber>,
    peers: Shares,
    /// The connections of each peer.
    flows: BTreeMap<u64, Shares>,
    /// Counts the sequences that began to wait or got a slot from the backlog.
    time: u64,
}

impl Backlog {
    /// Whether no sequence waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The sequences that wait.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceNumber> + '_ {
        self.waiting.values().copied()
    }

    /// Adds a sequence. Among those of one client, the one with the smallest place is first.
    pub fn add(&mut self, client: Client, place: SequenceNumber, sequence: SequenceNumber) {
        self.time += 1;
        let now = self.time;
        self.waiting.insert((client, place), sequence);
        self.change(client, |share| {
            if share.waiting == 0 {
                share.since = now;
            }
            share.waiting += 1;
        });
    }

    /// Removes a sequence, if it waits at that place. `behind` is the sequence that follows it and waits there instead.
    pub fn remove(
        &mut self,
        client: Client,
        place: SequenceNumber,
        sequence: SequenceNumber,
        behind: Option<(Client, SequenceNumber)>,
    ) {
        if self.waiting.get(&(client, place)) != Some(&sequence) {
            return;
        }
        match behind {
            // It is of the same client, which keeps the time since when it waits.
            Some((own, behind)) if own == client => {
                self.waiting.insert((client, place), behind);
            }
            _ => {
                self.waiting.remove(&(client, place));
                self.change(client, |share| share.waiting -= 1);
                if let Some((client, behind)) = behind {
                    self.add(client, place, behind);
                }
            }
        }
    }

    /// Removes the next sequence, which gets a slot.
    pub fn take_first(&mut self) -> Option<SequenceNumber> {
        let peer = self.peers.first()?;
        let flow = self.flows.get(&peer)?.first()?;
        let client = Client { peer, flow };
        let ((_, place), sequence) = self.waiting.range((client, SequenceNumber(0))..).next()?;
        let (place, sequence) = (*place, *sequence);
        self.waiting.remove(&(client, place));
        self.time += 1;
        let now = self.time;
        self.change(client, |share| *share = Share { slots: share.slots + 1, waiting: share.waiting - 1, since: now });
        Some(sequence)
    }

    /// Call this when a sequence of that client got a slot in another way than by [`Backlog::take_first`].
    pub fn took_slot(&mut self, client: Client) {
        self.change(client, |share| share.slots += 1);
    }

    /// Call this when a sequence of that client left its slot.
    pub fn left_slot(&mut self, client: Client) {
        self.change(client, |share| share.slots -= 1);
    }

    /// Whether a free slot goes to another peer, although a sequence of `peer` follows the one that left the slot.
    pub fn is_before(&self, peer: u64) -> bool {
        let slots = self.peers.all.get(&peer).map_or(0, |share| share.slots);
        let mut others = self.peers.order.iter().filter(|(.., whose)| *whose != peer);
        others.next().is_some_and(|(fewest, ..)| *fewest <= slots)
    }

    fn change(&mut self, client: Client, change: impl Fn(&mut Share)) {
        self.peers.change(client.peer, &change);
        let flows = self.flows.entry(client.peer).or_default();
        flows.change(client.flow, &change);
        if flows.all.is_empty() {
            self.flows.remove(&client.peer);
        }
    }
}

/// The shares of all peers, or of all connections of one peer.
#[derive(Debug, Default)]
struct Shares {
    all: BTreeMap<u64, Share>,
    /// The peers or connections with waiting sequences: how many slots each has, since when it waits, and its number.
    order: BTreeSet<(usize, u64, u64)>,
}

/// How many slots and waiting sequences a peer or a connection has.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    slots: usize,
    waiting: usize,
    since: u64,
}

impl Shares {
    fn change(&mut self, whose: u64, change: impl Fn(&mut Share)) {
        let share = self.all.entry(whose).or_default();
        self.order.remove(&(share.slots, share.since, whose));
        change(share);
        if share.waiting > 0 {
            self.order.insert((share.slots, share.since, whose));
        } else if share.slots == 0 {
            self.all.remove(&whose);
        }
    }

    /// The peer or connection that gets the next slot.
    fn first(&self) -> Option<u64> {
        self.order.first().map(|(.., whose)| *whose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each step is a word: `a1` a sequence of peer `a` over its connection 1 waits, `=a1` one has a slot already, `-a1` one leaves its slot, `!` the
    /// next one gets a slot. Checks who got slots.
    #[track_caller]
    fn check(steps: &str, expect: &str) {
        let (mut backlog, mut sequences, mut got) = (Backlog::default(), Vec::new(), Vec::new());
        let client = |word: &str| {
            let (peer, flow) = (word.chars().next().expect("a peer"), word[1..].parse().expect("a connection"));
            Client { peer: peer as u64, flow }
        };
        for step in steps.split(' ') {
            if let Some(whose) = step.strip_prefix('=') {
                backlog.took_slot(client(whose));
            } else if let Some(whose) = step.strip_prefix('-') {
                backlog.left_slot(client(whose));
            } else if step == "!" {
                let next = backlog.take_first().map_or("none", |SequenceNumber(number)| sequences[number as usize]);
                got.push(next);
            } else {
                let number = SequenceNumber(sequences.len() as u64);
                sequences.push(step);
                backlog.add(client(step), number, number);
            }
        }
        assert_eq!(got.join(" "), expect, "{steps}");
    }

    #[test]
    fn one_connection_alone_is_served_in_order() {
        check("a1 a1 ! a1 ! ! !", "a1 a1 a1 none");
        let mut backlog = Backlog::default();
        let client = Client { peer: 7, flow: 1 };
        (0..9).for_each(|number| backlog.add(client, SequenceNumber(number), SequenceNumber(number)));
        assert!((0..9).all(|number| backlog.take_first() == Some(SequenceNumber(number))));
        (0..9).for_each(|_| backlog.left_slot(client));
        assert!(backlog.peers.all.is_empty() && backlog.flows.is_empty() && backlog.is_empty());
    }

    #[test]
    fn the_peer_with_the_fewest_slots_is_next() {
        check("=a1 =a1 a1 a1 b1 ! !", "b1 a1");
        check("=a1 =b1 =b1 b1 b1 a1 a1 ! ! ! !", "a1 b1 a1 b1");
        check("=a1 =b1 b1 a1 -a1 !", "a1");
    }

    #[test]
    fn peers_with_equally_many_slots_take_turns() {
        check("a1 a1 a1 ! -a1 b1 b1 ! -a1 ! -b1 ! -a1 !", "a1 a1 b1 a1 b1");
        check("a1 a1 a1 b1 b1 c1 ! -a1 ! -b1 ! -c1 ! -a1 !", "a1 b1 c1 a1 b1");
    }

    #[test]
    fn a_peer_that_comes_again_and_again_is_not_before_one_that_waits() {
        check("a1 a1 a1 b1 ! -a1 ! -b1 b1 ! -a1 ! -b1 b1 !", "a1 b1 a1 b1 a1");
    }

    #[test]
    fn the_connections_of_a_peer_share_what_it_gets() {
        check("=a1 a1 a1 a2 ! ! !", "a2 a1 a1");
        check("a1 a1 a1 a2 b1 ! -a1 ! -b1 ! -a2 !", "a1 b1 a2 a1");
    }
}
