//! Which connections may read, and which one has to end?
//!
//! Pure functions over the numbers of one moment.

use std::collections::{BinaryHeap, HashMap};
use std::fmt;

use crate::limits::{ALL_SHARE, LIGHT_BYTES_MAX, LIGHT_RETAINED_SHARE, LOW_SHARE, OTHERS_PART, RETAINED_SHARE};

/// The two marks of a budget, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Above it, the server stops reading from holders of more than their share.
    pub low: u64,
    /// Above it, the largest connection is ended.
    pub high: u64,
}

impl Marks {
    /// The marks of a budget of this size.
    pub fn of(bytes: u64) -> Marks {
        Marks { low: part(bytes, LOW_SHARE), high: bytes }
    }

    /// How many bytes of the budget may be retained beyond connections.
    pub fn retained_max(self) -> u64 {
        part(self.high, RETAINED_SHARE)
    }

    /// The same in a budget of all, for a peer that retains `retained` of it.
    pub(crate) fn retained_max_beside(self, retained: u64) -> u64 {
        if retained > LIGHT_BYTES_MAX { self.retained_max() } else { part(self.high, LIGHT_RETAINED_SHARE) }
    }

    /// A budget that is never exceeded.
    pub const NONE: Marks = Marks { low: u64::MAX, high: u64::MAX };
}

/// The budgets of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The budget of all clients together: `--memory-budget`.
    pub all: Marks,
    /// The budget of one peer: `--memory-budget-per-peer`.
    pub peer: Marks,
    /// The budget of one connection: `--memory-budget-per-connection`.
    pub connection: Marks,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::NONE
    }
}

impl Limits {
    /// No budgets.
    pub const NONE: Limits = Limits { all: Marks::NONE, peer: Marks::NONE, connection: Marks::NONE };

    /// The budgets of a server with `memory` bytes. `None` is a default: a single peer may use everything that is not reserved for others, even
    /// with one connection. A peer's budget is at most that of all, and a connection's at most that of its peer.
    pub fn new(memory: u64, all: Option<u64>, peer: Option<u64>, connection: Option<u64>) -> Limits {
        let all = all.unwrap_or(part(memory, ALL_SHARE)).max(1);
        let peer = peer.unwrap_or(all - all / OTHERS_PART).clamp(1, all);
        let connection = connection.unwrap_or(peer).clamp(1, peer);
        Limits { all: Marks::of(all), peer: Marks::of(peer), connection: Marks::of(connection) }
    }

    /// How many bytes one peer may keep beyond its connections. It leaves a part to others, whatever its own budget is.
    pub(crate) fn retained_max_of_peer(&self) -> u64 {
        let all = self.all.retained_max();
        self.peer.retained_max().min(all - all / OTHERS_PART)
    }
}

fn part(bytes: u64, (of, whole): (u64, u64)) -> u64 {
    bytes / whole * of + bytes % whole * of / whole
}

/// Whether a holder of `held` bytes must stop reading: the budget is above its low mark, and the holder has more than an equal share among the
/// `heavy` holders. A light holder never has to stop.
pub fn is_stopped(marks: Marks, used: u64, held: u64, heavy: u64) -> bool {
    used > marks.low && held > LIGHT_BYTES_MAX.min(marks.low) && held > marks.low / heavy.max(1)
}

/// Why a connection was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShedReason {
    /// It held more than one connection may.
    Connection,
    /// Its peer held more than one peer may.
    Peer,
    /// All clients held more than they may.
    All,
    /// No budget changed: bodies that had to wait were waiting for each other.
    Stalled,
}

impl ShedReason {
    /// All of them, in the order of metrics.
    pub const ALL: [ShedReason; 4] = [ShedReason::Connection, ShedReason::Peer, ShedReason::All, ShedReason::Stalled];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ShedReason::Connection => "connection",
            ShedReason::Peer => "peer",
            ShedReason::All => "all",
            ShedReason::Stalled => "stalled",
        }
    }
}

