//! Which connection is evicted when a new one exceeds a limit?
//!
//! The connections of a peer are in a queue. A search for an idle one begins at its front and moves each connection that is in use to its end
//! (the CLOCK algorithm). So the connections that have not been used for the longest time are at the front.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nerite_request::Peer;

use super::OpenConnection;
use super::admit::{AdmissionRefused, ConnectionLimits, OpenCounts, admit};
use crate::limits::{CHECKS_PER_PEER_MAX, PEERS_CHECKED_MAX};

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Table {
    queues: HashMap<Peer, BTreeMap<u64, Entry>>,
    /// The peers by the number of their connections.
    by_size: BTreeSet<(usize, Peer)>,
    all: usize,
    operators: usize,
    /// Evicted connections that are still open, without those whose sockets are being closed aside.
    closing: usize,
    /// Evicted connections that are still open, by peer.
    closing_by: HashMap<Peer, EvictedCounts>,
    /// Evicted connections whose sockets are being closed aside.
    closing_aside: usize,
    last: u64,
}

/// Evicted connections of one peer that are still open.
#[derive(Debug, Default)]
struct EvictedCounts {
    all: usize,
    /// Those whose sockets are being closed aside.
    aside: usize,
}

#[derive(Debug)]
struct Entry {
    connection: Arc<OpenConnection>,
    /// The number of its requests at the last check.
    requests: u32,
}

impl Table {
    /// Adds a connection of `owner`. Also returns the connection that was evicted for it, if any.
    pub(super) fn admit(
        &mut self,
        limits: &ConnectionLimits,
        owner: Peer,
    ) -> Result<(Arc<OpenConnection>, Option<Arc<OpenConnection>>), AdmissionRefused> {
        let own = self.queues.get(&owner).map_or(0, BTreeMap::len);
        let open = OpenCounts { all: self.all, operators: self.operators, own };
        let evicted = match admit(limits, open, &owner) {
            Ok(()) => None,
            Err(refused) => Some(self.evict(limits, open, &owner, refused)?),
        };
        Ok((self.insert(owner), evicted))
    }

