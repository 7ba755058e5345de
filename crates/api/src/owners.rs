//! Whose regions can a client use, and which objects may it register?
//!
//! A region belongs to the user who registered it, or to the address if the user is unknown. A client can use, list, replace and unregister only its
//! own regions. Root and the user who runs the server share the operator's regions. They can list and unregister regions of other users by name if they
//! have no region with that name. Their requests read and write no such region: its user could read what root writes, and choose what root reads.

use nerite_request::{Peer, Status};
use nerite_shm::{Payer, Registries, Registry, Rights, ShmError};

use crate::Api;
use crate::errors::of_shm;
use crate::region_rules::RegionAccess;

/// The work of ending a region, whatever its size, as a number of bytes that are unmapped: both take some 10 µs.
const REGION_WORK_BYTES: u64 = 512 << 10;

impl Api {
    /// The rights of the client to the object with that key.
    pub(crate) fn rights(&self, key: &str) -> Rights {
        self.inner.options.regions.rights(self.peer(), key)
    }

    /// Calls `register` with the registry of the client's own regions, and with the registry whose quota pays if that is another one. It is another one where
    /// all clients share one namespace: each client still has its own quota, and none waits until objects of others are freed.
    pub(crate) fn registering<T>(
        &self,
        register: impl FnOnce(&Registry, Option<Payer<'_>>) -> Result<T, ShmError>,
    ) -> Result<T, Status> {
        let regions = &self.inner.regions;
        match self.payer() {
            Some(peer) if self.access() == RegionAccess::Shared => {
                regions.open(peer).and_then(|own| register(regions.operator(), Some(own.payer()))).map_err(of_shm)
            }
            _ => self.in_own_regions(|own| register(own, None)),
        }
    }

    /// The owner who pays for the client's regions; `None` for the operator.
    fn payer(&self) -> Option<&Peer> {
        match self.access() {
            RegionAccess::Operator => None,
            RegionAccess::Shared | RegionAccess::Own(_) => Some(self.peer()).filter(|peer| !peer.is_operator()),
        }
    }

    /// Calls `query` with the registry of the client's own regions. Calls that mean all regions use this registry.
    pub(crate) fn in_own_regions<T>(&self, query: impl FnOnce(&Registry) -> Result<T, ShmError>) -> Result<T, Status> {
        let regions = &self.inner.regions;
        match self.access() {
            RegionAccess::Shared | RegionAccess::Operator => query(regions.operator()),
            RegionAccess::Own(peer) => regions.open(peer).and_then(|own| query(&own)),
        }
        .map_err(of_shm)
    }

    /// The regions of a new session of the client. What they map counts with the client's own regions.
    pub(crate) fn session_regions(&self, regions_max: usize) -> Result<Registry, ShmError> {
        self.inner.regions.of_session(self.payer(), regions_max)
    }

    /// The bytes of all regions that the client may unregister, and [`REGION_WORK_BYTES`] more for each region. Root and the server's own user may
    /// unregister those of all owners, and so may each client if all share one namespace.
    pub(crate) fn reachable_bytes(&self) -> u64 {
        let regions = &self.inner.regions;
        let counts = match self.access() {
            RegionAccess::Shared | RegionAccess::Operator => regions.counts(),
            RegionAccess::Own(peer) => regions.of(peer).counts(),
        };
        counts.mapped_bytes.saturating_add(counts.mapped.saturating_mul(REGION_WORK_BYTES))
    }

    /// Calls `query` with the registry of the client's own regions, for an inference that reads or writes a region of that name.
    pub(crate) fn in_named_region<T>(
        &self,
        name: &str,
        query: impl FnOnce(&Registry) -> Result<T, ShmError>,
    ) -> Result<T, Status> {
        let regions = &self.inner.regions;
        match self.access() {
            RegionAccess::Shared => query(regions.operator()).map_err(of_shm),
            RegionAccess::Operator => query(regions.operator()).map_err(|error| of_another(regions, name, error)),
            RegionAccess::Own(peer) => query(&regions.of(peer)).map_err(|error| not_own(peer, error)),
        }
    }

    /// Calls `query` with the registry that a region's name refers to, for status and unregistering. `query` fails if the registry has no region of that
    /// name.
    pub(crate) fn in_regions<T>(&self, query: impl Fn(&Registry) -> Result<T, ShmError>) -> Result<T, Status> {
        let regions = &self.inner.regions;
        match self.access() {
            RegionAccess::Shared => query(regions.operator()).map_err(of_shm),
            RegionAccess::Operator => {
                query(regions.operator()).or_else(|error| in_others(regions, error, query)).map_err(of_shm)
            }
            RegionAccess::Own(peer) => query(&regions.of(peer)).map_err(|error| not_own(peer, error)),
        }
    }

    /// Calls `query` with each registry whose regions the client may list.
    pub(crate) fn in_each_region<T>(
        &self,
        query: impl Fn(&Registry) -> Result<Vec<T>, ShmError>,
    ) -> Result<Vec<T>, Status> {
        let regions = &self.inner.regions;
        let mut found = match self.access() {
            RegionAccess::Shared | RegionAccess::Operator => query(regions.operator()),
            RegionAccess::Own(peer) => query(&regions.of(peer)),
        }
        .map_err(of_shm)?;
        if self.access() == RegionAccess::Operator {
            for registry in regions.owned().values() {
                found.extend(query(registry).map_err(of_shm)?);
            }
        }
        Ok(found)
    }

    fn access(&self) -> RegionAccess<'_> {
        self.inner.options.regions.access_of(self.peer())
    }
}

