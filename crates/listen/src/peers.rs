//! Whose connections are open, and may there be one more?
//!
//! One table for all ports and sockets of HTTP, gRPC and metrics. A newcomer who finds no place gets that of a connection
//! that waits for a request, if there is one: first of the peer who has the most.

mod admit;
mod table;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nerite_request::Peer;
use tokio::sync::Notify;

use crate::limits::{LEAVING_PAUSE, LOG_PAUSE};
use crate::progress::{Awaited, Progress};
use crate::stall::Overdue;
pub use admit::{ConnectionLimits, Full};
use table::Table;

/// All open connections by peer.
#[derive(Debug)]
pub struct Peers {
    limits: ConnectionLimits,
    table: Mutex<Table>,
    counts: Counts,
    /// When the log last told of a connection refused or ended.
    told: Mutex<Option<Instant>>,
}

/// What happened to connections so far.
#[derive(Debug, Default)]
struct Counts {
    refused: [AtomicU64; Full::WORDS.len()],
    ended: [AtomicU64; Overdue::WORDS.len()],
    shed: AtomicU64,
}

/// What metrics tell of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Connections that are open.
    pub open: u64,
    /// Peers who have them.
    pub peers: u64,
    /// Connections refused so far, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Connections that the server ended so far, by reason.
    pub ended: Vec<(&'static str, u64)>,
}

/// A connection's place in the table; given back when dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    peers: Arc<Peers>,
    seat: Arc<Seat>,
}

/// What the table and the connection share.
#[derive(Debug)]
struct Seat {
    /// Who pays for the place.
    payer: Peer,
    /// Where it stands in the row of its payer's connections. Changed under the table's lock only.
    number: AtomicU64,
    progress: Arc<Progress>,
    /// Whether the place was given to another connection. Set under the table's lock only.
    taken: AtomicBool,
    /// Whether the connection then is to be closed at once. Set before `taken` is.
    at_once: AtomicBool,
    news: Notify,
}

impl Peers {
    /// A table without connections.
    pub fn new(limits: ConnectionLimits) -> Arc<Peers> {
        Arc::new(Peers { limits, table: Mutex::default(), counts: Counts::default(), told: Mutex::default() })
    }

    /// A place for a connection of `peer`. Where there is none, a connection that waits for a request loses its place; if
    /// there is none of these either, the newcomer is refused.
    pub fn admit(self: &Arc<Peers>, peer: &Peer) -> Result<ConnectionPermit, Full> {
        let payer = payer(peer);
        let outcome = self.lock().admit(&self.limits, payer);
        match outcome {
            Ok((seat, shed)) => {
                if let Some(shed) = shed {
                    self.counts.shed.fetch_add(1, Ordering::Relaxed);
                    shed.news.notify_one();
                }
                Ok(ConnectionPermit { peers: Arc::clone(self), seat })
            }
            Err(full) => {
                self.counts.refused[full.number()].fetch_add(1, Ordering::Relaxed);
                self.tell(|| format!("a connection was refused: {full}"));
                Err(full)
            }
        }
    }

    /// Waits while too many connections that lost their places are still open: a newcomer would need a descriptor more. They are
    /// closed at once, so this takes as long as their tasks need to run.
    pub async fn until_few_leave(&self) {
        while self.lock().leaving() >= self.limits.leaving_max() {
            tokio::time::sleep(LEAVING_PAUSE).await;
        }
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
            refused: read(&Full::WORDS, &self.counts.refused),
            ended,
        }
    }

    /// Notes that a connection or a call of `peer` was ended because the client kept the server waiting.
    pub fn note_ended(&self, peer: &Peer, overdue: Overdue) {
        self.counts.ended[overdue.number()].fetch_add(1, Ordering::Relaxed);
        if overdue != Overdue::Idle {
            self.tell(|| format!("a connection of {peer} was ended: {overdue}"));
        }
    }

    /// Writes a line unless there was one a moment ago: clients must not be able to fill the log.
    fn tell(&self, line: impl FnOnce() -> String) {
        let now = Instant::now();
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.is_some_and(|told| now.duration_since(told) < LOG_PAUSE) {
                return;
            }
            *told = Some(now);
        }
        log::warn!("{}", line());
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// The connection's notes, which tell whether it may lose its place.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.seat.progress
    }

    /// Whether the place was given to another connection. This one should end as soon as nothing is lost by it.
    pub fn is_taken(&self) -> bool {
        self.seat.taken.load(Ordering::Acquire)
    }

    /// Whether the connection may not even linger for its client to see that it ends: too many do already.
    pub fn leaves_at_once(&self) -> bool {
        self.is_taken() && self.seat.at_once.load(Ordering::Relaxed)
    }

    /// Ready when [`ConnectionPermit::is_taken`] has become true.
    pub fn taken(&self) -> impl Future<Output = ()> + Send + use<> {
        let seat = Arc::clone(&self.seat);
        async move { seat.news.notified().await }
    }

    /// Notes that the connection, or a call on it, was ended because its client kept the server waiting.
    pub fn note_ended(&self, overdue: Overdue) {
        self.peers.note_ended(&self.seat.payer, overdue);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.peers.lock().release(&self.seat);
    }
}

impl Seat {
    fn new(payer: Peer, number: u64) -> Seat {
        Seat {
            payer,
            number: AtomicU64::new(number),
            progress: Arc::new(Progress::new(Awaited::Head)),
            taken: AtomicBool::new(false),
            at_once: AtomicBool::new(false),
            news: Notify::new(),
        }
    }
}

