//! Which peers have open connections, and may one more be opened?
//! One table covers all ports and sockets of HTTP, gRPC and metrics. If a new connection exceeds a limit, a connection that waits for a request is
//! evicted for it. If the limit is for one peer, a connection of that peer is evicted. Otherwise a connection of the peer with the most connections is
//! evicted.

mod admit;
mod table;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use nerite_locks::Mutex;
use nerite_request::Peer;
use tokio::sync::Notify;

use crate::closers::SocketEntry;
use crate::limits::LOG_PAUSE;
use crate::progress::{Awaited, Progress};
use crate::stall::Overdue;
pub use admit::{AdmissionRefused, ConnectionLimits};
use table::Table;

/// All open connections by peer.
#[derive(Debug)]
pub struct Peers {
    limits: ConnectionLimits,
    table: Mutex<Table>,
    counts: Counts,
    /// When the log last reported a refused or ended connection.
    last_logged: Mutex<Option<Instant>>,
}

/// Counts of refused and ended connections since the start.
#[derive(Debug, Default)]
struct Counts {
    refused: [AtomicU64; AdmissionRefused::WORDS.len()],
    ended: [AtomicU64; Overdue::WORDS.len()],
    shed: AtomicU64,
}

/// The numbers of connections for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Open connections.
    pub open: u64,
    /// Peers that have open connections.
    pub peers: u64,
    /// Connections refused so far, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Connections that the server ended so far, by reason.
    pub ended: Vec<(&'static str, u64)>,
}

/// The right of one connection to be open. Dropping it releases its entry in the table, unless its socket is still being closed on another thread.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<ConnectionEntry>);

/// The entry of a connection in the table. Dropping it releases the entry.
#[derive(Debug)]
struct ConnectionEntry {
    peers: Arc<Peers>,
    connection: Arc<OpenConnection>,
}

/// The state that the table and the task of a connection share.
#[derive(Debug)]
struct OpenConnection {
    /// The peer that the connection counts for.
    owner: Peer,
    /// Its key among the owner's connections. Changed only under the table's lock.
    number: AtomicU64,
    progress: Arc<Progress>,
    /// Whether it was evicted for another connection. Set only under the table's lock.
    is_evicted: AtomicBool,
    /// Whether it must then be closed at once. Set before `is_evicted`.
    at_once: AtomicBool,
    /// Whether its socket is being closed on another thread, which may take long. Set only under the table's lock.
    is_closed_aside: AtomicBool,
    evicted: Notify,
}

impl Peers {
    /// A table without connections.
    pub fn new(limits: ConnectionLimits) -> Arc<Peers> {
        Arc::new(Peers { limits, table: Mutex::default(), counts: Counts::default(), last_logged: Mutex::default() })
    }

    /// Admits a connection of `peer`. If a limit is reached, a connection that waits for a request is evicted for it. If there is no such connection,
    /// the new connection is refused.
    pub fn admit(self: &Arc<Peers>, peer: &Peer) -> Result<ConnectionPermit, AdmissionRefused> {
        let outcome = self.lock().admit(&self.limits, peer.clone());
        match outcome {
            Ok((connection, shed)) => {
                if let Some(shed) = shed {
                    self.counts.shed.fetch_add(1, Ordering::Relaxed);
                    shed.evicted.notify_one();
                }
                Ok(ConnectionPermit(Arc::new(ConnectionEntry { peers: Arc::clone(self), connection })))
            }
            Err(refused) => {
                self.counts.refused[refused.number()].fetch_add(1, Ordering::Relaxed);
                self.warn(|| format!("a connection was refused: {refused}"));
                Err(refused)
            }
        }
    }

    /// Whether the limit on evicted connections that are still open is reached. Each has a descriptor, so no other connection may be accepted then.
    pub(crate) fn has_many_closing(&self) -> bool {
        self.lock().closing() >= self.limits.closing_max()
    }

