//! Which backend's code aborts this process?
//!
//! A failed assertion or a call of `abort` ends the process, and its own text, if there is one, does not name the backend. So a line on the standard error does.

use std::cell::Cell;
use std::sync::Arc;

use libc::{c_int, c_void};

/// The most bytes of a name that are written.
const NAME_BYTES_MAX: usize = 128;

/// The start of a backend's name, and its length.
type Short = ([u8; NAME_BYTES_MAX], usize);

thread_local! {
    /// The backend whose code runs on this thread. A signal handler reads it, so it has no destructor and no lock.
    static RUNNING: Cell<Short> = const { Cell::new(([0; NAME_BYTES_MAX], 0)) };
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

/// Sets the backend that runs on this thread, or none.
pub fn runs(backend: Option<&Arc<str>>) {
    let mut short = ([0; NAME_BYTES_MAX], 0);
    if let Some(name) = backend {
        short.1 = name.len().min(NAME_BYTES_MAX);
        short.0[..short.1].copy_from_slice(&name.as_bytes()[..short.1]);
    }
    RUNNING.set(short);
}

/// Writes the line, and ends the process as the signal does by default. `abort` would do so itself. A signal from another process would not.
extern "C" fn tell(signal: c_int) {
    tell_name();
    // SAFETY: `raise` may be called in a signal handler. The signal is blocked until the handler returns, and has its default action again then.
    unsafe { libc::raise(signal) };
}

fn tell_name() {
    let Ok((name, length)) = RUNNING.try_with(Cell::get) else { return };
    if length == 0 {
        return;
    }
    for part in [
        b"error: backend '",
        name.get(..length).unwrap_or_default(),
        b"' aborts the process: in a process of its own (--backend-config=<name>,isolated=true) that costs only its own requests\n",
    ] {
        // SAFETY: `part` is that many bytes, and `write` may be called in a signal handler. What cannot be written is lost.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast::<c_void>(), part.len()) };
    }
}
