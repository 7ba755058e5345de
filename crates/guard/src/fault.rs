//! What happens on a thread that accessed missing memory?
//!
//! Everything below [`on_fault`] runs inside a signal handler: no allocation, no lock, no thread-local value, only atomics
//! and system calls.

use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::signal::{Chain, levels};
use crate::{Errno, TABLE, replacement};

static CHAIN: Chain = Chain::new(libc::SIGBUS, levels!(on_fault), handle_fault, comes_again);

static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// The number of faults in watched ranges so far.
pub(crate) static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// Linux's code for a hardware memory error at an access.
const BUS_MCEERR_AR: c_int = 4;

/// Makes the kernel call this handler first for a SIGBUS.
pub(crate) fn install() -> Result<(), Errno> {
    // SAFETY: sysconf reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(usize::try_from(page).map_err(|_| Errno(libc::EINVAL))?.max(1), Ordering::Relaxed);
    CHAIN.install()
}

/// The system's page size. Known once a handler is installed.
pub(crate) fn page_bytes() -> usize {
    // The compiler can see that it is never 0, so a division by it cannot panic.
    PAGE_BYTES.load(Ordering::Relaxed).max(1)
}

extern "C" fn on_fault<const LEVEL: usize>(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
    CHAIN.handle(LEVEL, info, context);
}

/// Handles a fault in a watched range, so that the access can be repeated. Returns false if the fault is elsewhere.
fn handle_fault(info: *const siginfo_t, _: *mut c_void) -> bool {
    // SAFETY: with SA_SIGINFO the kernel hands over a siginfo_t that lives as long as the handler runs.
    if unsafe { (*info).si_code } != libc::BUS_ADRERR {
        // A process sent the signal, so there is no address. Or it is a hardware error, and a new page would not help.
        return false;
    }
    // SAFETY: as above.
    let info = unsafe { &*info };
    // SAFETY: with BUS_ADRERR the kernel has written the fault's address.
    let address = unsafe { info.si_addr() }.addr();
    let Some((entry, start, end)) = TABLE.find(address) else { return false };
    // Before the pages are replaced: no reader may see the new zeros and then find the region intact.
    entry.lose(address - start);
    FAULTS.fetch_add(1, Ordering::AcqRel);
    replacement::replace(entry, start, end - start, address - address % page_bytes(), page_bytes())
}

/// Whether a signal with this code was caused by an access, which is repeated when the handler returns. Others were sent by a process.
fn comes_again(code: c_int) -> bool {
    matches!(code, libc::BUS_ADRALN | libc::BUS_ADRERR | libc::BUS_OBJERR | BUS_MCEERR_AR)
}
