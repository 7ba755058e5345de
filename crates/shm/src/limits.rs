//! Which limits does the registry have?

use std::time::Duration;

/// Regions mapped at one time, including unregistered ones in use. Linux allows a process 65,530 mappings by default, and the allocator needs some of
/// them. A client that registers without end is refused long before allocations fail.
pub const REGIONS_MAX: usize = 32_768;

/// Regions that one owner may have mapped at one time. An owner is a user, or an address whose users are not known. Three owners cannot use up all
/// regions.
pub const REGIONS_PER_OWNER_MAX: usize = 12_288;

/// The last regions are reserved for owners with fewer than [`REGIONS_FEW`].
pub const REGIONS_RESERVED: usize = 8192;

/// An owner with fewer regions may use the reserve.
pub const REGIONS_FEW: usize = 256;

/// Owners besides the operator that may have regions at one time.
pub const OWNERS_MAX: usize = 1024;

/// Mappings that the guard can watch at one time: regions of all clients, regions of sessions, and leases. Each of these has its own limit, and this is
/// more than their sum, so none can crowd out the others.
pub const WATCHED_MAX: usize = nerite_guard::WATCHED_MAX;

/// Bytes of address space of all regions together on any host: half of the 128 TiB of a process.
pub const MAPPED_BYTES_MAX: u64 = 1 << 46;

/// Bytes of address space of all regions together, as a multiple of the memory that the process may have. Objects may be sparse, so their address space may
/// exceed the memory. The limit is for page tables: an access to one byte of 2 MiB makes the kernel keep one 4 KiB page table until the region is unmapped.
/// So the page tables of regions take up to 1/512 of their bytes, which is 1/16 of the memory with this number.
pub const MAPPED_TIMES_MEMORY: u64 = 32;

/// Bytes of address space of all regions together, if the process may have `memory` bytes.
pub const fn mapped_bytes_max(memory: u64) -> u64 {
    let times_memory = memory.saturating_mul(MAPPED_TIMES_MEMORY);
    if times_memory < MAPPED_BYTES_MAX { times_memory } else { MAPPED_BYTES_MAX }
}

/// The part of `all` bytes that the regions of one owner may have: 20 times the memory on most hosts.
pub const fn mapped_bytes_per_owner_max(all: u64) -> u64 {
    all / 8 * 5
}

/// The last part of `all` bytes, which is reserved for owners whose regions have at most [`mapped_bytes_few`].
pub(crate) const fn mapped_bytes_reserved(all: u64) -> u64 {
    all / 8
}

/// An owner whose regions have at most this part of `all` bytes may use the reserve. On most hosts this is half of the memory, which is also the default
/// size of `/dev/shm`.
pub(crate) const fn mapped_bytes_few(all: u64) -> u64 {
    all / 64
}

/// Bytes of a region's name. Triton has no limit. Names are stored and echoed, so nerite has one.
pub const NAME_BYTES_MAX: usize = 1024;

/// Bytes of a key after its leading slashes: the limit of a file name on Linux.
pub const KEY_BYTES_MAX: usize = 255;

/// Shards of the names table. A change copies one shard, which has about 40 entries with 10,000 regions. A lookup searches one shard.
pub const SHARDS: usize = if cfg!(shuttle) { 1 } else { 256 };

/// The most objects that are counted for an error text, because a refused call must stay cheap. If there are more, the text says "or more".
pub const OBJECTS_COUNTED_MAX: usize = 1000;

/// The most bytes of memory without allocated pages (a sparse object, a fresh lease) that are page-locked. Locking allocates all pages, so a larger
/// object would keep its registration, and the thread that serves it, busy for as long as a client chooses.
pub const LOCKED_EMPTY_BYTES_MAX: usize = 64 << 20;

/// The most bytes of a mapping that the thread which drops its last user unmaps.
pub const UNMAPPED_HERE_BYTES_MAX: usize = 64 << 10;

/// A poll, or a call that registers or unregisters regions, that has taken longer than this passes on small mappings as well. A request has up to 4,096
/// tensors, and may be the last user of as many leases. Unmapping 4,096 leases of 64 KiB takes 93 ms. A smaller [`UNMAPPED_HERE_BYTES_MAX`] would help
/// little: leases of 16 KiB take about as long, because most of the time is spent on the system calls for each lease.
pub(crate) const UNMAPPED_HERE_POLL_TIME_MAX: Duration = Duration::from_millis(5);

/// The most pages, in bytes, that a thread frees with the last mapping or descriptor of a client's object: about 1 ms.
pub const FREED_HERE_BYTES_MAX: u64 = 4 << 20;

/// The threads that free clients' objects at a time, one for each owner.
pub const FREEING_THREADS_MAX: usize = 64;

/// The most objects of one owner that may be open at one time: objects that are being registered, and refused objects that take long to close. Each needs a
/// descriptor.
pub const OBJECTS_OPEN_MAX: usize = 64;

/// The most bytes of leases that are dropped together and unmapped by the thread that drops them.
pub const UNMAPPED_HERE_TOGETHER_BYTES_MAX: u64 = 16 << 20;

const _: () = assert!(usize::BITS == 64, "offsets and sizes are u64 on the wire and usize here");
const _: () = assert!(SHARDS.is_power_of_two());
const _: () = assert!(REGIONS_MAX < WATCHED_MAX && WATCHED_MAX < 65_530);
const _: () = assert!(MAPPED_BYTES_MAX <= i64::MAX as u64);
const _: () = assert!(REGIONS_PER_OWNER_MAX < REGIONS_MAX - REGIONS_RESERVED);
const _: () = assert!(REGIONS_FEW * 32 <= REGIONS_RESERVED, "32 owners find places where others took all they could");
