//! How does the guard's handler run before all others, and how does it forward signals that are not its own?
//!
//! ```text
//!  first install:   signal ─► handler 0 ─► the handler before (the default, Rust's, Python's faulthandler)
//!  X comes later:   signal ─► X ─► handler 0 ─► …
//!  next install:    signal ─► handler 1 ─► X ─► handler 0 ─► …
//! ```
//!
//! A handler that is set later (a model may enable Python's faulthandler) would be called first and end the process. So the guard installs again at
//! each use, and puts a new handler before the later one. It has to be a different function each time: with a single one, X and the guard
//! would forward the signal to each other for ever.
//!
//! Everything below [`Chain::handle`] runs inside a signal handler: no allocation, no lock, no thread-local value, only
//! atomics and system calls.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::Errno;

/// How often the guard can install itself before a later handler. After that, a process that keeps setting handlers gets an error (`EBUSY`), so that it
/// does not lose the guard unnoticed.
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

/// One signal, the guard's handlers for it, and the handlers that they forward to.
pub(crate) struct Chain {
    signal: c_int,
    /// The guard's handlers, the earliest first.
    handlers: [Handler; LEVELS],
    /// The action that each of them forwards other signals to.
    previous: [Previous; LEVELS],
    /// How many are installed.
    installed: AtomicUsize,
    installing: AtomicBool,
    /// Handles a signal of the guard. Returns whether it was one.
    handles: fn(*const siginfo_t, *mut c_void) -> bool,
    /// Whether a signal with this code was caused by an instruction, which is repeated when the handler returns.
    comes_again: fn(c_int) -> bool,
}

/// An action that was set before one of the guard's.
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
        handles: fn(*const siginfo_t, *mut c_void) -> bool,
        comes_again: fn(c_int) -> bool,
    ) -> Chain {
        Chain {
            signal,
            handlers,
            previous: [const { Previous::new() }; LEVELS],
            installed: AtomicUsize::new(0),
            installing: AtomicBool::new(false),
            handles,
            comes_again,
        }
    }

    /// Installs a handler, unless the kernel calls one of the guard's first already.
    pub(crate) fn install(&self) -> Result<(), Errno> {
        if self.is_ours(&self.exchange(None)?) {
            return Ok(());
        }
        // Two threads at the same time would each install a handler before the other's.
        while self.installing.swap(true, Ordering::Acquire) {
            // SAFETY: sched_yield has no obligation. The other thread makes only a few system calls.
            unsafe { libc::sched_yield() };
        }
        let done = self.install_alone();
        self.installing.store(false, Ordering::Release);
        done
    }

    /// As [`Chain::install`], while no other thread does so.
    fn install_alone(&self) -> Result<(), Errno> {
        let before = self.exchange(None)?;
        if self.is_ours(&before) {
            return Ok(());
        }
        let level = self.installed.load(Ordering::Relaxed);
        let (Some(handler), Some(previous)) = (self.handlers.get(level), self.previous.get(level)) else {
            return Err(Errno(libc::EBUSY));
        };
        // Stored before the new handler is active, because another thread may fault in between.
        previous.flags.store(before.sa_flags, Ordering::Relaxed);
        previous.handler.store(before.sa_sigaction, Ordering::Release);
        let mut action = default_action();
        action.sa_sigaction = *handler as *const () as usize;
        // It runs on the alternative stack if the thread has one, and with the signal mask of the handler that it precedes.
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

    /// Returns the action for the signal, and replaces it by `new` if that is given.
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

    /// Runs the handler of this level.
    pub(crate) fn handle(&self, level: usize, info: *mut siginfo_t, context: *mut c_void) {
        let before = errno();
        if !(self.handles)(info, context) {
            match self.previous.get(level) {
                Some(previous) => self.pass_on(previous, info, context),
                None => self.take_default_action(info),
            }
        }
        // The interrupted code may be about to read its errno.
        set_errno(before);
    }

    /// Forwards a signal that is not the guard's to the previous action.
    fn pass_on(&self, previous: &Previous, info: *mut siginfo_t, context: *mut c_void) {
        match previous.handler.load(Ordering::Acquire) {
            libc::SIG_DFL => self.take_default_action(info),
            // Only a sent signal can be ignored. A fault would be repeated for ever.
            libc::SIG_IGN if !self.comes_again(info) => {}
            libc::SIG_IGN => self.take_default_action(info),
            handler => {
                call(handler, previous.flags.load(Ordering::Relaxed), self.signal, info, context);
                // Some handlers, such as Rust's, restore the default action and return, because they expect the fault to be repeated.
                let now = self.exchange(None).map_or(libc::SIG_DFL, |action| action.sa_sigaction);
                if now == libc::SIG_DFL {
                    self.take_default_action(info);
                }
            }
        }
    }

    /// Ends the process by the signal as soon as the handler has returned.
    fn take_default_action(&self, info: *const siginfo_t) {
        // This cannot fail for these signals. If it did, the next fault would lead here again.
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

/// The address of this thread's errno. It is different for all threads that exist at one time.
pub(crate) fn errno_place() -> *mut c_int {
    // SAFETY: no obligation; the address is valid as long as the thread.
    unsafe { libc::__errno_location() }
}

/// The error of this thread's last system call.
pub(crate) fn errno() -> Errno {
    // SAFETY: libc's errno of this thread, valid as long as the thread.
    Errno(unsafe { errno_place().read() })
}

/// The errno of this thread.
pub(crate) fn set_errno(Errno(number): Errno) {
    // SAFETY: libc's errno of this thread, valid as long as the thread.
    unsafe { errno_place().write(number) };
}
