//! Which limits do leases have?

use crate::limits::{REGIONS_MAX, WATCHED_MAX};

/// The smallest lease: a page.
pub const LEASE_BYTES_MIN: usize = 4096;

/// The most leases at one time, including idle ones. Each is one of the 65,530 mappings that a process may have by default.
pub const LEASES_MAX: usize = 8192;

/// The most leases of one session, including idle ones.
pub const LEASES_PER_SESSION_MAX: usize = 1024;

/// The most abandoned tags that a session remembers. If the request of a forgotten tag still runs, its outputs are placed in leases, which are freed at the
/// end of the session.
pub(super) const ABANDONED_MAX: usize = 1024;

/// The largest lease: its size class must fit into a machine word.
pub(super) const LEASE_BYTES_MAX: usize = 1 << 46;

/// An idle lease is lent only for a need of at least its size divided by this. A lease of a gigabyte that is lent for a page would have to be created
/// again when a gigabyte is needed.
pub(super) const WASTE_MAX: usize = 4;

/// Size of a huge page.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Shards of the table from names to leases. Each has its own lock.
pub(super) const INDEX_SHARDS: usize = if cfg!(shuttle) { 1 } else { 16 };

const _: () = assert!(REGIONS_MAX + LEASES_MAX < 65_530 - 8192, "the allocator needs mappings too");
const _: () = assert!(REGIONS_MAX + LEASES_MAX <= WATCHED_MAX);
const _: () = assert!(LEASES_PER_SESSION_MAX < LEASES_MAX, "one session must not be able to take all");
const _: () = assert!(INDEX_SHARDS.is_power_of_two() && INDEX_SHARDS <= 256);
