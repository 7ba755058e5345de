//! Whose regions does a client reach, and which objects may it name?
//!
//! A region belongs to the user who registered it, or to the address where the user cannot be known. A client reaches its own
//! regions: it uses, lists, replaces and unregisters no others. Root and the user who runs the server share the operator's
//! regions, and reach those of others by name where they have none of that name themselves.

use nerite_request::{Peer, Status};
use nerite_shm::{Registries, Registry, Rights, ShmError};

use crate::Api;
use crate::errors::of_shm;

/// What the operator decided about regions of shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionRules {
    /// Which objects a client may register: `--shm-trust`.
    pub trust: ShmTrust,
    /// Objects whose keys begin so may be registered by any client: `--shm-key-prefix`. A leading slash does not count.
    pub key_prefixes: Vec<String>,
    /// Which regions a client reaches: `--shm-scope`.
    pub scope: ShmScope,
}

/// Which objects a client may register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShmTrust {
    /// Those that its user could open for reading and writing.
    #[default]
    Peer,
    /// Those that the server can open, as in Triton.
    Any,
}

/// Which regions a client reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShmScope {
    /// Those of its own user.
    #[default]
    Own,
    /// All, as in Triton.
    All,
}

/// The regions that one client reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegionAccess<'p> {
    /// The one namespace that all clients share.
    Shared,
    /// The operator's, and after those everybody's.
    Operator,
    /// One owner's.
    Own(&'p Peer),
}

impl RegionRules {
    fn reach<'p>(&self, peer: &'p Peer) -> RegionAccess<'p> {
        match self.scope {
            ShmScope::All => RegionAccess::Shared,
            ShmScope::Own if peer.is_operator() => RegionAccess::Operator,
            ShmScope::Own => RegionAccess::Own(peer),
        }
    }

    /// What entitles `peer` to the object of that key.
    fn rights(&self, peer: &Peer, key: &str) -> Rights {
        let bare = |text: &'_ str| text.trim_start_matches('/').to_owned();
        let key = bare(key);
        let is_open = self.key_prefixes.iter().any(|prefix| key.starts_with(&bare(prefix)));
        match (self.trust, peer) {
            (ShmTrust::Any, _) => Rights::Any,
            _ if is_open => Rights::Any,
            (ShmTrust::Peer, Peer::User { uid }) => Rights::User(*uid),
            (ShmTrust::Peer, Peer::Address(_) | Peer::Unknown) => Rights::Stranger { who: peer.to_string() },
        }
    }
}

impl Api {
    /// What entitles the client to the object of that key.
    pub(crate) fn rights(&self, key: &str) -> Rights {
        self.0.options.regions.rights(self.peer(), key)
    }

    /// Asks the registry that the client's registrations and its calls for all regions mean.
    pub(crate) fn in_own_regions<T>(&self, ask: impl Fn(&Registry) -> Result<T, ShmError>) -> Result<T, Status> {
        let regions = &self.0.regions;
        match self.reach() {
            RegionAccess::Shared | RegionAccess::Operator => ask(regions.operator()),
            RegionAccess::Own(peer) => regions.open(peer).and_then(|own| ask(&own)),
        }
        .map_err(of_shm)
    }

    /// Asks the registry that a region's name means to the client: `ask` fails where there is no region of that name.
    pub(crate) fn in_regions<T>(&self, ask: impl Fn(&Registry) -> Result<T, ShmError>) -> Result<T, Status> {
        let regions = &self.0.regions;
        match self.reach() {
            RegionAccess::Shared => ask(regions.operator()).map_err(of_shm),
            RegionAccess::Operator => {
                ask(regions.operator()).or_else(|error| in_others(regions, error, ask)).map_err(of_shm)
            }
            RegionAccess::Own(peer) => ask(&regions.of(peer)).map_err(|error| not_own(peer, error)),
        }
    }

    /// All registries that the client's calls for all regions may look at.
    pub(crate) fn in_each_region<T>(
        &self,
        ask: impl Fn(&Registry) -> Result<Vec<T>, ShmError>,
    ) -> Result<Vec<T>, Status> {
        let regions = &self.0.regions;
        let mut found = match self.reach() {
            RegionAccess::Shared | RegionAccess::Operator => ask(regions.operator()),
            RegionAccess::Own(peer) => ask(&regions.of(peer)),
        }
        .map_err(of_shm)?;
        if self.reach() == RegionAccess::Operator {
            for registry in regions.owned().values() {
                found.extend(ask(registry).map_err(of_shm)?);
            }
        }
        Ok(found)
    }

    fn reach(&self) -> RegionAccess<'_> {
        self.0.options.regions.reach(self.peer())
    }
}

/// An error told to a client who reaches its own regions only.
fn not_own(peer: &Peer, error: ShmError) -> Status {
    let is_missing = is_missing(&error);
    let mut status = of_shm(error);
    if is_missing {
        status.message +=
            &format!("; {peer} reaches the regions that it registered itself, or all of them with --shm-scope=all");
    }
    status
}

/// Where the operator has no region of that name: the first owner who has one.
fn in_others<T>(
    regions: &Registries<Peer>,
    error: ShmError,
    ask: impl Fn(&Registry) -> Result<T, ShmError>,
) -> Result<T, ShmError> {
    if !is_missing(&error) {
        return Err(error);
    }
    let owned = regions.owned();
    let found = owned.values().map(|registry| ask(registry)).find(|found| !found.as_ref().is_err_and(is_missing));
    found.unwrap_or(Err(error))
}

/// Whether the error says that there is no region of the name.
fn is_missing(error: &ShmError) -> bool {
    matches!(error, ShmError::RegionUnknown { .. } | ShmError::StatusUnknown { .. })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const STRANGER: Peer = Peer::Address(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7)));
    const USER: Peer = Peer::User { uid: 4_000_000_001 };

    #[test]
    fn a_client_reaches_its_own_regions_and_the_operator_all() {
        let (own, all) = (RegionRules::default(), RegionRules { scope: ShmScope::All, ..RegionRules::default() });
        assert_eq!(own.reach(&Peer::own()), RegionAccess::Operator);
        assert_eq!(own.reach(&Peer::User { uid: 0 }), RegionAccess::Operator);
        assert_eq!(own.reach(&USER), RegionAccess::Own(&USER));
        assert_eq!(own.reach(&STRANGER), RegionAccess::Own(&STRANGER));
        assert_eq!(own.reach(&Peer::Unknown), RegionAccess::Own(&Peer::Unknown));
        assert_eq!(all.reach(&USER), RegionAccess::Shared);
        assert_eq!(all.reach(&Peer::own()), RegionAccess::Shared);
    }

    #[test]
    fn a_prefix_or_trust_in_any_opens_objects_to_all() {
        let rules = RegionRules { key_prefixes: vec!["/cam_".into(), "mic".into()], ..RegionRules::default() };
        assert_eq!(rules.rights(&USER, "/x"), Rights::User(4_000_000_001));
        assert_eq!(rules.rights(&STRANGER, "/x"), Rights::Stranger { who: "address 10.0.0.7".into() });
        for key in ["/cam_0", "cam_0", "//cam_", "/mic", "microphone"] {
            assert_eq!(rules.rights(&STRANGER, key), Rights::Any, "{key}");
        }
        assert_eq!(rules.rights(&USER, "/xcam_0"), Rights::User(4_000_000_001));
        let any = RegionRules { trust: ShmTrust::Any, ..RegionRules::default() };
        assert_eq!(any.rights(&STRANGER, "/x"), Rights::Any);
    }
}
