//! Which backend's code aborts this process?
//!
//! A failed assertion or a call of `abort` ends the process, and its own text, if there is one, does not name the backend. So a line on the standard error does.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void};

/// The most bytes of a name that are written.
const NAME_BYTES_MAX: usize = 128;

thread_local! {
    /// The backend whose code runs on this thread, or NULL. It points to the argument of the innermost [`running`]. A signal handler
    /// reads it, so it has no destructor and no lock.
    static RUNNING: AtomicPtr<Arc<str>> = const { AtomicPtr::new(ptr::null_mut()) };
}

/// After this call, an abort writes the name of the backend that runs on the aborting thread to the standard error. Only for programs of this server:
/// a program with the server in its process keeps its own signals.
pub fn name_aborting_backends() {
    // SAFETY: all bytes 0 are a valid `sigaction`: no flags, no handler, and an empty mask on Linux.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = tell as *const () as usize;
    // The handler runs once. After it the signal has its default action.
    action.sa_flags = libc::SA_RESETHAND;
    // SAFETY: `action` is initialised and its handler is a function of one number that calls only what a signal handler may. NULL: the former action, which
    // is the default, is not wanted.
    unsafe { libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut()) };
}

/// Runs code of the backend called `owner` on this thread.
pub fn running<T>(owner: &Arc<str>, work: impl FnOnce() -> T) -> T {
    let _outer = Outer(set(ptr::from_ref(owner).cast_mut()));
    work()
}

/// The backend whose code runs on this thread. `None` on a thread of the backend's own.
pub fn running_backend() -> Option<Arc<str>> {
    with_running(Arc::clone)
}

/// From now on an abort writes no name.
pub fn name_no_backend() {
    set(ptr::null_mut());
}

/// The backend that ran before this one. Its pointer is set again on drop.
struct Outer(*mut Arc<str>);

impl Drop for Outer {
    fn drop(&mut self) {
        set(self.0);
    }
}

/// Sets the pointer, and returns the one before.
fn set(owner: *mut Arc<str>) -> *mut Arc<str> {
    RUNNING.with(|running| {
        // Only this thread and its signal handlers use it. A load and a store cost less than one exchange.
        let before = running.load(Ordering::Relaxed);
        running.store(owner, Ordering::Relaxed);
        before
    })
}

/// Looks at the name of the backend that runs on this thread, if there is one.
fn with_running<T>(look: impl FnOnce(&Arc<str>) -> T) -> Option<T> {
    RUNNING.with(|running| {
        // SAFETY: it is NULL or was made from the `owner` of a call of `running` on this thread. That call has not ended: when it ends, by a return
        // or by a panic, `Outer` sets the pointer of the call around it, or NULL. So `owner` is still borrowed, and nobody changes it.
        let owner = unsafe { running.load(Ordering::Relaxed).as_ref() };
        owner.map(look)
    })
}

/// Writes the line, and ends the process as the signal does by default. `abort` would do so itself. A signal from another process would not.
extern "C" fn tell(signal: c_int) {
    tell_name();
    // SAFETY: `raise` may be called in a signal handler. The signal is blocked until the handler returns, and has its default action again then.
    unsafe { libc::raise(signal) };
}

fn tell_name() {
    with_running(|name| {
        for part in [
            b"error: backend '",
            name.as_bytes().get(..NAME_BYTES_MAX).unwrap_or(name.as_bytes()),
            b"' aborts the process: in a process of its own (--backend-config=<name>,isolated=true) that costs only its own requests\n",
        ] {
            // SAFETY: `part` is that many bytes, and `write` may be called in a signal handler. What cannot be written is lost.
            unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast::<c_void>(), part.len()) };
        }
    });
}