    /// The numbers for metrics.
    pub fn counts(&self) -> ConnectionCounts {
        let (open, peers) = self.lock().size();
        let read = |words: &[&'static str], counts: &[AtomicU64]| {
            words.iter().zip(counts).map(|(word, count)| (*word, count.load(Ordering::Relaxed))).collect::<Vec<_>>()
        };
        let mut ended = read(&Overdue::WORDS, &self.counts.ended);
        ended.push(("shed", self.counts.shed.load(Ordering::Relaxed)));
        ConnectionCounts {
            open: open as u64,
            peers: peers as u64,
            refused: read(&AdmissionRefused::WORDS, &self.counts.refused),
            ended,
        }
    }

    /// Counts a connection or a call of `peer` that was ended because the client kept the server waiting.
    pub fn note_ended(&self, peer: &Peer, overdue: Overdue) {
        self.counts.ended[overdue.number()].fetch_add(1, Ordering::Relaxed);
        if overdue != Overdue::Idle {
            self.warn(|| format!("a connection of {peer} was ended: {overdue}"));
        }
    }

    /// Logs a line, but at most one in [`LOG_PAUSE`], so that clients cannot fill the log.
    pub(crate) fn warn(&self, line: impl FnOnce() -> String) {
        let now = Instant::now();
        {
            let mut last = self.last_logged.lock().unwrap_or_else(PoisonError::into_inner);
            if last.is_some_and(|last| now.duration_since(last) < LOG_PAUSE) {
                return;
            }
            *last = Some(now);
        }
        log::warn!("{}", line());
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// The connection's progress. It decides whether the connection may be evicted.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.0.connection.progress
    }

    /// Whether the connection was evicted for another one. It must end as soon as no request is lost by that.
    pub fn is_evicted(&self) -> bool {
        self.0.connection.is_evicted.load(Ordering::Acquire)
    }

    /// Whether the connection must close at once, without time for its client to notice, because too many evicted ones are still open.
    pub fn closes_at_once(&self) -> bool {
        self.is_evicted() && self.0.connection.at_once.load(Ordering::Relaxed)
    }

    /// Ready when [`ConnectionPermit::is_evicted`] has become true.
    pub fn evicted(&self) -> impl Future<Output = ()> + Send + use<> {
        let connection = Arc::clone(&self.0.connection);
        async move { connection.evicted.notified().await }
    }

    /// The entry of the connection, for the socket to hold, because the socket may be closed after the permit is dropped.
    pub(crate) fn socket_entry(&self) -> Arc<dyn SocketEntry> {
        let entry: Arc<ConnectionEntry> = Arc::clone(&self.0);
        entry
    }

    /// Counts the connection, or a call on it, that was ended because its client kept the server waiting.
    pub fn note_ended(&self, overdue: Overdue) {
        self.0.peers.note_ended(&self.0.connection.owner, overdue);
    }
}

impl SocketEntry for ConnectionEntry {
    fn begins_to_close(&self) {
        self.peers.lock().close_aside(&self.connection);
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.peers.lock().release(&self.connection);
    }
}

impl OpenConnection {
    fn new(owner: Peer, number: u64) -> OpenConnection {
        OpenConnection {
            owner,
            number: AtomicU64::new(number),
            progress: Arc::new(Progress::new(Awaited::Head)),
            is_evicted: AtomicBool::new(false),
            at_once: AtomicBool::new(false),
            is_closed_aside: AtomicBool::new(false),
            evicted: Notify::new(),
        }
    }

