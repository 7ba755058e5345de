//! Whose regions does a client reach, and which objects may it name?
//!
//! A region belongs to the user who registered it, or to the address where the user cannot be known. A client reaches its own
//! regions: it uses, lists, replaces and unregisters no others. Root and the user who runs the server share the operator's
//! regions, and reach those of others by name where they have none of that name themselves.

use nerite_request::{Peer, Status};
use nerite_shm::{Registries, Registry, Rights, ShmError};

use crate::Api;
use crate::errors::of_shm;
use crate::region_rules::RegionAccess;

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