/// The peer to whose account a connection goes. One host may have all addresses of an IPv6 network of 64 bits, so they are
/// one peer.
fn payer(peer: &Peer) -> Peer {
    match peer {
        Peer::Address(IpAddr::V6(address)) => {
            let network = u128::from(*address) >> 64 << 64;
            Peer::Address(IpAddr::V6(Ipv6Addr::from(network)))
        }
        _ => peer.clone(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits { all_max: 32, per_peer_max: 20 };

    fn user(uid: u32) -> Peer {
        // No such user runs the tests.
        Peer::User { uid: 3_000_000_000 + uid }
    }

    fn busy(place: ConnectionPermit) -> ConnectionPermit {
        place.progress().begin_request();
        place
    }

    #[test]
    fn places_come_back() {
        let peers = Peers::new(LIMITS);
        let places: Vec<_> = (0..20).map(|_| busy(peers.admit(&user(1)).unwrap())).collect();
        assert_eq!(peers.admit(&user(1)).unwrap_err().number(), 1);
        assert_eq!((peers.counts().open, peers.counts().peers), (20, 1));
        drop(places);
        assert_eq!((peers.counts().open, peers.counts().peers), (0, 0));
        assert_eq!(peers.counts().refused, [("all", 0), ("peer", 1)]);
        busy(peers.admit(&user(1)).unwrap());
    }

    #[test]
    fn a_newcomer_gets_the_place_of_an_idle_connection_of_whoever_has_the_most() {
        let peers = Peers::new(LIMITS);
        let many: Vec<_> = (0..20).map(|_| peers.admit(&user(1)).unwrap()).collect();
        let few: Vec<_> = (0..10).map(|_| peers.admit(&user(2)).unwrap()).collect();
        // Not the first: it works for its client.
        many[0].progress().begin_request();
        let newcomer = peers.admit(&user(3)).unwrap();
        assert!(!newcomer.is_taken() && few.iter().all(|place| !place.is_taken()));
        let taken: Vec<_> = many.iter().map(ConnectionPermit::is_taken).collect();
        assert_eq!(taken.iter().position(|taken| *taken), Some(1));
        assert_eq!(peers.counts().open, 30);
        assert_eq!(peers.counts().ended.last(), Some(&("shed", 1)));
        // What lost its place gives none back.
        drop(many);
        assert_eq!(peers.counts().open, 11);
    }

    #[tokio::test(start_paused = true)]
    async fn few_linger_without_a_place_and_newcomers_wait_while_many_are_open() {
        let peers = Peers::new(ConnectionLimits { all_max: 32, per_peer_max: 32 });
        let mut places: Vec<_> = (0..30).map(|_| peers.admit(&user(1)).unwrap()).collect();
        peers.until_few_leave().await;
        places.extend((0..5).map(|_| peers.admit(&user(1)).unwrap()));
        let linger = places.iter().filter(|place| place.is_taken() && !place.leaves_at_once()).count();
        assert_eq!((linger, places.iter().filter(|place| place.is_taken()).count()), (2, 5));
        tokio::time::timeout(Duration::from_secs(1), peers.until_few_leave()).await.unwrap_err();
        let gone = places.iter().position(ConnectionPermit::is_taken).unwrap();
        drop(places.remove(gone));
        peers.until_few_leave().await;
    }

    #[test]
    fn one_peers_own_newcomers_do_not_have_others_wait() {
        let peers = Peers::new(LIMITS);
        let mut places: Vec<_> = (0..22).map(|_| peers.admit(&user(1)).unwrap()).collect();
        assert_eq!(places.iter().filter(|place| place.is_taken()).count(), 2);
        assert!(peers.admit(&user(1)).unwrap_err().to_string().contains("being closed"));
        let _other = peers.admit(&user(2)).unwrap();
        let gone = places.iter().position(ConnectionPermit::is_taken).unwrap();
        drop(places.remove(gone));
        let _newcomer = peers.admit(&user(1)).unwrap();
        drop(places);
        assert!(peers.lock().leaving() == 0);
    }

    #[test]
    fn whoever_has_all_that_one_may_have_gets_the_place_of_its_own_idle_connection() {
        let peers = Peers::new(LIMITS);
        let first = peers.admit(&user(1)).unwrap();
        let others: Vec<_> = (1..20).map(|_| busy(peers.admit(&user(1)).unwrap())).collect();
        let newcomer = busy(peers.admit(&user(1)).unwrap());
        assert!(first.is_taken() && others.iter().all(|place| !place.is_taken()));
        assert!(peers.admit(&user(1)).is_err());
        drop(newcomer);
    }

    #[test]
    fn a_connection_in_use_goes_after_one_that_was_not_used() {
        let peers = Peers::new(LIMITS);
        let places: Vec<_> = (0..20).map(|_| peers.admit(&user(1)).unwrap()).collect();
        places[0].progress().begin_request();
        places[0].progress().wait_for(Awaited::Request);
        let _newcomer = peers.admit(&user(1)).unwrap();
        assert!(!places[0].is_taken() && places[1].is_taken());
    }

    #[test]
    fn operators_and_others_always_find_some_places() {
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
    async fn who_loses_its_place_is_told() {
        let peers = Peers::new(LIMITS);
        let first = peers.admit(&user(1)).unwrap();
        let taken = tokio::spawn(first.taken());
        let _others: Vec<_> = (0..20).map(|_| busy(peers.admit(&user(1)).unwrap())).collect();
        taken.await.unwrap();
        assert!(first.is_taken());
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let peers = Peers::new(LIMITS);
        let of = |text: &str| Peer::Address(text.parse().unwrap());
        let places = ["2001:db8::1", "2001:db8::2:0:0:1", "2001:db8:0:1::1", "192.0.2.1", "192.0.2.2"];
        let _places = places.map(|text| peers.admit(&of(text)).unwrap());
        assert_eq!((peers.counts().open, peers.counts().peers), (5, 4));
    }
}
