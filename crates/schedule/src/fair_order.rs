//! In which order do the waiting requests of several clients run?
//!
//! Peers take turns, and the flows of a peer take turns among each other (start-time fair queueing on two levels). When a request arrives, its peer
//! gets one turn, and so does its flow. In a turn of a peer, the flow with the first turn runs its next request. The requests of a flow run in the
//! order of arrival. So a connection that begins to send gets one of the next turns of its peer, and a peer gets no more turns by opening
//! connections.
//!
//! ```text
//!   turns of peers:        p at 4 │ q at 4 │ p at 5 │ p at 6 …     turns of one peer are as far apart as its requests are large
//!                            │                 │
//!   turns of p's flows:    a at 0            b at 1 │ a at 1 …     the first one is for the first turn of p
//! ```
//! A turn starts at the virtual time, or at the end of the last turn of the same peer or flow if that is later. When a turn is taken, the virtual
//! time moves to its end. So a peer or a flow without waiting requests needs no state, and clients with one request each are served in the order of
//! arrival. A newcomer waits for the turns of others that start at the virtual time or before it. Each of the others has at most two such turns if
//! all requests are of one size.
//!
//! Each operation takes time in the logarithm of the number of waiting requests.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use crate::event::{Client, Ticket};

/// Waiting requests in the order in which they run. A caller may look at the first requests without taking them. Those that it has looked at are the
/// prefix. Each prefix has a number.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairOrder {
    turns: Turns,
    peers: BTreeMap<u64, Peer>,
}

/// Where a waiting request is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    client: Client,
    number: u64,
}

#[derive(Clone, Debug, Default)]
struct Peer {
    own: OwnTurns,
    /// The turns of its flows.
    turns: Turns,
    flows: BTreeMap<u64, Flow>,
}

/// One connection.
#[derive(Clone, Debug, Default)]
struct Flow {
    own: OwnTurns,
    /// The ticket and the rows of each request, by the order of arrival.
    requests: BTreeMap<u64, (Ticket, u64)>,
    looked_at: LookedAt<u64>,
}

impl FairOrder {
    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Adds a request. `number` is its number in the order of arrival. Returns its place, and whether that changed the prefix.
    pub fn push(&mut self, client: Client, ticket: Ticket, number: u64, rows: u32, prefix: u64) -> (Place, bool) {
        let rows = u64::from(rows.max(1));
        let peer = self.peers.entry(client.peer).or_default();
        let flow = peer.flows.entry(client.flow).or_default();
        flow.requests.insert(number, (ticket, rows));
        let is_before_looked_at = flow.looked_at.last(prefix) > Some(number);
        let is_changed_by_peer = self.turns.add(client.peer, &mut peer.own, number, rows, prefix);
        let is_changed_by_flow = peer.turns.add(client.flow, &mut flow.own, number, rows, prefix);
        (Place { client, number }, is_before_looked_at || is_changed_by_peer || is_changed_by_flow)
    }

    /// Removes a request that does not run. Its peer and its flow lose their last turns, and the requests behind it move up. Returns whether that
    /// changed the prefix.
    pub fn remove(&mut self, place: Place, prefix: u64) -> bool {
        let Client { peer: peer_number, flow: flow_number } = place.client;
        let Some(peer) = self.peers.get_mut(&peer_number) else { return false };
        let Some(flow) = peer.flows.get_mut(&flow_number) else { return false };
        let Some((_, rows)) = flow.requests.remove(&place.number) else { return false };
        let is_changed = flow.looked_at.last(prefix) >= Some(place.number);
        self.turns.give_back(&mut peer.own, rows);
        peer.turns.give_back(&mut flow.own, rows);
        self.forget_if_idle(place.client);
        is_changed
    }

    /// Takes the first request, which runs now.
    pub fn take_first(&mut self) -> Option<Ticket> {
        let peer_number = self.turns.take_first()?;
        let peer = self.peers.get_mut(&peer_number)?;
        peer.own.tags.pop_front();
        let flow_number = peer.turns.take_first()?;
        let flow = peer.flows.get_mut(&flow_number)?;
        flow.own.tags.pop_front();
        let (_, (ticket, _)) = flow.requests.pop_first()?;
        self.forget_if_idle(Client { peer: peer_number, flow: flow_number });
        Some(ticket)
    }

    /// The first request behind the prefix with this number.
    pub fn next(&self, prefix: u64) -> Option<Ticket> {
        let (_, peer) = self.turns.behind(prefix)?;
        let peer = self.peers.get(&peer)?;
        let (_, flow) = peer.turns.behind(prefix)?;
        let (_, (ticket, _)) = peer.flows.get(&flow)?.behind(prefix)?;
        Some(ticket)
    }