/// The error for a client that can use only its own regions.
fn not_own(peer: &Peer, error: ShmError) -> Status {
    let is_missing = is_missing(&error);
    let mut status = of_shm(error);
    if is_missing {
        status.message +=
            &format!("; {peer} reaches the regions that it registered itself, or all of them with --shm-scope=all");
    }
    status
}

/// The error for an inference of the operator. It names the owner of a region of that name: the operator may list all regions.
fn of_another(regions: &Registries<Peer>, name: &str, error: ShmError) -> Status {
    let is_missing = is_missing(&error);
    let mut status = of_shm(error);
    if is_missing && let Some((peer, _)) = regions.owned().iter().find(|(_, owned)| owned.locate(name, 0, 0).is_ok()) {
        status.message += &format!(
            "; {peer} registered a region of that name, and only requests of {peer} reach it: register its object yourself, \
             or start the server with --shm-scope=all"
        );
    }
    status
}

/// If the operator has no region of that name, the first owner that has one.
fn in_others<T>(
    regions: &Registries<Peer>,
    error: ShmError,
    query: impl Fn(&Registry) -> Result<T, ShmError>,
) -> Result<T, ShmError> {
    if !is_missing(&error) {
        return Err(error);
    }
    let owned = regions.owned();
    let found = owned.values().map(|registry| query(registry)).find(|found| !found.as_ref().is_err_and(is_missing));
    found.unwrap_or(Err(error))
}

/// Whether the error says that there is no region of the name.
fn is_missing(error: &ShmError) -> bool {
    matches!(error, ShmError::RegionUnknown { .. } | ShmError::StatusUnknown { .. })
}

#[cfg(test)]
mod tests {
    use nerite_engine::{Engine, Runtimes};
    use nerite_shm::OwnedRegion;

    use super::*;
    use crate::region_rules::{RegionRules, ShmScope, ShmTrust};
    use crate::{LogSwitches, Options};

    fn api(folder: &std::path::Path, scope: ShmScope) -> Api {
        let engine = Engine::for_tests(folder, Runtimes::default()).expect("no models");
        let rules = RegionRules { trust: ShmTrust::Any, scope, ..RegionRules::default() };
        let options = Options { regions: rules, ..Options::default() };
        Api::new(engine, Registries::new(true, None), LogSwitches::silent(), options)
    }

    #[test]
    fn the_operator_lists_and_ends_regions_of_others_and_its_inferences_reach_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let operator = api(folder.path(), ShmScope::Own);
        let object = OwnedRegion::create(&format!("/nerite-owners-{}-own", std::process::id()), 4096).expect("memory");
        let other = operator.for_peer(Peer::User { uid: 4_000_000_001 });
        assert_eq!(other.register_system("a", object.key(), 0, 4096), Ok(()));
        let found = |api: &Api| api.in_named_region("a", |own| own.locate("a", 0, 64).map(drop)).map_err(|e| e.message);
        assert_eq!(found(&other), Ok(()));
        let refused = found(&operator).expect_err("the region is another user's");
        assert!(refused.contains("; user 4000000001 registered a region of that name"), "{refused}");
        assert_eq!(operator.system_status("a").map(|found| found.len()), Ok(1));
        assert_eq!(operator.register_system("a", object.key(), 0, 4096), Ok(()));
        assert_eq!(found(&operator), Ok(()));
        assert_eq!([operator.unregister_system("a"), operator.unregister_system("a")], [Ok(()), Ok(())]);
        let refused = found(&operator).expect_err("both are unregistered");
        assert!(refused.ends_with("register it before the request"), "{refused}");
    }

    #[test]
    fn with_one_namespace_for_all_each_client_pays_for_its_own_regions() {
        let folder = tempfile::tempdir().expect("a folder");
        let api = api(folder.path(), ShmScope::All);
        let object = OwnedRegion::create(&format!("/nerite-owners-{}-all", std::process::id()), 4096).expect("memory");
        let (one, other) = (Peer::User { uid: 4_000_000_001 }, Peer::User { uid: 4_000_000_002 });
        let register = |peer: &Peer, name| api.for_peer(peer.clone()).register_system(name, object.key(), 0, 4096);
        assert_eq!([register(&one, "a"), register(&one, "b"), register(&other, "c")], [Ok(()), Ok(()), Ok(())]);
        assert!(register(&other, "a").is_err(), "the names are common");
        let regions = &api.inner.regions;
        let mapped = |peer: &Peer| regions.of(peer).counts().mapped;
        assert_eq!((mapped(&one), mapped(&other), regions.operator().counts().mapped), (2, 1, 0));
        assert_eq!(api.for_peer(other.clone()).reachable_bytes(), 3 * (4096 + REGION_WORK_BYTES));
        assert_eq!(api.for_peer(other.clone()).unregister_system(""), Ok(()));
        assert_eq!((mapped(&one), mapped(&other)), (0, 0));
    }
}
