//! Who is asked first about a fault, where handlers come and go?
//!
//! Each case ends a process, so each runs in a child: this test's own binary again, with the case in its environment.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_guard::library::{nerite_guard_install, nerite_guard_lost_at, nerite_guard_map};

const CASE: &str = "NERITE_GUARD_CASE";
const PAGE: usize = 4096;
const SURVIVED: i32 = 41;
const HANDLED: i32 = 42;
/// What the guard has; see `signal::LEVELS`.
const LEVELS: usize = 16;

#[track_caller]
fn check(case: &str, ended_so: impl Fn(ExitStatus) -> bool) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let status = command.args(["--exact", "the_child", "--nocapture", "--test-threads=1"]).env(CASE, case).status();
    let status = status.unwrap();
    assert!(ended_so(status), "{case}: {status}");
}

fn survived(status: ExitStatus) -> bool {
    status.code() == Some(SURVIVED)
}

fn handled(status: ExitStatus) -> bool {
    status.code() == Some(HANDLED)
}

fn by_sigbus(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGBUS)
}

#[test]
fn a_handler_that_came_later_is_asked_second() {
    check("ending handler, install, watched", survived);
    check("ending handler, map, watched", survived);
    check("ending handler, install, elsewhere", handled);
    check("ending handler, map, elsewhere", handled);
}

#[test]
fn until_then_it_is_asked_first() {
    check("ending handler, elsewhere", handled);
    check("passing handler, watched", survived);
    check("passing handler, elsewhere", by_sigbus);
}

/// As Python's faulthandler does: it puts back whom it found, and raises the signal anew.
#[test]
fn a_handler_that_puts_the_guard_back_and_raises_is_called_once() {
    check("raising handler, install, watched", survived);
    check("raising handler, install, elsewhere", by_sigbus);
}

#[test]
fn a_signal_is_not_passed_on_in_a_circle() {
    check("passing handler, install, watched", survived);
    check("passing handler, install, elsewhere", by_sigbus);
    check("passing handler, install, sent", by_sigbus);
    check("passing handler, install, ending handler, install, elsewhere", handled);
}

#[test]
fn who_sets_handlers_for_ever_is_told_so() {
    check("handlers for ever", survived);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a child of this test ends here")]
fn the_child() {
    let Ok(case) = std::env::var(CASE) else { return };
    // SAFETY: setrlimit reads the struct. No child needs to leave its memory behind.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    let (lost, start) = shrunk();
    case.split(", ").for_each(|step| take(step, &lost, start));
    std::process::exit(SURVIVED);
}

fn take(step: &str, lost: &File, start: *const u8) {
    match step {
        "ending handler" => drop(set_handler(ending as *const () as usize)),
        "passing handler" => FOUND.store(set_handler(passing as *const () as usize), Ordering::Relaxed),
        "raising handler" => FOUND.store(set_handler(raising as *const () as usize), Ordering::Relaxed),
        "install" => assert_eq!(nerite_guard_install(), 0),
        "map" => assert!(!nerite_guard_map(lost.as_raw_fd(), 0, PAGE).is_null()),
        "watched" => assert_eq!((read(start), nerite_guard_lost_at(start.cast())), (0, 0)),
        "elsewhere" => drop(read(mapped(lost))),
        // SAFETY: raise has no obligation.
        "sent" => assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0),
        "handlers for ever" => for_ever(lost),
        _ => panic!("no step '{step}'"),
    }
}

/// The guard was first once before the loop.
fn for_ever(lost: &File) {
    for _ in 1..LEVELS {
        set_handler(ending as *const () as usize);
        assert_eq!(nerite_guard_install(), 0);
    }
    set_handler(ending as *const () as usize);
    assert_eq!(nerite_guard_install(), libc::EBUSY);
    assert!(nerite_guard_map(lost.as_raw_fd(), 0, PAGE).is_null());
}

/// An object that has lost its only page, and the guarded mapping of it.
fn shrunk() -> (File, *const u8) {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"nerite-guard".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: memfd_create has just returned this descriptor.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(PAGE as u64).unwrap();
    let start = nerite_guard_map(fd, 0, PAGE);
    assert!(!start.is_null());
    file.set_len(0).unwrap();
    (file, start.cast())
}

/// Another mapping of it, which nobody watches.
fn mapped(file: &File) -> *const u8 {
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}

fn read(start: *const u8) -> u8 {
    // SAFETY: a mapping that is there until the end. It has no memory: this is the access that is tested.
    unsafe { start.read_volatile() }
}

/// Whom the last of the handlers below found in its place.
static FOUND: AtomicUsize = AtomicUsize::new(0);

/// Sets a handler and gives the one before.
fn set_handler(handler: usize) -> usize {
    // SAFETY: all fields are integers, sets of bits or an optional function: zeros are a value.
    let (mut action, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: both outlive the call.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut old) }, 0);
    old.sa_sigaction
}

extern "C" fn ending(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: _exit has no obligation.
    unsafe { libc::_exit(HANDLED) };
}

/// Asks whom it found, by calling it.
extern "C" fn passing(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let found = std::ptr::with_exposed_provenance::<()>(FOUND.load(Ordering::Relaxed));
    // SAFETY: the guard's handler, which is what a case sets this one after.
    let found: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = unsafe { std::mem::transmute(found) };
    found(signal, info, context);
}

extern "C" fn raising(signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    if CALLS.fetch_add(1, Ordering::Relaxed) == 2 {
        // The handlers call each other in a circle: the case fails.
        // SAFETY: _exit has no obligation.
        unsafe { libc::_exit(1) };
    }
    set_handler(FOUND.load(Ordering::Relaxed));
    // SAFETY: raise has no obligation.
    unsafe { libc::raise(signal) };
}
