//! What can an operator learn about a region beyond its status?

use std::sync::Arc;

use crate::loss::ObjectNow;
use crate::record::Record;
use crate::region::Region;
use crate::registry::Registry;

/// A region at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionState {
    /// The region as status shows it.
    pub record: Arc<Record>,
    /// Whether it is registered. If not, it is unmapped after its last user is gone.
    pub registered: bool,
    /// Buffers and Slots over it.
    pub users: usize,
    /// The offset of the first accessed byte that had no memory.
    pub lost_at: Option<usize>,
    /// Bytes its object had when it was registered.
    pub object_bytes: u64,
    /// The current state of its object.
    pub object_now: ObjectNow,
}

impl Registry {
    /// Up to `count` regions whose names follow `after`, by name. This looks up the present state of each region's object.
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
            // The references of the registration and of this function do not count.
            users: Arc::strong_count(region).saturating_sub(1 + usize::from(registered)),
            lost_at: mapping.lost_at(),
            object_bytes: mapping.object_bytes(),
            object_now: mapping.object_now(),
        }
    }
}
