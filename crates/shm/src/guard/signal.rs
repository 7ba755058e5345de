//! What happens on a thread that touched memory which is not there?
//!
//! Everything below [`on_fault`] runs inside a signal handler: no allocation, no lock, no thread-local value, only atomics
//! and system calls.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use super::TABLE;
use crate::posix::page_bytes;

/// The handler there was before ours.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// Linux's numbers for a memory error of the hardware: found by the access, and found by the way.
const BUS_MCEERR_AR: c_int = 4;

/// Installs the handler, once per process.
pub(super) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed =
        INSTALLED.get_or_init(|| try_install().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)));
    installed.map_err(io::Error::from_raw_os_error)
}

fn try_install() -> io::Result<()> {
    PAGE_BYTES.store(page_bytes(), Ordering::Relaxed);
    // Known before ours is in force: a fault of another thread may come in between.
    let previous = *PREVIOUS.get_or_init(|| exchange(None).unwrap_or(default_action()));
    let mut action = default_action();
    action.sa_sigaction = on_fault as *const () as usize;
    // On the alternative stack where a thread has one, as the handler it follows, whose mask holds as well.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action.sa_mask = previous.sa_mask;
    exchange(Some(&action)).map(drop)
}

/// The action for SIGBUS; with `new` that one replaces it.
fn exchange(new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::<libc::sigaction>::uninit();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a reference that outlives the call, and `old` is writable for one sigaction.
    if unsafe { libc::sigaction(libc::SIGBUS, new, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction returned 0, so it has filled the struct.
    Ok(unsafe { old.assume_init() })
}

fn default_action() -> libc::sigaction {
    // SAFETY: all fields are integers, sets of bits or an optional function: zeros are a value, and mean SIG_DFL.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: libc's errno of this thread; the address is valid as long as the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    if !mends(info) {
        pass_on(signal, info, context);
    }
    // The code that was interrupted may be about to read its own errno.
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

/// Whether the fault lay in a watched range, which then can be touched again.
fn mends(info: *const siginfo_t) -> bool {
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
    // All of it and not only what is missing: a part would split the mapping in two, and `limits::REGIONS_MAX` mappings
    // split would be all that Linux gives a process. Nothing is lost by it, since whoever uses the region fails now.
    // Where even this cannot be had (strict overcommit), one page lets the access at hand go on.
    let page = PAGE_BYTES.load(Ordering::Relaxed);
    let first = address - address % page;
    cover(start, end - start) || cover(first, page)
}

/// Puts zeros that belong to this process alone over `len` bytes from `start` on.
fn cover(start: usize, len: usize) -> bool {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
    );
    let at = ptr::with_exposed_provenance_mut(start);
    // SAFETY: the range is within one that `watch` was given, and its caller promised that this is a mapping of a peer's
    // memory which may be replaced while the Watch lives. It lives: the thread that was interrupted is using the memory.
    // mmap is a bare system call, which a signal handler may make.
    unsafe { libc::mmap(at, len, prot, flags, -1, 0) != libc::MAP_FAILED }
}

/// Lets a signal that is none of ours do what it would have done without us.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(previous) = PREVIOUS.get() else { return take_default_action(signal, info) };
    match previous.sa_sigaction {
        libc::SIG_DFL => take_default_action(signal, info),
        // Only a sent signal can be ignored; a fault would come again for ever.
        libc::SIG_IGN if !comes_again(info) => {}
        libc::SIG_IGN => take_default_action(signal, info),
        handler => {
            call(handler, previous.sa_flags, signal, info, context);
            // Rust's own handler, for one, restores the default and returns, in the belief that the fault comes again.
            let now = exchange(None).map_or(libc::SIG_DFL, |action| action.sa_sigaction);
            if now == libc::SIG_DFL {
                take_default_action(signal, info);
            }
        }
    }
}

fn call(handler: usize, flags: c_int, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let handler = ptr::with_exposed_provenance::<()>(handler);
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: an action that is neither SIG_DFL nor SIG_IGN is a function, with SA_SIGINFO one of three parameters.
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: as above; without SA_SIGINFO it has one parameter.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
}

/// Ends the process by the signal as soon as the handler has returned.
fn take_default_action(signal: c_int, info: *const siginfo_t) {
    // SIGBUS is a signal whose action can be set, so this cannot fail; if it did, the next fault would bring us here again.
    let _ = exchange(Some(&default_action()));
    if !comes_again(info) {
        // SAFETY: raise has no obligation. The signal is blocked while its handler runs and arrives right after.
        unsafe { libc::raise(signal) };
    }
}

/// Whether the signal stands for an access, which is made again when the handler returns. The others were sent.
fn comes_again(info: *const siginfo_t) -> bool {
    // SAFETY: with SA_SIGINFO the kernel hands over a siginfo_t that lives as long as the handler runs.
    let code = unsafe { (*info).si_code };
    matches!(code, libc::BUS_ADRALN | libc::BUS_ADRERR | libc::BUS_OBJERR | BUS_MCEERR_AR)
}
