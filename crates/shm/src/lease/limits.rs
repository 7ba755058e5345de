//! How much may clients borrow?

use crate::limits::{REGIONS_MAX, WATCHED_MAX};

/// The smallest lease: a page.
pub const LEASE_BYTES_MIN: usize = 4096;

/// Leases that exist at one time, idle ones included. Each is one mapping of the 65,530 a process has.
pub const LEASES_MAX: usize = 8192;

/// Leases that one session may have, idle ones included.
pub const LEASES_PER_SESSION_MAX: usize = 1024;

/// Tags that one session may have abandoned lately: a request that arrives later than so many others have been given up places
/// its outputs after all, and the session gets them back at its end.
pub(super) const ABANDONED_MAX: usize = 1024;

/// The largest lease there can be: what the largest size class still fits in a machine's word.
pub(super) const LEASE_BYTES_MAX: usize = 1 << 46;

/// An idle lease is lent for a smaller need only if it is at most this many times as large: a gigabyte lent for a page
/// would be missing, and made anew, when the gigabyte is needed again.
pub(super) const WASTE_MAX: usize = 4;

/// A huge page.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Parts of the table from names to leases, each behind its own lock.
pub(super) const INDEX_SHARDS: usize = if cfg!(shuttle) { 1 } else { 16 };

const _: () = assert!(REGIONS_MAX + LEASES_MAX < 65_530 - 8192, "the allocator needs mappings too");
const _: () = assert!(REGIONS_MAX + LEASES_MAX <= WATCHED_MAX);
const _: () = assert!(LEASES_PER_SESSION_MAX < LEASES_MAX, "one session must not be able to take all");
const _: () = assert!(INDEX_SHARDS.is_power_of_two() && INDEX_SHARDS <= 256);