    /// Adds [`FairOrder::next`] to the prefix.
    pub fn advance(&mut self, prefix: u64) {
        let Some(peer) = self.turns.look(prefix).and_then(|peer| self.peers.get_mut(&peer)) else { return };
        let Some(flow) = peer.turns.look(prefix).and_then(|flow| peer.flows.get_mut(&flow)) else { return };
        if let Some((number, _)) = flow.behind(prefix) {
            flow.looked_at = LookedAt { prefix, last: Some(number) };
        }
    }

    fn forget_if_idle(&mut self, client: Client) {
        let Some(peer) = self.peers.get_mut(&client.peer) else { return };
        if peer.flows.get(&client.flow).is_some_and(|flow| flow.requests.is_empty()) {
            peer.flows.remove(&client.flow);
        }
        if peer.flows.is_empty() {
            self.peers.remove(&client.peer);
        }
        if self.peers.is_empty() {
            self.turns = Turns::default();
        }
    }
}

impl Flow {
    fn behind(&self, prefix: u64) -> Option<(u64, (Ticket, u64))> {
        first_behind(&self.requests, self.looked_at.last(prefix))
    }
}

/// The turns of all peers, or of all flows of one.
#[derive(Clone, Debug, Default)]
struct Turns {
    order: BTreeMap<Tag, Turn>,
    /// The latest end of a turn that was taken.
    virtual_time: u64,
    looked_at: LookedAt<Tag>,
}

/// The position of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tag {
    start: u64,
    /// The order of arrival.
    number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    /// The number of the peer or the flow.
    whose: u64,
    rows: u64,
}

/// The turns of one peer or flow: one for each of its requests.
#[derive(Clone, Debug, Default)]
struct OwnTurns {
    tags: VecDeque<Tag>,
    /// The earliest start of the next one.
    end: u64,
}

impl Turns {
    /// Adds a turn behind the others of the same peer or flow. Returns whether that changed the prefix.
    fn add(&mut self, whose: u64, own: &mut OwnTurns, number: u64, rows: u64, prefix: u64) -> bool {
        let tag = Tag { start: self.virtual_time.max(own.end), number };
        own.end = tag.start.saturating_add(rows);
        own.tags.push_back(tag);
        self.order.insert(tag, Turn { whose, rows });
        self.looked_at.last(prefix) > Some(tag)
    }

    /// Removes the last turn of a peer or flow, because a request with that many rows was removed.
    fn give_back(&mut self, own: &mut OwnTurns, rows: u64) {
        let Some(last) = own.tags.pop_back() else { return };
        let Some(turn) = self.order.remove(&last) else { return };
        // If a large request got the turn and a small one was removed, the large one still waits. The next turn pays for the difference.
        own.end = last.start.saturating_add(turn.rows.saturating_sub(rows));
    }

    /// Takes the first turn. Returns the number of its peer or flow.
    fn take_first(&mut self) -> Option<u64> {
        let (tag, turn) = self.order.pop_first()?;
        self.virtual_time = self.virtual_time.max(tag.start.saturating_add(turn.rows));
        Some(turn.whose)
    }

    /// The turn behind the prefix, and the number of its peer or flow.
    fn behind(&self, prefix: u64) -> Option<(Tag, u64)> {
        let (tag, turn) = first_behind(&self.order, self.looked_at.last(prefix))?;
        Some((tag, turn.whose))
    }

    /// Adds [`Turns::behind`] to the prefix. Returns the number of its peer or flow.
    fn look(&mut self, prefix: u64) -> Option<u64> {
        let (tag, whose) = self.behind(prefix)?;
        self.looked_at = LookedAt { prefix, last: Some(tag) };
        Some(whose)
    }
}

/// The last key in the prefix with this number. It is ignored once another prefix has begun.
#[derive(Clone, Copy, Debug)]
struct LookedAt<K> {
    prefix: u64,
    last: Option<K>,
}

impl<K> Default for LookedAt<K> {
    fn default() -> LookedAt<K> {
        LookedAt { prefix: 0, last: None }
    }
}

impl<K: Copy> LookedAt<K> {
    fn last(&self, prefix: u64) -> Option<K> {
        self.last.filter(|_| self.prefix == prefix)
    }
}

fn first_behind<K: Copy + Ord, T: Copy>(all: &BTreeMap<K, T>, last: Option<K>) -> Option<(K, T)> {
    let from = last.map_or(Unbounded, Excluded);
    all.range((from, Unbounded)).next().map(|(key, of)| (*key, *of))
}

#[cfg(test)]
mod tests;