    /// Number of connections, and of peers that have them.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.all, self.queues.len())
    }

    /// Evicted connections that are still open.
    pub(super) fn closing(&self) -> usize {
        self.closing
    }

    /// Call this when a connection has ended.
    pub(super) fn release(&mut self, connection: &OpenConnection) {
        if !connection.is_evicted.load(Ordering::Relaxed) {
            return self.remove(connection);
        }
        let is_aside = connection.is_closed_aside.load(Ordering::Relaxed);
        if is_aside {
            self.closing_aside -= 1;
        } else {
            self.closing -= 1;
        }
        if let Some(left) = self.closing_by.get_mut(&connection.owner) {
            left.all -= 1;
            left.aside -= usize::from(is_aside);
            if left.all == 0 {
                self.closing_by.remove(&connection.owner);
            }
        }
    }

    /// Call this when the socket of a connection is passed to another thread to be closed, which may take long. The connection counts as open until it is
    /// released, and cannot be evicted. If it was evicted before, the threads that accept no longer wait for its end.
    pub(super) fn close_aside(&mut self, connection: &OpenConnection) {
        if connection.is_closed_aside.swap(true, Ordering::Relaxed) || !connection.is_evicted.load(Ordering::Relaxed) {
            return;
        }
        self.closing -= 1;
        self.closing_aside += 1;
        self.closing_by.entry(connection.owner.clone()).or_default().aside += 1;
    }

    /// Removes a connection, if it is still in the table.
    fn remove(&mut self, connection: &OpenConnection) {
        let number = connection.number.load(Ordering::Relaxed);
        let Some(queue) = self.queues.get_mut(&connection.owner) else { return };
        // Numbers are never reused, so the number of an evicted connection is not found here.
        if queue.remove(&number).is_none() {
            return;
        }
        let left = queue.len();
        if left == 0 {
            self.queues.remove(&connection.owner);
        }
        self.resize(&connection.owner, left + 1, left);
    }

    fn insert(&mut self, owner: Peer) -> Arc<OpenConnection> {
        self.last += 1;
        let connection = Arc::new(OpenConnection::new(owner.clone(), self.last));
        let queue = self.queues.entry(owner.clone()).or_default();
        queue.insert(self.last, Entry { connection: Arc::clone(&connection), requests: 0 });
        let size = queue.len();
        self.resize(&owner, size - 1, size);
        connection
    }

    fn resize(&mut self, owner: &Peer, from: usize, to: usize) {
        self.by_size.remove(&(from, owner.clone()));
        if to > 0 {
            self.by_size.insert((to, owner.clone()));
        }
        self.all = self.all + to - from;
        if owner.is_operator() {
            self.operators = self.operators + to - from;
        }
    }

    /// Evicts an idle connection, so that `owner` may open one. `refused` says which limit is reached.
    fn evict(
        &mut self,
        limits: &ConnectionLimits,
        open: OpenCounts,
        owner: &Peer,
        mut refused: AdmissionRefused,
    ) -> Result<Arc<OpenConnection>, AdmissionRefused> {
        let candidates: Vec<Peer> = match &mut refused {
            AdmissionRefused::Peer { closing, .. } => {
                let (still_open, aside) =
                    self.closing_by.get(owner).map_or((0, 0), |counts| (counts.all, counts.aside));
                if still_open >= limits.closing_per_peer_max() || aside >= limits.closing_aside_per_peer_max() {
                    // Without this limit, one peer could make all others wait until its connections are closed.
                    *closing = still_open;
                    return Err(refused);
                }
                vec![owner.clone()]
            }
            // Each socket that is being closed aside has a descriptor, and its client decides for how long.
            AdmissionRefused::All { .. } if self.closing_aside >= limits.closing_aside_max() => return Err(refused),
            AdmissionRefused::All { .. } => {
                // Operators and other clients each have a reserve. So evicting an operator's connection may not make room for another client, and the
                // reverse.
                let helps = |peer: &&Peer| admit(limits, without(open, owner, peer), owner).is_ok();
                // Evicting a connection of a peer whose closes take long would not free its descriptor.
                let aside = |peer: &Peer| self.closing_by.get(peer).map_or(0, |counts| counts.aside);
                let is_quick = |peer: &&Peer| aside(peer) < limits.closing_aside_per_peer_max();
                let largest_first = self.by_size.iter().rev().map(|(_, peer)| peer);
                largest_first.filter(helps).filter(is_quick).take(PEERS_CHECKED_MAX).cloned().collect()
            }
        };
        let connection = candidates.iter().find_map(|peer| self.idle_of(peer)).ok_or(refused)?;
        self.remove(&connection);
        self.closing += 1;
        self.closing_by.entry(connection.owner.clone()).or_default().all += 1;
        connection.at_once.store(self.closing > limits.lingering_max(), Ordering::Relaxed);
        connection.is_evicted.store(true, Ordering::Release);
        Ok(connection)
    }

    /// The first idle connection in a peer's queue that was not used since the last check. If there is none, the first idle one.
    fn idle_of(&mut self, peer: &Peer) -> Option<Arc<OpenConnection>> {
        let queue = self.queues.get_mut(peer)?;
        let mut used = Vec::new();
        let mut unused = None;
        for (number, entry) in queue.iter_mut().take(CHECKS_PER_PEER_MAX) {
            let now = entry.connection.progress.snapshot();
            if entry.connection.can_be_evicted() && now.requests == entry.requests {
                unused = Some(Arc::clone(&entry.connection));
                break;
            }
            entry.requests = now.requests;
            used.push(*number);
        }
        let second_choice =
            || used.iter().filter_map(|number| queue.get(number)).find(|entry| entry.connection.can_be_evicted());
        let found = unused.or_else(|| second_choice().map(|entry| Arc::clone(&entry.connection)));
        for number in used {
            let Some(entry) = queue.remove(&number) else { continue };
            self.last += 1;
            entry.connection.number.store(self.last, Ordering::Relaxed);
            queue.insert(self.last, entry);
        }
        found
    }
}

/// The counts for `owner` if `other` had one connection fewer.
fn without(open: OpenCounts, owner: &Peer, other: &Peer) -> OpenCounts {
    OpenCounts {
        all: open.all - 1,
        operators: open.operators - usize::from(other.is_operator()),
        own: open.own - usize::from(other == owner),
    }
}
