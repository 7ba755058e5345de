//! Who registers a region, and who pays for it?

use std::sync::Arc;

use crate::mapped_counts::MappedCounts;
use crate::region::Attached;
use crate::rights::Rights;

/// A client that registers a region.
pub struct Registrant<'r> {
    /// Which objects the client could open itself.
    pub rights: &'r Rights,
    /// The owner who pays, if that is not the owner of the registry. Clients that share one namespace still have their own quotas, and their own threads that
    /// free their objects.
    pub payer: Option<Payer<'r>>,
    /// Dropped with the region, or when the registration is refused.
    pub attached: Attached,
}

/// The counts of an owner who pays for regions, by [`crate::Registry::payer`].
#[derive(Clone, Copy)]
pub struct Payer<'r> {
    pub(crate) system: &'r Arc<MappedCounts>,
    pub(crate) cuda: &'r Arc<MappedCounts>,
}
