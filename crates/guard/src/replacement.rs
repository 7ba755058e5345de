//! How is a mapping replaced by zeros within a millisecond?
//!
//! `mmap` over a mapping unmaps its pages first: 110 ms for 4 GiB that were used, and 250 ms for 480 GiB of which one byte of each 2 MiB was. It may be the
//! last mapping of the object, and then frees the object's pages as well, 280 ms for 1 GiB, also if only one page was mapped. The thread of the access may
//! serve connections, and no other thread can map memory meanwhile. So the pages of a mapping are moved first:
//!
//! ```text
//!   mapping                          elsewhere
//!   [pages, pages, pages]            [        room        ]
//!   [ mapped, no pages  ] ──────────► [pages, pages, pages]   1. mremap moves whole page tables: 0.2 ms for 480 GiB
//!   [       zeros       ]            [pages, pages, pages]   2. mmap over the mapping has nothing to unmap
//!                                                            3. whoever unmaps the mapping later unmaps them in pieces
//! ```
//!
//! The mapping stays in its place in step 1 (`MREMAP_DONTUNMAP`). So other threads that use it meanwhile find the object's pages, or fault and come here. The
//! two addresses are equal modulo 1 GiB, so that the kernel can move a page table that stands for 1 GiB as a whole. Everything below runs inside a signal
//! handler, except [`unmap_moved`].

use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::table::{Entry, Moved};
use crate::{MOVED_MAX, unmapping};

/// Smaller mappings are moved as well, because each may be the last one of a large object. To unmap one takes 9 to 14 ms at most. Each moved one is a further
/// mapping of the process, of which Linux allows 65,530 by default. So small ones may take a part of the places only.
const LARGE_BYTES_MIN: usize = 256 << 20;

/// How many ranges may be mapped elsewhere if a small one is moved.
const MOVED_IF_SMALL_MAX: usize = MOVED_MAX / 2;

/// The kernel moves page tables of this size as a whole if both addresses are equal modulo it.
const ALIGN_BYTES: usize = 1 << 30;

/// How many ranges are mapped elsewhere now.
static MOVED: AtomicUsize = AtomicUsize::new(0);

/// Replaces the range of `entry`, `len` bytes from `start` on, after an access had no memory to the page of `page_bytes` bytes at `page`. Returns false if the
/// access cannot be repeated.
///
/// The whole mapping is replaced. Replacing a part would split it, and `WATCHED_MAX` split mappings are more than Linux allows. No data that is still needed is
/// lost, because every request that uses the region fails now. If the system has no memory for that (strict overcommit), one page lets the current access
/// continue.
pub(crate) fn replace(entry: &Entry, start: usize, len: usize, page: usize, page_bytes: usize) -> bool {
    if !entry.begin_replacement() {
        // Another thread replaces the range, or has replaced it since this one faulted. The access is repeated. If it is too early, it faults again.
        // SAFETY: a bare system call without arguments.
        unsafe { libc::sched_yield() };
        return true;
    }
    if !entry.has_moved()
        && let Some(at) = move_away(start, len)
    {
        entry.set_moved(at);
    }
    let is_whole = cover(start, len);
    entry.end_replacement(is_whole);
    is_whole || cover(page, page_bytes)
}

/// Unmaps what was moved out of a range that is watched no more.
pub(crate) fn unmap_moved(moved: Moved) {
    let start = ptr::with_exposed_provenance_mut(moved.start);
    // SAFETY: `move_away` made exactly this mapping, nobody was told its address, and the table returned it once. munmap fails only if the process has too many
    // mappings. The range then stays mapped and unused.
    let _ = unsafe { unmapping::unmap_in_pieces(start, moved.len) };
    MOVED.fetch_sub(1, Ordering::AcqRel);
}

/// Moves the pages of `len` bytes from `start` on to another address, which is returned. The range stays mapped. `None` if there is no room, too many were
/// moved, or the kernel cannot do it (before Linux 5.13). Then nothing has changed.
fn move_away(start: usize, len: usize) -> Option<usize> {
    let most = if len < LARGE_BYTES_MIN { MOVED_IF_SMALL_MAX } else { MOVED_MAX };
    let more = |moved| (moved < most).then_some(moved + 1);
    MOVED.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
    let moved = free_address(start, len).and_then(|to| move_to(start, len, to));
    if moved.is_none() {
        MOVED.fetch_sub(1, Ordering::AcqRel);
    }
    moved
}

/// An address that equals `start` modulo [`ALIGN_BYTES`], and at which `len` bytes are free now.
fn free_address(start: usize, len: usize) -> Option<usize> {
    let all = len.checked_add(ALIGN_BYTES)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping at an address of the kernel's choice (null, no MAP_FIXED) replaces no memory of anybody's.
    let room = unsafe { libc::mmap(ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0) };
    if room == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping that was just made, whose address nobody else knows.
    unsafe { libc::munmap(room, all) };
    room.addr().checked_add(start.wrapping_sub(room.addr()) % ALIGN_BYTES)
}

/// Moves pages to that address. It is a hint: if another thread maps memory there first, the kernel chooses another address, and may have to move each page.
/// To insist on the address (`MREMAP_FIXED`) would unmap what that thread has mapped.
fn move_to(start: usize, len: usize, to: usize) -> Option<usize> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: `start` is watched, and its watcher allows to replace it, as for `cover`. It stays mapped, and the pages go to where nothing was. A bare system call,
    // which a signal handler may make. The function `mremap` of older C libraries would not pass the address on.
    let at = unsafe { libc::syscall(libc::SYS_mremap, start, len, len, flags, to) };
    usize::try_from(at).ok()
}

/// Replaces `len` bytes from `start` on by private zero pages.
fn cover(start: usize, len: usize) -> bool {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
    );
    let at = ptr::with_exposed_provenance_mut(start);
    // SAFETY: the range is within one that was entered by `watch`, whose caller promised that this is a mapping of a peer's
    // memory which may be replaced while the Watch lives, or by `library::map`, which made it so. It still is there: the
    // thread that was interrupted is using the memory. mmap is a bare system call, which a signal handler may make.
    unsafe { libc::mmap(at, len, prot, flags, -1, 0) != libc::MAP_FAILED }
}
