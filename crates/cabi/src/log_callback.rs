//! Which function of the program gets the lines of the log?
//!
//! `TRITONSERVER_ServerOptionsSetLogCallback` sets it for the whole process, from its call on. Then no line is written elsewhere.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use log::Level;
use nerite_locks::Mutex;

use crate::fault::within;
use crate::objects::Kept;

/// `TRITONSERVER_LogCallbackFn_t`: level, file, line, microseconds since 1970, message, and the address that the program gave with the function.
pub type LogFn = unsafe extern "C-unwind" fn(u32, *const c_char, i32, u64, *const c_char, *mut c_void);

/// A function that gets the lines, and the address that it gets with each.
#[derive(Clone, Copy)]
struct LogCallback {
    function: LogFn,
    userp: Kept,
}

static CALLBACK: Mutex<Option<LogCallback>> = Mutex::new(None);
/// Whether there is a callback. Read without a lock, because most processes have none.
static IS_SET: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is in the callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Sets the function, or removes it. A call of the previous function may still run on another thread.
pub(crate) fn set(function: Option<LogFn>, userp: *mut c_void) {
    let mut callback = CALLBACK.lock().unwrap_or_else(PoisonError::into_inner);
    *callback = function.map(|function| LogCallback { function, userp: Kept(userp) });
    IS_SET.store(callback.is_some(), Ordering::Relaxed);
}

/// Whether lines of this level are passed to the callback before the process has a log, which the first server makes. As in Triton, all levels but
/// the verbose one are.
pub(crate) fn is_early(level: Level) -> bool {
    log::max_level() == log::LevelFilter::Off && level <= Level::Info && IS_SET.load(Ordering::Relaxed)
}

/// Passes a line to the callback. Returns false if there is none, and for a line that the callback itself logs.
pub fn log_to_program(level: Level, file: &str, line: u32, message: &str) -> bool {
    if !IS_SET.load(Ordering::Relaxed) || IN_CALLBACK.get() {
        return false;
    }
    // Copied, because the callback may remove itself.
    let callback = *CALLBACK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(LogCallback { function, userp }) = callback else { return false };
    let (number, line) = (number(level), i32::try_from(line).unwrap_or(i32::MAX));
    let (file, message) = (text(file), text(message));
    IN_CALLBACK.set(true);
    within(&Arc::from("log callback of the program"), || {
        // SAFETY: the program passed a function of this signature, as the interface says. Both texts end with a zero and live until the call returns.
        unsafe { function(number, file.as_ptr(), line, now_us(), message.as_ptr(), userp.0) }
    });
    IN_CALLBACK.set(false);
    true
}

/// `TRITONSERVER_LogLevel`.
fn number(level: Level) -> u32 {
    match level {
        Level::Info => 0,
        Level::Warn => 1,
        Level::Error => 2,
        Level::Debug | Level::Trace => 3,
    }
}

/// A text for C. A zero in it would end it.
fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

#[expect(clippy::disallowed_methods, reason = "a line of the log has its date")]
fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
