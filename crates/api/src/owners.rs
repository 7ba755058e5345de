//! Whose regions can a client use, and which objects may it register?
//!
//! A region belongs to the user who registered it, or to the address if the user is unknown. A client can use, list, replace and unregister only its
//! own regions. Root and the user who runs the server share the operator's regions. They can use regions of other users by name if they have no
//! region with that name.

use nerite_request::{Peer, Status};
use nerite_shm::{Registries, Registry, Rights, ShmError};

use crate::Api;
use crate::errors::of_shm;
use crate::region_rules::RegionAccess;

impl Api {
    /// The rights of the client to the object with that key.
    pub(crate) fn rights(&self, key: &str) -> Rights {
        self.inner.options.regions.rights(self.peer(), key)
    }

    /// Calls `ask` with the registry of the client's own regions, which registrations and calls for all regions use.
    pub(crate) fn in_own_regions<T>(&self, query: impl FnOnce(&Registry) -> Result<T, ShmError>) -> Result<T, Status> {
        let regions = &self.inner.regions;
        match self.access() {
            RegionAccess::Shared | RegionAccess::Operator => query(regions.operator()),
            RegionAccess::Own(peer) => regions.open(peer).and_then(|own| query(&own)),
        }
        .map_err(of_shm)
    }

    /// The bytes of all regions that the client may unregister. Root and the server's own user may unregister those of all owners.
    pub(crate) fn reachable_bytes(&self) -> u64 {
        let regions = &self.inner.regions;
        match self.access() {
            RegionAccess::Shared => regions.operator().counts().mapped_bytes,
            RegionAccess::Operator => regions.counts().mapped_bytes,
            RegionAccess::Own(peer) => regions.of(peer).counts().mapped_bytes,
        }
    }

    /// Calls `ask` with the registry that a region's name refers to. `ask` fails if the registry has no region of that name.
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

    /// Calls `ask` with each registry whose regions the client may list.
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
