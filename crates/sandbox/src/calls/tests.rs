//! Does the filter refuse the calls that it is to refuse, and let the others pass?

#![allow(clippy::unwrap_used)]

use super::*;

/// A filter holds for the thread that asks for it, so a test can have one of its own.
#[test]
fn where_landlock_keeps_no_signals_inside_the_filter_does() {
    use rustix::process::{Pid, Signal, kill_process, test_kill_process};
    let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let number = Pid::from_child(&other);
    let confined = std::thread::Builder::new().spawn(move || {
        restrict(&Policy::default(), false).unwrap();
        let own = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        assert!(test_kill_process(own).is_ok());
        assert_eq!(kill_process(number, Signal::KILL), Err(rustix::io::Errno::PERM));
        assert_eq!(test_kill_process(number), Err(rustix::io::Errno::PERM));
        assert_eq!(rustix::process::setpgid(None, None), Err(rustix::io::Errno::PERM));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").map(drop);
        assert_eq!(socket.unwrap_err().raw_os_error(), Some(libc::EPERM));
    });
    confined.unwrap().join().unwrap();
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
    let starts_others = Policy { processes: Processes::Any, ..Policy::default() };
    assert!(matches!(restrict(&starts_others, false), Err(NoFilter::Signals)));
}

#[test]
fn every_policy_has_a_filter_that_the_kernel_takes() {
    for processes in [Processes::Itself, Processes::AtMost(4), Processes::Any] {
        for (has_network, memory_bytes) in [(false, None), (true, Some(1))] {
            let policy = Policy { has_network, memory_bytes, processes, ..Policy::default() };
            for own in [None, Some(7)] {
                for filter in filters(&policy, own).unwrap() {
                    // BPF_MAXINSNS of the kernel.
                    assert!(!filter.is_empty() && filter.len() <= 4096, "{}", filter.len());
                }
            }
        }
    }
}

/// The error that a call gets, or none. It is what the kernel finds that runs the filters (<linux/seccomp.h>, <linux/filter.h>).
fn error_of(filters: &[BpfProgram], call: c_long, arguments: &[u64]) -> Option<u32> {
    let processor = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    let mut shown = vec![call as u32, processor, 0, 0];
    shown.extend((0..6).flat_map(|index| {
        let argument = arguments.get(index).copied().unwrap_or_default();
        [argument as u32, (argument >> 32) as u32]
    }));
    let found = filters.iter().map(|filter| run(filter, &shown)).find(|found| *found != libc::SECCOMP_RET_ALLOW)?;
    assert_eq!(found & libc::SECCOMP_RET_ACTION_FULL, libc::SECCOMP_RET_ERRNO);
    Some(found & libc::SECCOMP_RET_DATA)
}

