//! What are the operator's rules for regions, and how do they apply to a peer?

use nerite_request::Peer;
use nerite_shm::Rights;

/// The operator's rules for regions of shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionRules {
    /// Which objects a client may register: `--shm-trust`.
    pub trust: ShmTrust,
    /// Any client may register objects whose keys begin with one of these: `--shm-key-prefix`. A leading slash is ignored.
    pub key_prefixes: Vec<String>,
    /// Which regions a client can use: `--shm-scope`.
    pub scope: ShmScope,
}

/// Which objects a client may register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShmTrust {
    /// Objects that its user could open for reading and writing.
    #[default]
    Peer,
    /// Objects that the server can open, as in Triton.
    Any,
}

/// Which regions a client can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShmScope {
    /// Regions of its own user.
    #[default]
    Own,
    /// All regions, as in Triton.
    All,
}

/// The regions that one client can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionAccess<'p> {
    /// One namespace that all clients share.
    Shared,
    /// The operator's regions. Its calls, but no inferences, reach the regions of all users after these.
    Operator,
    /// The regions of one owner.
    Own(&'p Peer),
}

impl RegionRules {
    pub(crate) fn access_of<'p>(&self, peer: &'p Peer) -> RegionAccess<'p> {
        match self.scope {
            ShmScope::All => RegionAccess::Shared,
            ShmScope::Own if peer.is_operator() => RegionAccess::Operator,
            ShmScope::Own => RegionAccess::Own(peer),
        }
    }

    /// The rights of `peer` to the object with that key.
    pub(crate) fn rights(&self, peer: &Peer, key: &str) -> Rights {
        let bare = |text: &'_ str| text.trim_start_matches('/').to_owned();
        let key = bare(key);
        let is_open = self.key_prefixes.iter().any(|prefix| key.starts_with(&bare(prefix)));
        match (self.trust, peer) {
            (ShmTrust::Any, _) => Rights::Any,
            _ if is_open => Rights::Any,
            (ShmTrust::Peer, Peer::User { uid }) => Rights::User(*uid),
            (ShmTrust::Peer, Peer::Address(_)) => Rights::Unidentified { who: peer.to_string() },
            (ShmTrust::Peer, Peer::Proxied(_) | Peer::Unidentified | Peer::Unknown) => {
                Rights::OpenToAll { who: peer.to_string() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Peer = Peer::User { uid: 4_000_000_001 };

    fn stranger() -> Peer {
        Peer::of_address([10, 0, 0, 7].into())
    }

    #[test]
    fn a_client_reaches_its_own_regions_and_the_operator_all() {
        let (own, all) = (RegionRules::default(), RegionRules { scope: ShmScope::All, ..RegionRules::default() });
        assert_eq!(own.access_of(&Peer::own()), RegionAccess::Operator);
        assert_eq!(own.access_of(&Peer::User { uid: 0 }), RegionAccess::Operator);
        assert_eq!(own.access_of(&USER), RegionAccess::Own(&USER));
        let stranger = stranger();
        assert_eq!(own.access_of(&stranger), RegionAccess::Own(&stranger));
        assert_eq!(own.access_of(&Peer::Unidentified), RegionAccess::Own(&Peer::Unidentified));
        assert_eq!(own.access_of(&Peer::Unknown), RegionAccess::Own(&Peer::Unknown));
        assert_eq!(all.access_of(&USER), RegionAccess::Shared);
        assert_eq!(all.access_of(&Peer::own()), RegionAccess::Shared);
    }

    #[test]
    fn a_prefix_or_trust_in_any_opens_objects_to_all() {
        let rules = RegionRules { key_prefixes: vec!["/cam_".into(), "mic".into()], ..RegionRules::default() };
        assert_eq!(rules.rights(&USER, "/x"), Rights::User(4_000_000_001));
        assert_eq!(rules.rights(&stranger(), "/x"), Rights::Unidentified { who: "address 10.0.0.7".into() });
        for peer in [Peer::behind_proxy([10, 0, 0, 7].into()), Peer::Unidentified, Peer::Unknown] {
            assert_eq!(rules.rights(&peer, "/x"), Rights::OpenToAll { who: peer.to_string() });
            assert_eq!(rules.rights(&peer, "/cam_0"), Rights::Any);
        }
        for key in ["/cam_0", "cam_0", "//cam_", "/mic", "microphone"] {
            assert_eq!(rules.rights(&stranger(), key), Rights::Any, "{key}");
        }
        assert_eq!(rules.rights(&USER, "/xcam_0"), Rights::User(4_000_000_001));
        let any = RegionRules { trust: ShmTrust::Any, ..RegionRules::default() };
        assert_eq!(any.rights(&stranger(), "/x"), Rights::Any);
    }
}
