//! Who is at the other end of a connection?

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

/// The client of a connection, as the kernel identifies it, or a proxy that the operator trusts. The client cannot choose its identity.
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
    /// A process of another host, or of another network namespace, whose user cannot be known. [`Peer::of_address`] makes it.
    Address(Network),
    /// A client of another host that a proxy names by its address. [`Peer::behind_proxy`] makes it. It has quotas of its own, and otherwise the rights of
    /// [`Peer::Unidentified`], because programs of the proxy's host can make it, too.
    Proxied(Network),
    /// A process of this network namespace whose socket the kernel did not find: it is closed already, or bound to another network device. All such
    /// processes are one peer, which has the fewest rights.
    Unidentified,
    /// A process about which the kernel gives no information.
    Unknown,
}

/// The addresses that count as one peer: one address of IPv4, or a network of IPv6 with a prefix of 64 bits. One host may have all addresses of such a
/// network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(pub(crate) IpAddr);

/// The bits of an IPv6 address that name the network.
const NETWORK_BITS: u32 = 64;

impl Peer {
    /// The user who runs this process.
    pub fn own() -> Peer {
        Peer::User { uid: own_uid() }
    }

    /// The peer with this address on another host. An IPv4 address that is mapped to IPv6 is the IPv4 address.
    pub fn of_address(address: IpAddr) -> Peer {
        Peer::Address(Network::of(address))
    }

    /// The peer with this address behind a proxy.
    pub fn behind_proxy(address: IpAddr) -> Peer {
        Peer::Proxied(Network::of(address))
    }

    /// The user's id, where the user is known.
    pub fn uid(&self) -> Option<u32> {
        match self {
            Peer::User { uid } => Some(*uid),
            Peer::Address(_) | Peer::Proxied(_) | Peer::Unidentified | Peer::Unknown => None,
        }
    }

    /// Whether this peer is one user or one network. If not, the peer stands for several clients, and must not get values that were computed from memory of
    /// one of them.
    pub fn is_identified(&self) -> bool {
        match self {
            Peer::User { .. } | Peer::Address(_) | Peer::Proxied(_) => true,
            Peer::Unidentified | Peer::Unknown => false,
        }
    }

    /// Whether the peer may see and change what belongs to every client: root, or the user who runs the server.
    pub fn is_operator(&self) -> bool {
        self.uid().is_some_and(|uid| uid == 0 || uid == own_uid())
    }
}

impl Network {
    fn of(address: IpAddr) -> Network {
        Network(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                let host_bits = u128::BITS - NETWORK_BITS;
                IpAddr::V6(Ipv6Addr::from(u128::from(address) >> host_bits << host_bits))
            }
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "address {address}"),
            IpAddr::V6(address) => write!(f, "network {address}/{NETWORK_BITS}"),
        }
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
            Peer::Address(network) => write!(f, "{network}"),
            Peer::Proxied(network) => write!(f, "{network} behind a proxy"),
            Peer::Unidentified => f.write_str("an unidentified client of this host"),
            Peer::Unknown => f.write_str("an unknown user"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> Peer {
        Peer::of_address(address.parse().expect("an address"))
    }

    #[track_caller]
    fn check(peer: &Peer, shown: &str, uid: Option<u32>, [is_identified, is_operator]: [bool; 2]) {
        assert_eq!(peer.to_string(), shown);
        assert_eq!((peer.uid(), peer.is_identified(), peer.is_operator()), (uid, is_identified, is_operator), "{peer}");
    }

    #[test]
    fn a_peer_is_what_the_kernel_reports() {
        let own = own_uid();
        check(&Peer::own(), &format!("user {own}"), Some(own), [true, true]);
        check(&Peer::User { uid: 0 }, "user 0", Some(0), [true, true]);
        let other = own.wrapping_add(4711);
        check(&Peer::User { uid: other }, &format!("user {other}"), Some(other), [true, false]);
        check(&of("127.0.0.1"), "address 127.0.0.1", None, [true, false]);
        check(&of("::ffff:10.0.0.7"), "address 10.0.0.7", None, [true, false]);
        check(&of("2001:db8:0:1::7"), "network 2001:db8:0:1::/64", None, [true, false]);
        check(&of("::1"), "network ::/64", None, [true, false]);
        check(&Peer::behind_proxy([10, 0, 0, 7].into()), "address 10.0.0.7 behind a proxy", None, [true, false]);
        check(&Peer::Unidentified, "an unidentified client of this host", None, [false, false]);
        check(&Peer::Unknown, "an unknown user", None, [false, false]);
    }

    #[track_caller]
    fn check_same(one: &str, other: &str, is_same: bool) {
        assert_eq!(of(one) == of(other), is_same, "{one} {other}");
        assert_eq!(of(one).to_string() == of(other).to_string(), is_same, "{one} {other}");
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer_and_an_address_of_ipv4_is_one() {
        check_same("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true);
        check_same("2001:db8::1", "2001:db8:0:1::1", false);
        check_same("fe80::1", "fe80::2", true);
        check_same("192.0.2.1", "192.0.2.1", true);
        check_same("192.0.2.1", "192.0.2.2", false);
        check_same("::ffff:192.0.2.1", "192.0.2.1", true);
        check_same("::ffff:192.0.2.1", "::ffff:192.0.2.2", false);
        check_same("::ffff:192.0.2.1", "::1", false);
    }
}
