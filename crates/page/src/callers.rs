//! Which clients may make calls at the port of the page?

use nerite_request::Peer;

/// Clients that may make calls here: for models, their configuration, inferences, loads and shared memory. Other clients that reach the port see only
/// what the metrics show anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Root and the user who runs the server.
    Operator,
    /// Users of this host.
    Host,
    /// All clients.
    All,
}

impl Callers {
    /// Whether the client may make calls.
    pub fn admit(self, peer: &Peer) -> bool {
        match self {
            Callers::Operator => peer.is_operator(),
            Callers::Host => peer.uid().is_some(),
            Callers::All => true,
        }
    }

    /// Why a client may make no calls, and which setting would allow it.
    pub fn refusal(self, peer: &Peer) -> String {
        match self {
            Callers::Operator => format!(
                "the page takes calls of root and of the user who runs the server, since HTTP is off or asks for certificates; {peer} sees the metrics. \
                 --ui-port=<port> gives the page a port of its own, which takes calls of all who reach it"
            ),
            Callers::Host | Callers::All => format!(
                "the page takes calls of this host's users at the metrics port; {peer} sees the metrics. \
                 --ui-address=<address> --ui-port=<port> gives the page a port of its own, which takes calls of all who reach it"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(peer: &Peer, admitted: [bool; 3]) {
        assert_eq!(
            [Callers::Operator, Callers::Host, Callers::All].map(|callers| callers.admit(peer)),
            admitted,
            "{peer}"
        );
    }

    #[test]
    fn the_setting_decides_which_clients_may_call() {
        check(&Peer::own(), [true, true, true]);
        check(&Peer::User { uid: 4_000_000_001 }, [false, true, true]);
        check(&Peer::of_address([192, 0, 2, 1].into()), [false, false, true]);
        check(&Peer::Unidentified, [false, false, true]);
        check(&Peer::Unknown, [false, false, true]);
    }
}
