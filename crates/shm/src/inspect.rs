//! What can an operator be told about a region, beyond what its status says?

use std::sync::Arc;

use crate::loss::ObjectNow;
use crate::record::Record;
use crate::region::Region;
use crate::registry::Registry;

/// A region at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionState {
    /// What status shows.
    pub record: Arc<Record>,
    /// Whether it is registered; if not, it goes with its last user.
    pub registered: bool,
    /// Buffers and Slots over it.
    pub users: usize,
    /// Offset of the byte that was touched and had no memory.
    pub lost_at: Option<usize>,
    /// Bytes its object had when it was registered.
    pub object_bytes: u64,
    /// What its object is now.
    pub object_now: ObjectNow,
}

impl Registry {
    /// Up to `count` regions whose names follow `after`, by name. Each costs a look at its object.
    pub fn inspect(&self, after: Option<&str>, count: usize) -> Vec<RegionState> {
        let found = self.names.page(after, count);
        found.iter().map(|(region, registered)| RegionState::of(region, *registered)).collect()
    }

    /// The region of that name, registered or still in use.
    pub fn inspect_one(&self, name: &str) -> Option<RegionState> {
        let (region, registered) = self.names.held(name)?;
        Some(RegionState::of(&region, registered))
    }
}

impl RegionState {
    fn of(region: &Arc<Region>, registered: bool) -> RegionState {
        let mapping = region.mapping();
        RegionState {
            record: Arc::clone(region.record()),
            registered,
            // The registration and whoever looks are no users.
            users: Arc::strong_count(region).saturating_sub(1 + usize::from(registered)),
            lost_at: mapping.lost_at(),
            object_bytes: mapping.object_bytes(),
            object_now: mapping.object_now(),
        }
    }
}