    /// Whether the connection waits for a request and still has a task that can close it. The table's lock must be held.
    fn can_be_evicted(&self) -> bool {
        self.progress.is_idle() && !self.is_closed_aside.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits { all_max: 32, per_peer_max: 20 };

    fn user(uid: u32) -> Peer {
        // No such user runs the tests.
        Peer::User { uid: 3_000_000_000 + uid }
    }

    fn busy(permit: ConnectionPermit) -> ConnectionPermit {
        permit.progress().begin_request();
        permit
    }

    #[test]
    fn a_dropped_permit_admits_another_connection() {
        let peers = Peers::new(LIMITS);
        let permits: Vec<_> = (0..20).map(|_| busy(peers.admit(&user(1)).unwrap())).collect();
        assert_eq!(peers.admit(&user(1)).unwrap_err().number(), 1);
        assert_eq!((peers.counts().open, peers.counts().peers), (20, 1));
        drop(permits);
        assert_eq!((peers.counts().open, peers.counts().peers), (0, 0));
        assert_eq!(peers.counts().refused, [("all", 0), ("peer", 1)]);
        busy(peers.admit(&user(1)).unwrap());
    }

    #[test]
    fn an_idle_connection_of_the_peer_with_the_most_is_evicted_for_a_new_one() {
        let peers = Peers::new(LIMITS);
        let many: Vec<_> = (0..20).map(|_| peers.admit(&user(1)).unwrap()).collect();
        let few: Vec<_> = (0..10).map(|_| peers.admit(&user(2)).unwrap()).collect();
        // The first is busy with a request.
        many[0].progress().begin_request();
        let admitted = peers.admit(&user(3)).unwrap();
        assert!(!admitted.is_evicted() && few.iter().all(|permit| !permit.is_evicted()));
        assert_eq!(many.iter().position(ConnectionPermit::is_evicted), Some(1));
        assert_eq!(peers.counts().open, 30);
        assert_eq!(peers.counts().ended.last(), Some(&("shed", 1)));
        // The evicted connection is not counted twice.
        drop(many);
        assert_eq!(peers.counts().open, 11);
    }

    #[test]
    fn few_evicted_connections_linger_and_none_is_accepted_while_many_are_open() {
        let peers = Peers::new(ConnectionLimits { all_max: 32, per_peer_max: 32 });
        let mut permits: Vec<_> = (0..30).map(|_| peers.admit(&user(1)).unwrap()).collect();
        assert!(!peers.has_many_closing());
        permits.extend((0..5).map(|_| peers.admit(&user(1)).unwrap()));
        let linger = permits.iter().filter(|permit| permit.is_evicted() && !permit.closes_at_once()).count();
        assert_eq!((linger, permits.iter().filter(|permit| permit.is_evicted()).count()), (2, 5));
        assert!(peers.has_many_closing());
        let gone = permits.iter().position(ConnectionPermit::is_evicted).unwrap();
        drop(permits.remove(gone));
        assert!(!peers.has_many_closing());
    }

    /// Passes the socket to the thread that closes it. It is closed when the result is dropped.
    fn close_aside(permit: ConnectionPermit) -> Arc<dyn SocketEntry> {
        let entry = permit.socket_entry();
        entry.begins_to_close();
        entry
    }

    #[test]
    fn a_socket_that_is_still_being_closed_counts_and_is_not_evicted() {
        let peers = Peers::new(LIMITS);
        let closing: Vec<_> = (0..20).map(|_| close_aside(peers.admit(&user(1)).unwrap())).collect();
        assert_eq!((peers.counts().open, peers.counts().peers), (20, 1));
        assert!(peers.admit(&user(1)).is_err(), "none of them can be evicted");
        drop(closing);
        assert_eq!((peers.counts().open, peers.counts().peers), (0, 0));
        let _admitted = peers.admit(&user(1)).unwrap();
    }

    #[test]
    fn evicted_connections_that_are_still_being_closed_do_not_stop_other_peers() {
        let peers = Peers::new(ConnectionLimits { all_max: 400, per_peer_max: 300 });
        let mut permits: Vec<_> = (0..300).map(|_| peers.admit(&user(1)).unwrap()).collect();
        let mut closing = Vec::new();
        let refused = loop {
            match peers.admit(&user(1)) {
                Ok(permit) => permits.push(permit),
                Err(refused) => break refused,
            }
            let evicted = permits.iter().position(ConnectionPermit::is_evicted).unwrap();
            closing.push(close_aside(permits.swap_remove(evicted)));
        };
        assert!(refused.to_string().contains("being closed"), "{refused}");
        assert_eq!(closing.len(), peers.limits.closing_aside_per_peer_max());
        assert!(!peers.has_many_closing());
        // Another peer's idle connections are evicted in their place.
        permits.extend((0..75).map(|_| peers.admit(&user(2)).unwrap()));
        let _other = busy(peers.admit(&user(3)).unwrap());
        let evicted: Vec<_> = permits.iter().filter(|permit| permit.is_evicted()).collect();
        assert_eq!(evicted.iter().map(|permit| permit.0.connection.owner.clone()).collect::<Vec<_>>(), [user(2)]);
        drop((permits, closing));
        let table = peers.lock();
        assert_eq!((table.closing(), table.size()), (0, (1, 1)));
    }

    #[test]
    fn new_connections_of_one_peer_do_not_delay_other_peers() {
        let peers = Peers::new(LIMITS);
        let mut permits: Vec<_> = (0..22).map(|_| peers.admit(&user(1)).unwrap()).collect();
        assert_eq!(permits.iter().filter(|permit| permit.is_evicted()).count(), 2);
        assert!(peers.admit(&user(1)).unwrap_err().to_string().contains("being closed"));
        let _other = peers.admit(&user(2)).unwrap();
        let gone = permits.iter().position(ConnectionPermit::is_evicted).unwrap();
        drop(permits.remove(gone));
        let _admitted = peers.admit(&user(1)).unwrap();
        drop(permits);
        assert!(peers.lock().closing() == 0);
    }

    #[test]
    fn at_the_limit_of_a_peer_its_own_idle_connection_is_evicted() {
        let peers = Peers::new(LIMITS);
        let first = peers.admit(&user(1)).unwrap();
        let others: Vec<_> = (1..20).map(|_| busy(peers.admit(&user(1)).unwrap())).collect();
        let admitted = busy(peers.admit(&user(1)).unwrap());
        assert!(first.is_evicted() && others.iter().all(|permit| !permit.is_evicted()));
        assert!(peers.admit(&user(1)).is_err());
        drop(admitted);
    }

    #[test]
    fn a_connection_in_use_is_evicted_after_an_unused_one() {
        let peers = Peers::new(LIMITS);
        let permits: Vec<_> = (0..20).map(|_| peers.admit(&user(1)).unwrap()).collect();
        permits[0].progress().begin_request();
        permits[0].progress().wait_for(Awaited::Request);
        let _admitted = peers.admit(&user(1)).unwrap();
        assert!(!permits[0].is_evicted() && permits[1].is_evicted());
    }

    #[test]
    fn operators_and_others_each_have_a_reserve() {
        let peers = Peers::new(LIMITS);
        let own: Vec<_> = (0..28).map(|_| busy(peers.admit(&Peer::own()).unwrap())).collect();
        assert!(peers.admit(&Peer::own()).is_err());
        let others: Vec<_> = (0..4).map(|uid| busy(peers.admit(&user(uid)).unwrap())).collect();
        assert!(peers.admit(&user(9)).is_err());
        drop((own, others));
        let others: Vec<_> = (0..30).map(|uid| busy(peers.admit(&user(uid)).unwrap())).collect();
        assert!(peers.admit(&user(99)).is_err());
        let _own = [(); 2].map(|()| busy(peers.admit(&Peer::own()).unwrap()));
        assert!(peers.admit(&Peer::own()).is_err());
        drop(others);
    }

    #[tokio::test]
    async fn an_evicted_connection_is_notified() {
        let peers = Peers::new(LIMITS);
        let first = peers.admit(&user(1)).unwrap();
        let evicted = tokio::spawn(first.evicted());
        let _others: Vec<_> = (0..20).map(|_| busy(peers.admit(&user(1)).unwrap())).collect();
        evicted.await.unwrap();
        assert!(first.is_evicted());
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let peers = Peers::new(LIMITS);
        let of = |text: &str| Peer::of_address(text.parse().unwrap());
        let permits = ["2001:db8::1", "2001:db8::2:0:0:1", "2001:db8:0:1::1", "192.0.2.1", "192.0.2.2"];
        let _places = permits.map(|text| peers.admit(&of(text)).unwrap());
        assert_eq!((peers.counts().open, peers.counts().peers), (5, 4));
    }
}
