//! Which integer divisions without a result are completed, and which end the process?
//!
//! Cases that end a process run in a child: this test's own binary again, with the case in its environment.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

use std::arch::asm;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::thread;

use nerite_guard::{Traps, count_traps, install_traps};

const CASE: &str = "NERITE_DIVISION_CASE";
const SURVIVED: i32 = 41;
const HANDLED: i32 = 42;

/// Quotient and remainder of 32 bits, as the processor divides.
fn divide(dividend: i32, divisor: i32) -> (i32, i32) {
    let (mut quotient, mut remainder) = (dividend, dividend >> 31);
    // SAFETY: the instruction changes these two registers and the flags; a fault is what is tested.
    unsafe { asm!("idiv {0:e}", in(reg) divisor, inout("eax") quotient, inout("edx") remainder) };
    (quotient, remainder)
}

#[track_caller]
fn counted<R>(expect: usize, work: impl FnOnce() -> R) -> R {
    install_traps().unwrap();
    let traps = Traps::new();
    let result = count_traps(&traps, work).unwrap();
    assert_eq!(traps.count(), expect);
    result
}

#[test]
fn a_division_with_a_result_is_left_alone() {
    assert_eq!(counted(0, || divide(-7, 2)), (-3, -1));
}

#[test]
fn a_division_without_one_gives_zero_and_is_counted() {
    assert_eq!(counted(1, || divide(5, 0)), (0, 0));
    assert_eq!(counted(1, || divide(i32::MIN, -1)), (0, 0));
    assert_eq!(counted(1000, || (0..1000).map(|at| divide(at, 0).0).sum::<i32>()), 0);
}

/// What the registers hold beside the result stays as it would have.
#[test]
fn each_width_has_its_own_registers() {
    const FULL: u64 = 0x1122_3344_5566_7788;
    // AX = 0 is quotient and remainder of 8 bits; a mask says which bits of RAX and RDX stay.
    let (mut rax, mut rdx) = (FULL, FULL);
    counted(1, || {
        // SAFETY: as in `divide`, for 8 bits.
        unsafe { asm!("idiv {0}", in(reg_byte) 0_i8, inout("rax") rax, inout("rdx") rdx) };
    });
    assert_eq!((rax, rdx), (FULL & !0xffff, FULL));
    (rax, rdx) = (FULL, FULL);
    counted(1, || {
        // SAFETY: as in `divide`, for 16 bits.
        unsafe { asm!("div {0:x}", in(reg) 0_u16, inout("rax") rax, inout("rdx") rdx) };
    });
    assert_eq!((rax, rdx), (FULL & !0xffff, FULL & !0xffff));
    (rax, rdx) = (FULL, FULL);
    counted(1, || {
        // SAFETY: as in `divide`, without a sign.
        unsafe { asm!("div {0:e}", in(reg) 0_u32, inout("rax") rax, inout("rdx") rdx) };
    });
    assert_eq!((rax, rdx), (0, 0));
    (rax, rdx) = (FULL, FULL);
    counted(1, || {
        // SAFETY: as in `divide`, for 64 bits.
        unsafe { asm!("idiv {0}", in(reg) 0_i64, inout("rax") rax, inout("rdx") rdx) };
    });
    assert_eq!((rax, rdx), (0, 0));
}

/// The divisor in memory, as compilers write loops over arrays: the next instruction is the one after the whole of this one.
#[test]
fn operands_in_memory_are_passed_by_their_length() {
    const FAR: usize = 1000;
    let divisors = [3_i32, 0, -1];
    let start = divisors.as_ptr();
    let mut followed = 0_u64;
    counted(4, || {
        for (at, low, high) in [(0_usize, 7, 0), (1, 7, 0), (2, i32::MIN, -1)] {
            // SAFETY: the operand is an element of `divisors`; a fault is what is tested.
            unsafe {
                asm!("idiv dword ptr [{start} + {at} * 4]", "inc {followed}", start = in(reg) start, at = in(reg) at,
                    followed = inout(reg) followed, inout("eax") low => _, inout("edx") high => _);
            }
            // SAFETY: as above, by an address further down and its distance.
            unsafe {
                asm!("idiv dword ptr [{start} + {at} * 4 + {far}]", "inc {followed}", far = const FAR, at = in(reg) at,
                    start = in(reg) start.wrapping_byte_sub(FAR), followed = inout(reg) followed,
                    inout("eax") low => _, inout("edx") high => _);
            }
        }
    });
    assert_eq!(followed, 6);
}

#[test]
fn each_thread_counts_for_its_own() {
    install_traps().unwrap();
    let all = [const { Traps::new() }; 4];
    thread::scope(|scope| {
        for (at, traps) in all.iter().enumerate() {
            scope.spawn(move || {
                for _ in 0..1000 * at {
                    count_traps(traps, || divide(1, 0)).unwrap();
                }
            });
        }
    });
    assert_eq!(all.map(|traps| traps.count()), [0, 1000, 2000, 3000]);
}

#[test]
fn work_that_panics_counts_no_longer() {
    check("panicked", by_sigfpe);
}

#[test]
fn divisions_elsewhere_end_the_process() {
    check("counted", survived);
    check("elsewhere", by_sigfpe);
    check("afterwards", by_sigfpe);
    check("another thread", by_sigfpe);
}

#[test]
fn what_was_sent_is_no_division() {
    check("sent", by_sigfpe);
}

#[test]
fn a_handler_that_was_there_is_asked_about_the_others() {
    check("handler, counted", survived);
    check("handler, elsewhere", handled);
    check("handler, sent", handled);
}

#[track_caller]
fn check(case: &str, ended_so: impl Fn(ExitStatus) -> bool) {
    // One at a time: a machine of few cores starts them slowly.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
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

fn by_sigfpe(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGFPE)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a child of this test ends here")]
fn the_child() {
    let Ok(case) = std::env::var(CASE) else { return };
    // SAFETY: setrlimit reads the struct. No child needs to leave its memory behind.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    case.split(", ").for_each(take);
    std::process::exit(SURVIVED);
}

#[expect(clippy::disallowed_methods, reason = "a test may panic")]
fn take(step: &str) {
    let traps = Traps::new();
    let elsewhere = || drop(thread::spawn(|| divide(1, 0)).join());
    match step {
        // SAFETY: `ending` is a function of one parameter.
        "handler" => drop(unsafe { libc::signal(libc::SIGFPE, ending as *const () as usize) }),
        "counted" => drop(counted(1, || divide(1, 0))),
        "elsewhere" => {
            install_traps().unwrap();
            divide(1, 0);
        }
        "afterwards" => {
            counted(1, || divide(1, 0));
            divide(1, 0);
        }
        "another thread" => counted(0, elsewhere),
        "sent" => {
            // SAFETY: raise has no obligation.
            counted(0, || unsafe { libc::raise(libc::SIGFPE) });
        }
        "panicked" => {
            install_traps().unwrap();
            let work = || count_traps(&traps, || panic!("as it must")).map(|(): ()| ());
            drop(std::panic::catch_unwind(work));
            divide(1, 0);
        }
        _ => panic!("no step '{step}'"),
    }
}

extern "C" fn ending(_signal: i32) {
    // SAFETY: _exit has no obligation.
    unsafe { libc::_exit(HANDLED) };
}
