//! Who is at the other end of a connection?

use std::fmt;
use std::net::IpAddr;
use std::sync::OnceLock;

/// The client of a connection, as the kernel identifies it. The client itself cannot choose any of it.
///
/// Quotas are kept per peer, and a peer's rights decide which objects of shared memory it may name. Two connections with
/// equal peers share their quotas and their regions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// A process of this host that this user runs: the other end of a Unix socket, or of a TCP connection within this
    /// network namespace.
    User {
        /// The effective user id when the process made its socket.
        uid: u32,
    },
    /// A process whose user cannot be known: one of another host, or of another network namespace.
    Address(IpAddr),
    /// A process that the kernel does not identify.
    Unknown,
}

impl Peer {
    /// The user who runs this process.
    pub fn own() -> Peer {
        Peer::User { uid: own_uid() }
    }

    /// The user's id, where the user is known.
    pub fn uid(&self) -> Option<u32> {
        match self {
            Peer::User { uid } => Some(*uid),
            Peer::Address(_) | Peer::Unknown => None,
        }
    }

    /// Whether the peer may see and change what belongs to every client: root, or the user who runs the server.
    pub fn is_operator(&self) -> bool {
        self.uid().is_some_and(|uid| uid == 0 || uid == own_uid())
    }
}

/// The effective user id of this process. The system is asked once, because every request needs it.
fn own_uid() -> u32 {
    static OWN: OnceLock<u32> = OnceLock::new();
    *OWN.get_or_init(|| rustix::process::geteuid().as_raw())
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::User { uid } => write!(f, "user {uid}"),
            Peer::Address(address) => write!(f, "address {address}"),
            Peer::Unknown => f.write_str("an unknown user"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_own_user_are_operators() {
        assert!(Peer::own().is_operator());
        assert!(Peer::User { uid: 0 }.is_operator());
        assert!(!Peer::User { uid: own_uid().wrapping_add(4711) }.is_operator());
        assert!(!Peer::Address(IpAddr::from([127, 0, 0, 1])).is_operator());
        assert!(!Peer::Unknown.is_operator());
    }

    #[test]
    fn a_peer_is_shown_by_what_is_known_of_it() {
        assert_eq!(Peer::User { uid: 1000 }.to_string(), "user 1000");
        assert_eq!(Peer::Address(IpAddr::from([10, 0, 0, 7])).to_string(), "address 10.0.0.7");
        assert_eq!(Peer::Unknown.to_string(), "an unknown user");
    }
}