/// Why a connection was ended, as its client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shed {
    /// Which budget was exceeded.
    pub reason: ShedReason,
    /// The client.
    pub peer: String,
    /// Bytes that count against the budget.
    pub used: u64,
    /// Bytes of the budget.
    pub max: u64,
    /// Bytes of the connection that is ended.
    pub held: u64,
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shed { peer, used, max, held, .. } = self;
        match self.reason {
            ShedReason::Connection => write!(
                f,
                "memory budget of a connection: this one of {peer} holds {held} of {max} bytes (--memory-budget-per-connection)"
            )?,
            ShedReason::Peer => write!(
                f,
                "memory budget of a client: {peer} holds {used} of {max} bytes (--memory-budget-per-peer), {held} of them over this connection"
            )?,
            ShedReason::All => write!(
                f,
                "memory budget of all clients: they hold {used} of {max} bytes (--memory-budget), {held} of them {peer} over this connection"
            )?,
            ShedReason::Stalled => write!(
                f,
                "memory budget: {used} of {max} bytes are held and nothing was completed for a while, {held} of them {peer} holds over this connection"
            )?,
        }
        f.write_str("; read answers as they come, send less at once, or send tensors through shared memory")
    }
}

/// The error for a message that could not be held even if all other memory were released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Bytes of the message.
    pub bytes: u64,
    /// Bytes of the budget.
    pub max: u64,
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverBudget { bytes, max } = self;
        write!(
            f,
            "memory budget of a connection: a message of {bytes} bytes is announced, of {max} that a connection may hold \
             (--memory-budget-per-connection); send less at once, or send tensors through shared memory"
        )
    }
}

/// The error for a client that would make the server keep too much beyond its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverShare {
    /// Whether all clients together keep too much. Otherwise this client does.
    pub of_all: bool,
    /// The client.
    pub peer: String,
    /// Bytes that were to be retained.
    pub bytes: u64,
    /// Bytes that are retained.
    pub retained: u64,
    /// Bytes that may be retained.
    pub max: u64,
}

impl fmt::Display for OverShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverShare { of_all, peer, bytes, retained, max } = self;
        let (whose, part) = match of_all {
            true => ("all clients: they keep", "half of --memory-budget, 5/8 for one that keeps little"),
            false => {
                ("a client: what it keeps is", "half of --memory-budget-per-peer, 7/16 of --memory-budget at the most")
            }
        };
        write!(
            f,
            "memory budget of {whose} {retained} of {max} bytes beyond requests ({part}), and {peer} asked for {bytes} \
             more; end sequences, unregister regions, or unload models that were sent"
        )
    }
}

/// A connection that may be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub id: u64,
    /// Its peer's number.
    pub peer: u64,
    /// Bytes it holds.
    pub held: u64,
}

/// Connections in the order in which they are ended: each is the largest one of the peer whose connections hold the most.
#[derive(Debug)]
pub struct LargestFirst {
    /// Bytes of the connections of each peer, and the peer.
    peers: BinaryHeap<(u64, u64)>,
    /// The connections of each peer. The largest one is the last one, and of equal ones the newest.
    connections: HashMap<u64, Vec<Holder>>,
}

impl LargestFirst {
    /// The order of these connections. What they hold is taken once.
    pub fn of(holders: impl IntoIterator<Item = Holder>) -> LargestFirst {
        let mut connections = HashMap::<u64, Vec<Holder>>::new();
        for holder in holders {
            connections.entry(holder.peer).or_default().push(holder);
        }
        let mut peers = BinaryHeap::with_capacity(connections.len());
        for (peer, of_peer) in &mut connections {
            of_peer.sort_by_key(|holder| (holder.held, holder.id));
            peers.push((of_peer.iter().map(|holder| holder.held).sum(), *peer));
        }
        LargestFirst { peers, connections }
    }
}

