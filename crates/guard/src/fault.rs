//! What happens on a thread that touched memory which is not there?
//!
//! Everything below [`on_fault`] runs inside a signal handler: no allocation, no lock, no thread-local value, only atomics
//! and system calls.

use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::signal::{Chain, levels};
use crate::{Errno, TABLE};

static CHAIN: Chain = Chain::new(libc::SIGBUS, levels!(on_fault), mends, comes_again);

static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// Linux's number for a memory error of the hardware, found by the access.
const BUS_MCEERR_AR: c_int = 4;

/// Sees to it that a SIGBUS comes to us first.
pub(crate) fn install() -> Result<(), Errno> {
    // SAFETY: sysconf reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(usize::try_from(page).map_err(|_| Errno(libc::EINVAL))?.max(1), Ordering::Relaxed);
    CHAIN.install()
}

/// The system's page size, once a handler is installed.
pub(crate) fn page_bytes() -> usize {
    // Never 0, and the compiler sees it: a division by it cannot panic.
    PAGE_BYTES.load(Ordering::Relaxed).max(1)
}

extern "C" fn on_fault<const LEVEL: usize>(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
    CHAIN.handle(LEVEL, info, context);
}

/// Whether the fault lay in a watched range, which then can be touched again.
fn mends(info: *const siginfo_t, _: *mut c_void) -> bool {
    // SAFETY: with SA_SIGINFO the kernel hands over a siginfo_t that lives as long as the handler runs.
    if unsafe { (*info).si_code } != libc::BUS_ADRERR {
        // Sent by a process, or broken hardware: no address to look for, or none that a page would mend.
        return false;
    }
    // SAFETY: as above.
    let info = unsafe { &*info };
    // SAFETY: with BUS_ADRERR the kernel has written the fault's address.
    let address = unsafe { info.si_addr() }.addr();
    let Some((entry, start, end)) = TABLE.find(address) else { return false };
    // First, so that nobody sees the new zeros and finds the region whole afterwards.
    entry.lose(address - start);
    // All of it and not only what is missing: a part would split the mapping in two, and `WATCHED_MAX` mappings split
    // would be more than Linux gives a process. Nothing is lost by it, since whoever uses the region fails now.
    // Where even this cannot be had (strict overcommit), one page lets the access at hand go on.
    let first = address - address % page_bytes();
    cover(start, end - start) || cover(first, page_bytes())
}

/// Puts zeros that belong to this process alone over `len` bytes from `start` on.
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

/// Whether the signal of this code stands for an access, which is made again when the handler returns. The others were sent.
fn comes_again(code: c_int) -> bool {
    matches!(code, libc::BUS_ADRALN | libc::BUS_ADRERR | libc::BUS_OBJERR | BUS_MCEERR_AR)
}
