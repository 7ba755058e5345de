//! How much may clients ask of the registry?

/// Regions mapped at one time, those that are leaving included. Linux gives a process 65,530 mappings by default and the
/// allocator needs some of them: a client that registers without end is refused long before the server cannot allocate.
pub const REGIONS_MAX: usize = 32_768;

/// Regions that one owner may have mapped at one time: a user, or an address whose users are not known. Three of them cannot
/// take all places.
pub const REGIONS_PER_OWNER_MAX: usize = 12_288;

/// The last places are for owners who have fewer than [`REGIONS_FEW`] regions.
pub const REGIONS_RESERVED: usize = 8192;

/// An owner of fewer regions may take a reserved place.
pub const REGIONS_FEW: usize = 256;

/// Owners, besides the operator, who may have regions at one time.
pub const OWNERS_MAX: usize = 1024;

/// Mappings that the guard watches at one time: regions of all clients and of sessions, and leases. Nobody's flood takes the
/// places of others, because each of them has a bound of its own, and this is more than their sum.
pub const WATCHED_MAX: usize = nerite_guard::WATCHED_MAX;

/// Bytes of address space that regions may cover together: half of the 128 TiB a process has. Objects may be sparse, so
/// this is not bounded by the host's memory.
pub const MAPPED_BYTES_MAX: u64 = 1 << 46;

/// Bytes of address space that the regions of one owner may cover.
pub const MAPPED_BYTES_PER_OWNER_MAX: u64 = MAPPED_BYTES_MAX / 8 * 5;

/// The last bytes are for owners whose regions cover less than [`MAPPED_BYTES_FEW`].
pub const MAPPED_BYTES_RESERVED: u64 = MAPPED_BYTES_MAX / 8;

/// An owner whose regions cover less may take reserved bytes.
pub const MAPPED_BYTES_FEW: u64 = 64 << 30;

/// Bytes of a region's name. Triton has no bound; names are kept and echoed, so here there is one.
pub const NAME_BYTES_MAX: usize = 1024;

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
const _: () = assert!(REGIONS_PER_OWNER_MAX < REGIONS_MAX - REGIONS_RESERVED);
const _: () = assert!(REGIONS_FEW * 32 <= REGIONS_RESERVED, "32 owners find places where others took all they could");
