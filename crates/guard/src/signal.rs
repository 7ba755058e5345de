//! What happens on a thread that touched memory which is not there?
//!
//! ```text
//!  first install:   SIGBUS ─► handler 0 ─► who was there before (the default, Rust's, Python's faulthandler)
//!  X comes later:   SIGBUS ─► X ─► handler 0 ─► …
//!  next install:    SIGBUS ─► handler 1 ─► X ─► handler 0 ─► …
//! ```
//!
//! A handler that somebody sets later (Python's faulthandler may be enabled by a model) would meet the fault first, and end
//! the process. So installing is done again by each watch, and puts a handler of its own before that one. It is another each
//! time: with a single one, X would pass the signal on to whom it was passed on by, in a circle.
//!
//! Everything below [`on_fault`] runs inside a signal handler: no allocation, no lock, no thread-local value, only atomics
//! and system calls.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::{Errno, TABLE};

/// How often the guard can put itself before a handler that came later. A process that sets handlers for ever is told so
/// (`EBUSY`), and not left without a guard in silence.
const LEVELS: usize = 16;

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Ours, the earliest first.
static HANDLERS: [Handler; LEVELS] = [
    on_fault::<0>,
    on_fault::<1>,
    on_fault::<2>,
    on_fault::<3>,
    on_fault::<4>,
    on_fault::<5>,
    on_fault::<6>,
    on_fault::<7>,
    on_fault::<8>,
    on_fault::<9>,
    on_fault::<10>,
    on_fault::<11>,
    on_fault::<12>,
    on_fault::<13>,
    on_fault::<14>,
    on_fault::<15>,
];

/// Whom each of them passes on to what is none of ours.
static PREVIOUS: [Previous; LEVELS] = [const { Previous::new() }; LEVELS];

/// How many of them were installed.
static INSTALLED: AtomicUsize = AtomicUsize::new(0);

static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// Linux's number for a memory error of the hardware, found by the access.
const BUS_MCEERR_AR: c_int = 4;

/// An action that was set before one of ours.
struct Previous {
    handler: AtomicUsize,
    flags: AtomicI32,
}

impl Previous {
    const fn new() -> Previous {
        Previous { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0) }
    }
}

/// Installs a handler of ours, unless one is the first to be asked already.
pub(crate) fn install() -> Result<(), Errno> {
    if is_ours(&exchange(None)?) {
        return Ok(());
    }
    // Threads that come at the same time: each would put its own before the other's.
    static INSTALLING: AtomicBool = AtomicBool::new(false);
    while INSTALLING.swap(true, Ordering::Acquire) {
        // SAFETY: sched_yield has no obligation. A few system calls are waited for.
        unsafe { libc::sched_yield() };
    }
    let done = install_alone();
    INSTALLING.store(false, Ordering::Release);
    done
}

/// The same, where no other thread does so.
fn install_alone() -> Result<(), Errno> {
    let before = exchange(None)?;
    if is_ours(&before) {
        return Ok(());
    }
    // SAFETY: sysconf reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(usize::try_from(page).map_err(|_| Errno(libc::EINVAL))?.max(1), Ordering::Relaxed);
    let level = INSTALLED.load(Ordering::Relaxed);
    let (Some(handler), Some(previous)) = (HANDLERS.get(level), PREVIOUS.get(level)) else {
        return Err(Errno(libc::EBUSY));
    };
    // Known before ours is in force: a fault of another thread may come in between.
    previous.flags.store(before.sa_flags, Ordering::Relaxed);
    previous.handler.store(before.sa_sigaction, Ordering::Release);
    let mut action = default_action();
    action.sa_sigaction = *handler as *const () as usize;
    // On the alternative stack where a thread has one, as the handler it follows, whose mask holds as well.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action.sa_mask = before.sa_mask;
    exchange(Some(&action))?;
    INSTALLED.store(level + 1, Ordering::Release);
    Ok(())
}

fn is_ours(action: &libc::sigaction) -> bool {
    let installed = HANDLERS.iter().take(INSTALLED.load(Ordering::Acquire));
    installed.into_iter().any(|handler| *handler as *const () as usize == action.sa_sigaction)
}

/// The system's page size, once a handler is installed.
pub(crate) fn page_bytes() -> usize {
    // Never 0, and the compiler sees it: a division by it cannot panic.
    PAGE_BYTES.load(Ordering::Relaxed).max(1)
}

/// Why the last system call of this thread failed.
pub(crate) fn errno() -> Errno {
    // SAFETY: libc's errno of this thread; the address is valid as long as the thread.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    Errno(unsafe { at.read() })
}

/// What this thread finds in its errno.
pub(crate) fn set_errno(Errno(number): Errno) {
    // SAFETY: libc's errno of this thread; the address is valid as long as the thread.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { at.write(number) };
}

/// The action for SIGBUS; with `new` that one replaces it.
fn exchange(new: Option<&libc::sigaction>) -> Result<libc::sigaction, Errno> {
    let mut old = MaybeUninit::<libc::sigaction>::uninit();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a reference that outlives the call, and `old` is writable for one sigaction.
    if unsafe { libc::sigaction(libc::SIGBUS, new, old.as_mut_ptr()) } != 0 {
        return Err(errno());
    }
    // SAFETY: sigaction returned 0, so it has filled the struct.
    Ok(unsafe { old.assume_init() })
}

fn default_action() -> libc::sigaction {
    // SAFETY: all fields are integers, sets of bits or an optional function: zeros are a value, and mean SIG_DFL.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

extern "C" fn on_fault<const LEVEL: usize>(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let before = errno();
    if !mends(info) {
        match PREVIOUS.get(LEVEL) {
            Some(previous) => pass_on(previous, signal, info, context),
            None => take_default_action(signal, info),
        }
    }
    // The code that was interrupted may be about to read its own errno.
    set_errno(before);
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

/// Lets a signal that is none of ours do what it would have done without us.
fn pass_on(previous: &Previous, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    match previous.handler.load(Ordering::Acquire) {
        libc::SIG_DFL => take_default_action(signal, info),
        // Only a sent signal can be ignored; a fault would come again for ever.
        libc::SIG_IGN if !comes_again(info) => {}
        libc::SIG_IGN => take_default_action(signal, info),
        handler => {
            call(handler, previous.flags.load(Ordering::Relaxed), signal, info, context);
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
        let handler: Handler = unsafe { core::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: as above; without SA_SIGINFO it has one parameter.
        let handler: extern "C" fn(c_int) = unsafe { core::mem::transmute(handler) };
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
