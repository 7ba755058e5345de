//! May a peer open one more connection?

use nerite_request::Peer;

use crate::limits::{
    CLOSING_ASIDE_MIN, CONNECTIONS_MAX, CONNECTIONS_MIN, CONNECTIONS_PER_CLOSING, CONNECTIONS_PER_LINGERING,
    CONNECTIONS_PER_OPERATOR_RESERVE, CONNECTIONS_PER_OTHERS_RESERVE, DESCRIPTORS_PER_RESERVED, OPERATOR_RESERVE_MAX,
    PEERS_PER_CLOSING_ASIDE,
};

/// The limits on open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The limit for all peers together.
    pub all_max: usize,
    /// The limit for one peer. It does not apply to operators.
    pub per_peer_max: usize,
}

impl ConnectionLimits {
    /// The defaults for a process with this limit on descriptors: three quarters of the descriptors are for connections, and one peer may have half of these.
    pub fn for_descriptors(descriptors: u64) -> ConnectionLimits {
        let free = descriptors - descriptors / DESCRIPTORS_PER_RESERVED;
        let all_max = usize::try_from(free).unwrap_or(usize::MAX).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX);
        ConnectionLimits { all_max, per_peer_max: all_max / 2 }
    }

    /// The most connections of all operators together.
    fn operators_max(&self) -> usize {
        self.all_max - self.all_max / CONNECTIONS_PER_OTHERS_RESERVE
    }

    /// The most evicted connections that may stay open for a moment.
    pub(super) fn lingering_max(&self) -> usize {
        self.all_max / CONNECTIONS_PER_LINGERING
    }

    /// The most evicted connections that may still be open.
    pub(super) fn closing_max(&self) -> usize {
        self.all_max / CONNECTIONS_PER_CLOSING
    }

    /// The most connections of one peer that were evicted for newer ones of the same peer and may still be open. This is more than may linger.
    pub(super) fn closing_per_peer_max(&self) -> usize {
        self.closing_max() / 2
    }

    /// The most evicted connections whose sockets are being closed aside. If there are as many, no connection is evicted for another peer.
    pub(super) fn closing_aside_max(&self) -> usize {
        self.lingering_max().max(CLOSING_ASIDE_MIN)
    }

    /// The most evicted connections of one peer whose sockets are being closed aside. If a peer has as many, none of its connections is evicted.
    pub(super) fn closing_aside_per_peer_max(&self) -> usize {
        self.closing_aside_max() / PEERS_PER_CLOSING_ASIDE
    }

    /// The most connections of all clients that are not operators.
    fn others_max(&self) -> usize {
        self.all_max - (self.all_max / CONNECTIONS_PER_OPERATOR_RESERVE).min(OPERATOR_RESERVE_MAX)
    }
}

/// Why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionRefused {
    /// The limit for all peers is reached.
    #[error(
        "{open} connections are open, of {max} that there may be, and none is idle; try again later, or raise \
         --connections-max"
    )]
    All {
        /// Number of open connections.
        open: usize,
        /// The most open connections.
        max: usize,
    },
    /// The limit for one peer is reached.
    #[error(
        "{peer} has {open} connections open, of {max} that one peer may have, and {}, or raise --connections-per-peer-max",
        advice(*closing)
    )]
    Peer {
        /// The peer.
        peer: Peer,
        /// Number of the peer's open connections.
        open: usize,
        /// The most open connections of the peer.
        max: usize,
        /// If too many of the peer's connections were evicted for newer ones and are still open: their number. Otherwise 0.
        closing: usize,
    },
}

/// Why no connection of the peer can be evicted, and what its client can do.
fn advice(closing: usize) -> String {
    match closing {
        0 => "none is idle; close some".to_owned(),
        closing => format!("{closing} idle ones are still being closed for newer ones; open them more slowly"),
    }
}

impl AdmissionRefused {
    /// The names of the reasons in metrics.
    pub(crate) const WORDS: [&'static str; 2] = ["all", "peer"];

    /// The index of its name in [`AdmissionRefused::WORDS`].
    pub(crate) fn number(&self) -> usize {
        match self {
            AdmissionRefused::All { .. } => 0,
            AdmissionRefused::Peer { .. } => 1,
        }
    }
}

/// Numbers of open connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCounts {
    /// Connections of all peers.
    pub all: usize,
    /// Connections of operators.
    pub operators: usize,
    /// Connections of the peer that opens one more.
    pub own: usize,
}

/// Whether `peer` may open one more connection.
pub fn admit(limits: &ConnectionLimits, open: OpenCounts, peer: &Peer) -> Result<(), AdmissionRefused> {
    let full = |open, max| if open < max { Ok(()) } else { Err(AdmissionRefused::All { open, max }) };
    if peer.is_operator() {
        full(open.operators, limits.operators_max())?;
    } else {
        if open.own >= limits.per_peer_max {
            let (open, max) = (open.own, limits.per_peer_max);
            return Err(AdmissionRefused::Peer { peer: peer.clone(), open, max, closing: 0 });
        }
        full(open.all - open.operators, limits.others_max())?;
    }
    full(open.all, limits.all_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits { all_max: 160, per_peer_max: 80 };

    #[track_caller]
    fn check(operator: bool, [operators, others, own]: [usize; 3], expect: Result<(), (usize, usize)>) {
        let peer = if operator { Peer::own() } else { Peer::Unknown };
        let found = admit(&LIMITS, OpenCounts { all: operators + others, operators, own }, &peer);
        let found = found.map_err(|refused| match refused {
            AdmissionRefused::All { open, max } | AdmissionRefused::Peer { open, max, .. } => (open, max),
        });
        assert_eq!(found, expect);
    }

    #[test]
    fn operators_and_others_each_have_reserved_connections() {
        check(false, [0, 0, 0], Ok(()));
        check(false, [0, 79, 79], Ok(()));
        check(false, [0, 80, 80], Err((80, 80)));
        check(false, [0, 149, 0], Ok(()));
        check(false, [0, 150, 0], Err((150, 150)));
        check(false, [140, 19, 0], Ok(()));
        check(false, [140, 20, 0], Err((160, 160)));
        check(true, [139, 0, 139], Ok(()));
        check(true, [140, 0, 140], Err((140, 140)));
        check(true, [9, 150, 0], Ok(()));
        check(true, [10, 150, 10], Err((160, 160)));
    }

    #[track_caller]
    fn check_default(descriptors: u64, all_max: usize, per_peer_max: usize) {
        assert_eq!(ConnectionLimits::for_descriptors(descriptors), ConnectionLimits { all_max, per_peer_max });
    }

    #[test]
    fn descriptors_are_reserved_for_regions_and_models() {
        check_default(0, 16, 8);
        check_default(256, 192, 96);
        check_default(1024, 768, 384);
        check_default(20_000, 15_000, 7500);
        check_default(1 << 20, 16_384, 8192);
    }
}