/// One filter's verdict. These are all the instructions that filters here have.
fn run(filter: &BpfProgram, shown: &[u32]) -> u32 {
    let (mut at, mut word) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = filter[at].clone();
        at += 1;
        let mut jump = |holds: bool| at += usize::from(if holds { jt } else { jf });
        match u32::from(code) {
            0x20 => word = shown[k as usize / 4],
            0x54 => word &= k,
            0x05 => at += k as usize,
            0x15 => jump(word == k),
            0x25 => jump(word > k),
            0x35 => jump(word >= k),
            0x45 => jump(word & k != 0),
            0x06 => return k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

const EPERM: Option<u32> = Some(libc::EPERM as u32);

#[track_caller]
fn check(policy: &Policy, call: c_long, arguments: &[u64], expect: Option<u32>) {
    check_with(policy, None, call, arguments, expect);
}

/// As on a kernel whose Landlock keeps no signals inside, for the process 7.
#[track_caller]
fn check_with(policy: &Policy, own: Option<u64>, call: c_long, arguments: &[u64], expect: Option<u32>) {
    let found = error_of(&filters(policy, own).unwrap(), call, arguments);
    assert_eq!(found, expect, "call {call} of {arguments:x?}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn no_call_of_x32_passes() {
    let all = Policy { has_network: true, processes: Processes::Any, ..Policy::default() };
    // getpid, move_pages, and the last that there could be.
    for call in [39, 533, 0x3fff_ffff] {
        check(&all, c_long::from(X32) | call, &[], EPERM);
    }
    check(&all, libc::SYS_getpid, &[], None);
    check(&all, libc::SYS_clone3, &[], Some(libc::ENOSYS as u32));
}

#[test]
fn signals_reach_nobody_else_by_a_group_or_a_descriptor() {
    let (policy, own) = (Policy::default(), 7);
    let others: [(c_long, &[u64]); 14] = [
        (libc::SYS_kill, &[0, 9]),
        (libc::SYS_kill, &[u64::from(u32::MAX), 9]),
        (libc::SYS_kill, &[u64::MAX - 6, 9]),
        (libc::SYS_kill, &[8, 9]),
        (libc::SYS_tgkill, &[8, 8, 9]),
        (libc::SYS_rt_sigqueueinfo, &[8, 9]),
        (libc::SYS_setpgid, &[0, 8]),
        (libc::SYS_setpgid, &[own, 8]),
        (libc::SYS_setsid, &[]),
        (libc::SYS_fcntl, &[1, libc::F_SETOWN as u64, 8]),
        (libc::SYS_fcntl, &[1, 15]),
        (libc::SYS_ioctl, &[1, 0x8901]),
        (libc::SYS_ioctl, &[1, 0x8902]),
        // The kernel looks at the lower half only.
        (libc::SYS_ioctl, &[1, 0x1_0000_8901]),
    ];
    for (call, arguments) in others {
        check_with(&policy, Some(own), call, arguments, EPERM);
    }
    check_with(&policy, Some(own), libc::SYS_kill, &[own, 9], None);
    check_with(&policy, Some(own), libc::SYS_tgkill, &[own, 12, 9], None);
    // FIONBIO.
    check_with(&policy, Some(own), libc::SYS_ioctl, &[1, 0x5421], None);
    // Landlock decides where it can.
    check(&policy, libc::SYS_setpgid, &[0, 8], None);
}

#[test]
fn only_pairs_of_connected_sockets_are_made() {
    let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
    for kind in 0..16_u64 {
        let is_connected = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(|kind| kind as u64).contains(&kind);
        for kind in [kind, kind | flags] {
            let expect = if is_connected { None } else { EPERM };
            check(&Policy::default(), libc::SYS_socketpair, &[libc::AF_UNIX as u64, kind, 0], expect);
            check(&Policy::default(), libc::SYS_socketpair, &[libc::AF_INET as u64, kind, 0], EPERM);
            check(&Policy { has_network: true, ..Policy::default() }, libc::SYS_socketpair, &[1, kind, 0], None);
        }
    }
}

#[test]
fn attributes_and_subvolumes_are_not_changed_by_a_readable_descriptor() {
    // FS_IOC_SETFLAGS, EXT4_IOC_SETVERSION, FS_IOC_SETVERSION, FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY, FS_IOC_SET_ENCRYPTION_POLICY,
    // BTRFS_IOC_SUBVOL_CREATE, BTRFS_IOC_SNAP_DESTROY.
    let refused =
        [0x4008_6602, 0x4008_6604, 0x4008_7602, 0x401c_5820, 0x4080_6685, 0x800c_6613, 0x5000_940e, 0x5000_940f];
    // FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR, FICLONE, FICLONERANGE, FIDEDUPERANGE, TCGETS, FIONREAD, TIOCGWINSZ.
    let allowed = [0x8008_6601, 0x801c_581f, 0x4004_9409, 0x4020_940d, 0xc018_9436, 0x5401, 0x541b, 0x5413];
    for (numbers, expect) in [(refused, EPERM), (allowed, None)] {
        for number in numbers {
            check(&Policy::default(), libc::SYS_ioctl, &[3, number], expect);
        }
    }
}

#[test]
fn the_servers_terminal_stays_as_it_is() {
    // TCSETS, TCSETSW, TCSETSF, TCSETA, TCSETAW, TCSETAF, TCSETS2, TCSETSW2, TCSETSF2, TIOCSCTTY, TIOCSPGRP, TIOCSTI, TIOCLINUX.
    let settings = [0x5402, 0x5403, 0x5404, 0x5406, 0x5407, 0x5408, 0x402c_542b, 0x402c_542c, 0x402c_542d];
    for number in settings.into_iter().chain([0x540e, 0x5410, 0x5412, 0x541c]) {
        check(&Policy::default(), libc::SYS_ioctl, &[1, number], EPERM);
    }
}

#[test]
fn memory_that_the_limit_does_not_count_cannot_be_made() {
    let (small, large) = (Policy { memory_bytes: Some(1), ..Policy::default() }, Policy::default());
    let anonymous = libc::MAP_ANONYMOUS as u64;
    let (shared, private, down) = (libc::MAP_SHARED as u64, libc::MAP_PRIVATE as u64, libc::MAP_GROWSDOWN as u64);
    let stack = (libc::MAP_STACK | libc::MAP_NORESERVE) as u64;
    for flags in [anonymous | shared, anonymous | private | down, private | down] {
        check(&small, libc::SYS_mmap, &[0, 4096, 3, flags], EPERM);
        check(&large, libc::SYS_mmap, &[0, 4096, 3, flags], None);
    }
    // The flags of allocations, of regions and files, and of threads' stacks.
    for flags in [anonymous | private, shared, private, anonymous | private | stack] {
        check(&small, libc::SYS_mmap, &[0, 4096, 3, flags], None);
    }
    for call in [libc::SYS_memfd_create, libc::SYS_memfd_secret] {
        check(&small, call, &[], EPERM);
        check(&large, call, &[], None);
    }
}
