//! How much may clients ask of the registry?

/// Regions mapped at one time, those that are leaving included. Linux gives a process 65,530 mappings by default and the
/// allocator needs some of them: a client that registers without end is refused long before the server cannot allocate.
pub const REGIONS_MAX: usize = 32_768;

/// Mappings that the guard watches at one time: regions of all clients and of sessions, and leases. Nobody's flood takes the
/// places of others, because each of them has a bound of its own, and this is more than their sum.
pub const WATCHED_MAX: usize = nerite_guard::WATCHED_MAX;

/// Bytes of address space that regions may cover together: half of the 128 TiB a process has. Objects may be sparse, so
/// this is not bounded by the host's memory.
pub const MAPPED_BYTES_MAX: u64 = 1 << 46;

/// Bytes of a region's name. Triton has no bound; names are kept and echoed, so here there is one.
pub const NAME_BYTES_MAX: usize = 4096;

/// Bytes of a key after its leading slashes: a file name's bound on Linux.
pub const KEY_BYTES_MAX: usize = 255;

/// Parts of the names table. A change copies one part: 10,000 regions make parts of 40, and a lookup never sees a table
/// larger than its part.
pub const SHARDS: usize = if cfg!(shuttle) { 1 } else { 256 };

/// Objects counted for the text of an error; past that it says "or more". A refused call must stay cheap.
pub const OBJECTS_COUNTED_MAX: usize = 1000;

/// Memory without pages of its own that is page-locked at the most: a sparse object, a fresh lease. Locking gives it all its
/// pages, so what is larger would hold its registration up, and the thread that serves it, for as long as a client likes.
pub const LOCKED_EMPTY_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(usize::BITS == 64, "offsets and sizes are u64 on the wire and usize here");
const _: () = assert!(SHARDS.is_power_of_two());
const _: () = assert!(REGIONS_MAX < WATCHED_MAX && WATCHED_MAX < 65_530);
const _: () = assert!(MAPPED_BYTES_MAX <= i64::MAX as u64);
