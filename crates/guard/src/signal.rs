//! How does a handler of ours come before everybody else's, and how does it pass on what is not ours?
//!
//! ```text
//!  first install:   signal ─► handler 0 ─► who was there before (the default, Rust's, Python's faulthandler)
//!  X comes later:   signal ─► X ─► handler 0 ─► …
//!  next install:    signal ─► handler 1 ─► X ─► handler 0 ─► …
//! ```
//!
//! A handler that somebody sets later (Python's faulthandler may be enabled by a model) would meet the fault first, and end
//! the process. So installing is done again at each use, and puts a handler of its own before that one. It is another each
//! time: with a single one, X would pass the signal on to whom it was passed on by, in a circle.
//!
//! Everything below [`Chain::handle`] runs inside a signal handler: no allocation, no lock, no thread-local value, only
//! atomics and system calls.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::Errno;

/// How often the guard can put itself before a handler that came later. A process that sets handlers for ever is told so
/// (`EBUSY`), and not left without a guard in silence.
pub(crate) const LEVELS: usize = 16;

pub(crate) type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The handlers of one signal, from a function with the level as its parameter.
macro_rules! levels {
    ($on:ident) => {
        levels!($on: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($on:ident: $($level:literal)*) => {
        [$($on::<$level>),*]
    };
}
pub(crate) use levels;

/// One signal, its handlers of ours, and whom they pass it on to.
pub(crate) struct Chain {
    signal: c_int,
    /// Ours, the earliest first.
    handlers: [Handler; LEVELS],
    /// Whom each of them passes on to what is not ours.
    previous: [Previous; LEVELS],
    /// How many of them were installed.
    installed: AtomicUsize,
    installing: AtomicBool,
    /// Deals with what is ours, and says whether it was.
    mends: fn(*const siginfo_t, *mut c_void) -> bool,
    /// Whether a signal with this code was caused by an instruction, which is tried again when the handler returns.
    comes_again: fn(c_int) -> bool,
}

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

impl Chain {
    /// A chain that is not installed yet. Both functions run inside signal handlers.
    pub(crate) const fn new(
        signal: c_int,
        handlers: [Handler; LEVELS],
        mends: fn(*const siginfo_t, *mut c_void) -> bool,
        comes_again: fn(c_int) -> bool,
    ) -> Chain {
        Chain {
            signal,
            handlers,
            previous: [const { Previous::new() }; LEVELS],
            installed: AtomicUsize::new(0),
            installing: AtomicBool::new(false),
            mends,
            comes_again,
        }
    }

    /// Installs a handler of ours, unless one is the first to be asked already.
    pub(crate) fn install(&self) -> Result<(), Errno> {
        if self.is_ours(&self.exchange(None)?) {
            return Ok(());
        }
        // Threads that come at the same time: each would put its own before the other's.
        while self.installing.swap(true, Ordering::Acquire) {
            // SAFETY: sched_yield has no obligation. A few system calls are waited for.
            unsafe { libc::sched_yield() };
        }
        let done = self.install_alone();
        self.installing.store(false, Ordering::Release);
        done
    }

    /// The same, where no other thread does so.
    fn install_alone(&self) -> Result<(), Errno> {
        let before = self.exchange(None)?;
        if self.is_ours(&before) {
            return Ok(());
        }
        let level = self.installed.load(Ordering::Relaxed);
        let (Some(handler), Some(previous)) = (self.handlers.get(level), self.previous.get(level)) else {
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
        self.exchange(Some(&action))?;
        self.installed.store(level + 1, Ordering::Release);
        Ok(())
    }

    fn is_ours(&self, action: &libc::sigaction) -> bool {
        let installed = self.handlers.iter().take(self.installed.load(Ordering::Acquire));
        installed.into_iter().any(|handler| *handler as *const () as usize == action.sa_sigaction)
    }

    /// The action for the signal; with `new` that one replaces it.
    fn exchange(&self, new: Option<&libc::sigaction>) -> Result<libc::sigaction, Errno> {
        let mut old = MaybeUninit::<libc::sigaction>::uninit();
        let new = new.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: `new` is null or a reference that outlives the call, and `old` is writable for one sigaction.
        if unsafe { libc::sigaction(self.signal, new, old.as_mut_ptr()) } != 0 {
            return Err(errno());
        }
        // SAFETY: sigaction returned 0, so it has filled the struct.
        Ok(unsafe { old.assume_init() })
    }

    /// What the handler of this level does with a signal.
    pub(crate) fn handle(&self, level: usize, info: *mut siginfo_t, context: *mut c_void) {
        let before = errno();
        if !(self.mends)(info, context) {
            match self.previous.get(level) {
                Some(previous) => self.pass_on(previous, info, context),
                None => self.take_default_action(info),
            }
        }
        // The code that was interrupted may be about to read its own errno.
        set_errno(before);
    }

    /// Lets a signal that is not ours do what it would have done without us.
    fn pass_on(&self, previous: &Previous, info: *mut siginfo_t, context: *mut c_void) {
        match previous.handler.load(Ordering::Acquire) {
            libc::SIG_DFL => self.take_default_action(info),
            // Only a sent signal can be ignored; a fault would come again for ever.
            libc::SIG_IGN if !self.comes_again(info) => {}
            libc::SIG_IGN => self.take_default_action(info),
            handler => {
                call(handler, previous.flags.load(Ordering::Relaxed), self.signal, info, context);
                // Rust's own handler, for one, restores the default and returns, in the belief that the fault comes again.
                let now = self.exchange(None).map_or(libc::SIG_DFL, |action| action.sa_sigaction);
                if now == libc::SIG_DFL {
                    self.take_default_action(info);
                }
            }
        }
    }

    /// Ends the process by the signal as soon as the handler has returned.
    fn take_default_action(&self, info: *const siginfo_t) {
        // The action of our signals can be set, so this cannot fail; if it did, the next fault would bring us here again.
        let _ = self.exchange(Some(&default_action()));
        if !self.comes_again(info) {
            // SAFETY: raise has no obligation. The signal is blocked while its handler runs and arrives right after.
            unsafe { libc::raise(self.signal) };
        }
    }

    fn comes_again(&self, info: *const siginfo_t) -> bool {
        // SAFETY: with SA_SIGINFO the kernel hands over a siginfo_t that lives as long as the handler runs.
        (self.comes_again)(unsafe { (*info).si_code })
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

fn default_action() -> libc::sigaction {
    // SAFETY: all fields are integers, sets of bits or an optional function: zeros are a value, and mean SIG_DFL.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

/// Where libc keeps this thread's errno. No two threads that exist at one time have the same place.
pub(crate) fn errno_place() -> *mut c_int {
    // SAFETY: no obligation; the address is valid as long as the thread.
    unsafe { libc::__errno_location() }
}

/// Why the last system call of this thread failed.
pub(crate) fn errno() -> Errno {
    // SAFETY: libc's errno of this thread, valid as long as the thread.
    Errno(unsafe { errno_place().read() })
}

/// What this thread finds in its errno.
pub(crate) fn set_errno(Errno(number): Errno) {
    // SAFETY: libc's errno of this thread, valid as long as the thread.
    unsafe { errno_place().write(number) };
}
