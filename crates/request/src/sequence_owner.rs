//! Whose sequence does a correlation id mean?
//!
//! Each owner has sequences of its own, so the same id of two owners means two sequences.

use std::net::IpAddr;

use crate::Peer;
use crate::peer::Network;

/// The owner of a sequence, as a number. The default is the server itself: its warmups, and requests of models that were made for no single owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SequenceOwner(u64);

impl SequenceOwner {
    /// The server itself.
    pub const SERVER: SequenceOwner = SequenceOwner(0);

    /// The number, for the scheduler and for keys.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The owner with this number.
    pub fn of_number(number: u64) -> SequenceOwner {
        SequenceOwner(number)
    }
}

/// Which clients share their sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SequenceScope {
    /// Each user has its own. All addresses of other hosts share theirs, because a load balancer may send the requests of one sequence over several.
    #[default]
    User,
    /// Each user and each address has its own.
    Peer,
    /// All clients and models share theirs, as in Triton.
    All,
}

/// The kinds of owners, apart from networks of IPv6. They are bits 32 to 34 of the number. The bits below tell owners of one kind apart.
#[derive(Clone, Copy)]
enum Kind {
    Operator = 1,
    User,
    Addresses,
    Ipv4,
    Unidentified,
    Unknown,
}

/// The numbers of networks of IPv6 begin here: they are the upper 64 bits of their addresses. Smaller ones belong to `::/8`, where no host has an address.
/// They count as one network.
const NETWORK_MIN: u64 = 1 << 35;

const _: () = assert!((Kind::Unknown as u64 + 1) << u32::BITS <= NETWORK_MIN, "a number of IPv6 is no other owner's");

impl SequenceScope {
    /// The owner of the sequences of this client. Root and the server's own user are one owner, as for regions.
    pub fn owner_of(self, peer: &Peer) -> SequenceOwner {
        let (kind, number) = match (self, peer) {
            (SequenceScope::All, _) => return SequenceOwner::SERVER,
            (_, peer) if peer.is_operator() => (Kind::Operator, 0),
            (_, Peer::User { uid }) => (Kind::User, *uid),
            (SequenceScope::User, Peer::Address(_) | Peer::Proxied(_)) => (Kind::Addresses, 0),
            (SequenceScope::Peer, Peer::Address(Network(address)) | Peer::Proxied(Network(address))) => match address {
                IpAddr::V4(address) => (Kind::Ipv4, address.to_bits()),
                IpAddr::V6(network) => {
                    return SequenceOwner(((network.to_bits() >> u64::BITS) as u64).max(NETWORK_MIN));
                }
            },
            (_, Peer::Unidentified) => (Kind::Unidentified, 0),
            (_, Peer::Unknown) => (Kind::Unknown, 0),
        };
        SequenceOwner((kind as u64) << u32::BITS | u64::from(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    fn at(address: &str) -> Peer {
        Peer::of_address(address.parse().expect("an address"))
    }

    fn user(uid: u32) -> Peer {
        Peer::User { uid }
    }

    /// Checks who shares sequences: with scope `user`, `peer`, and `all`.
    #[track_caller]
    fn check(one: &Peer, other: &Peer, expect: [bool; 3]) {
        let share = |scope: SequenceScope| scope.owner_of(one) == scope.owner_of(other);
        assert_eq!([SequenceScope::User, SequenceScope::Peer, SequenceScope::All].map(share), expect, "{one}, {other}");
    }

    #[test]
    fn a_user_owns_its_sequences_and_other_hosts_share_theirs() {
        let (alice, bob) = (user(4_000_000_001), user(4_000_000_002));
        check(&alice, &alice, [true, true, true]);
        check(&alice, &bob, [false, false, true]);
        check(&user(0), &Peer::own(), [true, true, true]);
        check(&alice, &Peer::own(), [false, false, true]);
        check(&at("10.0.0.7"), &at("10.0.0.8"), [true, false, true]);
        check(&at("10.0.0.7"), &at("::ffff:10.0.0.7"), [true, true, true]);
        check(&at("10.0.0.7"), &Peer::behind_proxy([10, 0, 0, 7].into()), [true, true, true]);
        check(&at("10.0.0.7"), &Peer::behind_proxy([10, 0, 0, 8].into()), [true, false, true]);
        check(&at("2001:db8::1"), &at("2001:db8::2"), [true, true, true]);
        check(&at("2001:db8::1"), &at("2001:db8:0:1::1"), [true, false, true]);
        check(&at("238.107.40.1"), &user(4_000_000_001), [false, false, true]);
        check(&at("0.0.0.1"), &at("0:0:0:1::"), [true, false, true]);
        check(&user(4_000_000_001), &at("0:2:ee6b:2801::"), [false, false, true]);
        check(&at("64:ff9b::1"), &at("64:ff9b:1::1"), [true, false, true]);
        for one in [Peer::Unidentified, Peer::Unknown] {
            check(&one, &one, [true, true, true]);
            check(&one, &alice, [false, false, true]);
            check(&one, &at("10.0.0.7"), [false, false, true]);
        }
        check(&Peer::Unidentified, &Peer::Unknown, [false, false, true]);
    }

    #[test]
    fn requests_of_several_clients_have_the_owner_that_all_of_them_have() {
        let client = |uid, flow| Client { peer: uid, flow, owner: SequenceOwner(uid) };
        let of_owner = |uid| Client { owner: SequenceOwner(uid), ..Client::default() };
        let check =
            |clients: &[Client], expect| assert_eq!(Client::of_all(clients.iter().copied()), expect, "{clients:?}");
        check(&[], Client::default());
        check(&[client(1, 1), client(1, 1)], client(1, 1));
        check(&[client(1, 1), client(1, 2), client(1, 1)], of_owner(1));
        check(&[client(1, 1), client(2, 1)], Client::default());
        check(&[client(1, 1), client(2, 1), client(1, 1)], Client::default());
    }

    #[test]
    fn the_server_itself_is_no_client_but_with_one_namespace_for_all() {
        let own = SequenceOwner::SERVER;
        for peer in [Peer::own(), user(0), user(4_000_000_001), at("10.0.0.7"), Peer::Unidentified, Peer::Unknown] {
            let is_own = [SequenceScope::User, SequenceScope::Peer, SequenceScope::All]
                .map(|scope| scope.owner_of(&peer) == own);
            assert_eq!(is_own, [false, false, true], "{peer}");
        }
    }
}
