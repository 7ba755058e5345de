//! What happens on a thread that divides an integer by zero?
//!
//! ```text
//!  engine's thread ─► count_traps(&traps) ─► kernel: idiv ──SIGFPE──► handler, on the same thread
//!                            │                        ▲                 1. does the thread count traps? (crate::threads)
//!                            ▼                        │                 2. traps += 1
//!                     run ends: traps.count()         └──────────────── 3. quotient and remainder := 0, after the division
//! ```
//!
//! On x86-64, an integer division by zero, and of the smallest integer by -1, raises an exception of the processor. By default the process
//! ends by SIGFPE. C++ libraries divide by numbers from a request without a check, on threads of their own, between stack frames that cannot be
//! unwound. So the handler completes the instruction with zeros and counts it. The library continues, and the caller learns from the count that
//! the result is invalid. Zero does the least harm if the result is used as a size or an index.
//!
//! This applies only to threads inside [`count_traps`]. A division on another thread, and a SIGFPE that a process sent, go to the handler that was
//! installed before, or end the process as without the guard. Other processors (aarch64) return zero without an exception, so nothing is
//! counted there.
//!
//! Everything below [`on_division`] runs inside a signal handler: no allocation, no lock, no thread-local value, only atomics
//! and system calls.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::Errno;

/// The most threads that can count traps at one time. Linux allows a process 32,768 threads by default.
pub const COUNTING_MAX: usize = 32_768;

/// Integer divisions that had no result.
#[derive(Debug, Default)]
pub struct Traps(AtomicUsize);

impl Traps {
    /// A count of 0.
    pub const fn new() -> Traps {
        Traps(AtomicUsize::new(0))
    }

    /// How many there were, on all threads that count here. Divisions of a thread that was joined are included.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// Installs the handler, unless the kernel calls it first already. Must be called before [`count_traps`], and again after other code may have
/// set a handler.
pub fn install_traps() -> Result<(), Errno> {
    #[cfg(target_arch = "x86_64")]
    x86_64::CHAIN.install()?;
    Ok(())
}

/// Runs `work` on this thread. Integer divisions without a result give zero and are counted in `traps`. Threads that `work` starts are not
/// included. `ENOMEM` means that [`COUNTING_MAX`] threads count already; `work` was not run then.
pub fn count_traps<R>(traps: &Traps, work: impl FnOnce() -> R) -> Result<R, Errno> {
    #[cfg(target_arch = "x86_64")]
    return x86_64::count(traps, work);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = traps;
        Ok(work())
    }
}

/// Whether an integer division without a result raises an exception on this processor.
pub const DIVISIONS_TRAP: bool = cfg!(target_arch = "x86_64");

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::ptr;
    use core::sync::atomic::Ordering;

    use libc::{c_int, c_void, greg_t, siginfo_t, ucontext_t};

    use super::{COUNTING_MAX, Traps};
    use crate::Errno;
    use crate::division::{self, Width};
    use crate::signal::{Chain, errno_place, levels};
    use crate::threads::Threads;

    pub(super) static CHAIN: Chain = Chain::new(libc::SIGFPE, levels!(on_division), completes, comes_again);

    static THREADS: Threads<Traps, COUNTING_MAX> = Threads::new();

    /// Linux's codes of a SIGFPE that an instruction caused. Signals with other codes were sent by a process.
    const FPE_INTDIV: c_int = 1;
    const FPE_CONDTRAP: c_int = 15;

    pub(super) fn count<R>(traps: &Traps, work: impl FnOnce() -> R) -> Result<R, Errno> {
        /// Removes the thread from the table when this is dropped, so also if `work` panics.
        struct Counting(usize);
        impl Drop for Counting {
            fn drop(&mut self) {
                THREADS.leave(self.0);
            }
        }
        let _counting = Counting(THREADS.enter(this_thread(), traps).ok_or(Errno(libc::ENOMEM))?);
        Ok(work())
    }

    fn this_thread() -> usize {
        errno_place().addr()
    }

    extern "C" fn on_division<const LEVEL: usize>(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
        CHAIN.handle(LEVEL, info, context);
    }

    /// Completes a division on a thread that counts traps. False if it was something else.
    fn completes(info: *const siginfo_t, context: *mut c_void) -> bool {
        // SAFETY: with SA_SIGINFO the kernel hands over a siginfo_t that lives as long as the handler runs.
        if unsafe { (*info).si_code } != FPE_INTDIV {
            return false;
        }
        let Some(traps) = THREADS.find(this_thread()) else { return false };
        let context = context.cast::<ucontext_t>();
        // SAFETY: with SA_SIGINFO the kernel hands over a ucontext_t that lives as long as the handler runs, and nobody else has
        // a reference to it.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let Some(at) = registers.get(libc::REG_RIP as usize).copied() else { return false };
        let code = ptr::with_exposed_provenance::<u8>(at as usize);
        // SAFETY: the processor has just read the instruction at this address in order to execute it, and `decode` asks for no
        // byte after the end of one that can raise this exception.
        let byte = |offset: usize| unsafe { code.wrapping_add(offset).read_volatile() };
        let Some(division) = division::decode(byte) else { return false };
        // SAFETY: this thread entered it in `count`, which borrows the Traps and is still running: it is what was interrupted, and
        // it empties the entry before the borrow ends.
        let traps = unsafe { &*traps };
        traps.0.fetch_add(1, Ordering::AcqRel);
        let (quotient, remainder) = match division.width {
            // AX has both results: the quotient in its lowest byte, the remainder in its second.
            Width::Bits8 => (!0xffff, !0),
            Width::Bits16 => (!0xffff, !0xffff),
            Width::Bits32 | Width::Bits64 => (0, 0),
        };
        mask(registers, libc::REG_RAX, quotient);
        mask(registers, libc::REG_RDX, remainder);
        if let Some(next) = registers.get_mut(libc::REG_RIP as usize) {
            *next = at.wrapping_add(division.len as greg_t);
        }
        true
    }

    fn mask(registers: &mut [greg_t], name: c_int, kept: greg_t) {
        if let Some(register) = registers.get_mut(name as usize) {
            *register &= kept;
        }
    }

    fn comes_again(code: c_int) -> bool {
        (FPE_INTDIV..=FPE_CONDTRAP).contains(&code)
    }
}