impl Iterator for LargestFirst {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            let (bytes, peer) = self.peers.pop()?;
            let Some(largest) = self.connections.get_mut(&peer).and_then(Vec::pop) else { continue };
            self.peers.push((bytes.saturating_sub(largest.held), peer));
            return Some(largest.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[track_caller]
    fn check_limits(memory: u64, requested: [Option<u64>; 3], high: [u64; 3]) {
        let limits = Limits::new(memory, requested[0], requested[1], requested[2]);
        assert_eq!([limits.all.high, limits.peer.high, limits.connection.high], high);
    }

    #[test]
    fn no_budget_is_larger_than_the_one_that_contains_it() {
        check_limits(3200, [None; 3], [1600, 1400, 1400]);
        check_limits(3200, [Some(800), None, None], [800, 700, 700]);
        check_limits(3200, [Some(800), Some(900), Some(50)], [800, 800, 50]);
        check_limits(3200, [None, Some(100), Some(500)], [1600, 100, 100]);
        check_limits(0, [None; 3], [1, 1, 1]);
        assert_eq!(Marks::of(u64::MAX - 3).low, u64::MAX / 4 * 3);
        assert_eq!(Marks::of(100), Marks { low: 75, high: 100 });
    }

    #[track_caller]
    fn check_stop(used_mib: u64, held_mib: u64, heavy: u64, stopped: bool) {
        assert_eq!(is_stopped(Marks::of(100 * MIB), used_mib * MIB, held_mib * MIB, heavy), stopped);
    }

    #[test]
    fn above_the_low_mark_holders_of_more_than_their_share_stop() {
        check_stop(75, 75, 1, false);
        check_stop(76, 76, 1, true);
        // Between 75 and 100, holders of less may read.
        check_stop(90, 70, 1, false);
        check_stop(90, 30, 3, true);
        check_stop(90, 25, 3, false);
        check_stop(90, 0, 1000, false);
        check_stop(90, 1, 1000, true);
        assert!(is_stopped(Marks::of(1000), 900, 800, 1));
        assert!(!is_stopped(Marks::of(1000), 900, 700, 1));
        assert!(!is_stopped(Marks::NONE, u64::MAX, u64::MAX, 1));
    }

    #[track_caller]
    fn check_order(holders: &[(u64, u64, u64)], expect: &[u64]) {
        let order = LargestFirst::of(holders.iter().map(|&(id, peer, held)| Holder { id, peer, held }));
        assert_eq!(order.collect::<Vec<_>>(), expect, "{holders:?}");
    }

    #[test]
    fn the_largest_connection_of_the_largest_peer_is_ended_first() {
        check_order(&[(1, 1, 51)], &[1]);
        // One peer's connections together hold more than the other's largest one.
        check_order(&[(1, 1, 30), (2, 2, 20), (3, 2, 25)], &[3, 1, 2]);
        check_order(&[(2, 1, 31), (3, 2, 20)], &[2, 3]);
        // The request of the older one may be finished already.
        check_order(&[(3, 1, 20), (1, 1, 20), (2, 1, 20)], &[3, 2, 1]);
        check_order(&[(1, 1, 5), (2, 1, 40), (3, 2, 10), (4, 2, 20), (5, 3, 0)], &[2, 4, 3, 1, 5]);
        check_order(&[], &[]);
    }

    #[test]
    fn a_client_is_told_the_numbers_and_the_cure() {
        let shed = |reason| Shed { reason, peer: "user 7".into(), used: 90, max: 80, held: 50 }.to_string();
        let cure = "; read answers as they come, send less at once, or send tensors through shared memory";
        assert_eq!(
            shed(ShedReason::Peer),
            format!(
                "memory budget of a client: user 7 holds 90 of 80 bytes (--memory-budget-per-peer), 50 of them over this connection{cure}"
            )
        );
        assert!(ShedReason::ALL.iter().all(|reason| shed(*reason).ends_with(cure)));
        let over = |of_all| OverShare { of_all, peer: "user 7".into(), bytes: 30, retained: 20, max: 40 }.to_string();
        let rest = "and user 7 asked for 30 more; end sequences, unregister regions, or unload models that were sent";
        assert_eq!(
            over(false),
            format!(
                "memory budget of a client: what it keeps is 20 of 40 bytes beyond requests (half of --memory-budget-per-peer, 7/16 of --memory-budget at the most), {rest}"
            )
        );
        assert_eq!(
            over(true),
            format!(
                "memory budget of all clients: they keep 20 of 40 bytes beyond requests (half of --memory-budget, 5/8 for one that keeps little), {rest}"
            )
        );
        assert_eq!(
            OverBudget { bytes: 90, max: 80 }.to_string(),
            "memory budget of a connection: a message of 90 bytes is announced, of 80 that a connection may hold \
             (--memory-budget-per-connection); send less at once, or send tensors through shared memory"
        );
    }
}
