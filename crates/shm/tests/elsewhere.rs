//! Does a fault outside of all regions have the same effect as without a guard?
//!
//! Each case ends a process. So each runs in a child process: this test's own binary, with the case in its environment.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use nerite_memory::{Extent, Reason};
use nerite_shm::{Options, OwnedRegion, Registry};

const CASE: &str = "NERITE_FAULT_CASE";
const PAGE: usize = 4096;
const SURVIVED: i32 = 41;
const HANDLED: i32 = 42;

#[track_caller]
fn check(case: &str, ended_so: impl Fn(ExitStatus) -> bool) {
    let status = child(case, &mut Command::new(std::env::current_exe().unwrap()));
    assert!(ended_so(status), "{case}: {status}");
}

fn child(case: &str, command: &mut Command) -> ExitStatus {
    command.args(["--exact", "the_child", "--nocapture", "--test-threads=1"]).env(CASE, case).status().unwrap()
}

fn by_sigbus(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGBUS)
}

#[test]
fn a_fault_elsewhere_ends_the_process() {
    check("fault", by_sigbus);
    check("fault in a thread", by_sigbus);
    check("fault where a region was", by_sigbus);
}

#[test]
fn a_sent_signal_ends_the_process() {
    check("sent", by_sigbus);
}

#[test]
fn the_handler_installed_before_is_called() {
    check("handler, fault", |status| status.code() == Some(HANDLED));
    check("old handler, fault", |status| status.code() == Some(HANDLED));
    check("handler, sent", |status| status.code() == Some(HANDLED));
    check("ignored, fault", by_sigbus);
    check("ignored, sent", |status| status.code() == Some(SURVIVED));
}

#[test]
fn a_fault_in_a_region_ends_nothing() {
    check("region", |status| status.code() == Some(SURVIVED));
    check("handler, region", |status| status.code() == Some(SURVIVED));
}

/// An object may be larger than `/dev/shm`, because its pages are allocated at the first access.
#[test]
fn an_object_larger_than_free_memory_fails_alone() {
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 77; exec \"$0\" \"$@\"";
    command.args(["--mount", "--map-root-user", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
    if Command::new("unshare").args(["--mount", "--map-root-user", "true"]).status().is_ok_and(|made| made.success()) {
        let status = child("full", &mut command);
        assert!([Some(SURVIVED), Some(77)].contains(&status.code()), "{status}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a child of this test ends here")]
fn the_child() {
    let Ok(case) = std::env::var(CASE) else { return };
    // SAFETY: setrlimit reads the struct. The children need no core dumps.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    match case.split(", ").next() {
        Some("handler") => set_handler(on_signal as *const () as usize, libc::SA_SIGINFO),
        Some("old handler") => set_handler(on_old_signal as *const () as usize, 0),
        Some("ignored") => set_handler(libc::SIG_IGN, 0),
        _ => {}
    }
    if case == "full" {
        overcommit();
    }
    let (registry, mine) = one_region();
    match case.rsplit(", ").next() {
        Some("fault") => fault(),
        Some("fault in a thread") => std::thread::spawn(fault).join().unwrap(),
        Some("fault where a region was") => {
            let located = registry.locate("a", 0, 4).unwrap().into_buffer();
            let at = located.as_ptr();
            drop(located);
            registry.unregister_system("a").unwrap();
            // The object has no name any more, so another thread unmaps it.
            while registry.counts().mapped > 0 {
                std::thread::yield_now();
            }
            fault_at(at);
        }
        Some("sent") => {
            // Sent to this thread, so that it has arrived when the call returns.
            // SAFETY: raise has no obligation.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        Some("region") => {
            let input = registry.locate("a", 0, 4).unwrap().into_buffer();
            resize(mine.key(), 0);
            assert_eq!(input.read_u32(0), Some(0));
            assert!(input.fault().is_some());
        }
        _ => panic!("no case '{case}'"),
    }
    drop(mine);
    std::process::exit(SURVIVED);
}

fn one_region() -> (Registry, OwnedRegion) {
    let registry = Registry::new(Options::default());
    let mine = OwnedRegion::create(&format!("/nerite-elsewhere-{}", std::process::id()), PAGE).unwrap();
    registry.register_system("a", mine.key(), 0, PAGE as u64).unwrap();
    if !std::env::var(CASE).unwrap().ends_with("region") {
        // The child ends without cleaning up.
        let mut mine = mine;
        mine.unlink().unwrap();
        return (registry, mine);
    }
    (registry, mine)
}

fn resize(key: &str, byte_size: u64) {
    File::options().write(true).open(format!("/dev/shm{key}")).unwrap().set_len(byte_size).unwrap();
}

/// Accesses a page of a file that has no pages, outside of all regions.
fn fault() {
    fault_at(std::ptr::null());
}

/// The same at an address that the caller chooses.
fn fault_at(at: *const u8) {
    let file = tempfile_of_one_page();
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    // SAFETY: a null address means a new mapping. Any other address is that of a region which was unmapped before.
    let page = unsafe {
        libc::mmap(at.cast_mut().cast(), PAGE, libc::PROT_READ, libc::MAP_SHARED | fixed, file.as_raw_fd(), 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    file.set_len(0).unwrap();
    // SAFETY: mapped above. This is the access that must end the process.
    unsafe { page.cast::<u8>().read_volatile() };
}

fn tempfile_of_one_page() -> File {
    let path = std::env::temp_dir().join(format!("nerite-elsewhere-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(PAGE as u64).unwrap();
    file
}

/// Runs where `/dev/shm` has 64 KiB. Reads and writes an object of 1 MiB, which has less memory than that.
#[expect(clippy::disallowed_methods, reason = "a child of this test ends here")]
fn overcommit() {
    const BYTES: usize = 1 << 20;
    std::fs::write("/dev/shm/big", b"").unwrap();
    resize("/big", BYTES as u64);
    std::fs::write("/dev/shm/small", [5; PAGE]).unwrap();
    let registry = Registry::new(Options::default());
    for (name, byte_size) in [("big", BYTES), ("small", PAGE)] {
        registry.register_system(name, name, 0, byte_size as u64).unwrap();
    }
    let mut output = registry.locate("big", 0, BYTES as u64).unwrap().into_slot();
    output.write(0, &vec![7; BYTES], Reason::Model).unwrap();
    let fault = output.fault().unwrap();
    assert!(fault.contains("there was no room (/dev/shm is 64 KiB, 2 objects, 0 bytes free)"), "{fault}");
    let small = registry.locate("small", 0, PAGE as u64).unwrap().into_buffer();
    assert_eq!(
        (small.slice(Extent::new(PAGE - 4, 4, PAGE).unwrap()).read_u32(0), small.fault()),
        (Some(0x0505_0505), None)
    );
    std::process::exit(SURVIVED);
}

fn set_handler(handler: usize, flags: i32) {
    // SAFETY: all fields are integers, sets of bits or an optional function, for which zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: `action` outlives the call, and the old action is not requested.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) }, 0);
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel, or a handler that forwards its signal, passes a siginfo_t.
    let received = unsafe { (*info).si_signo };
    // SAFETY: _exit has no obligation.
    unsafe { libc::_exit(if received == signal { HANDLED } else { 1 }) };
}

extern "C" fn on_old_signal(signal: i32) {
    // SAFETY: _exit has no obligation.
    unsafe { libc::_exit(if signal == libc::SIGBUS { HANDLED } else { 1 }) };
}
