//! Which system calls is a process refused?
//!
//! A filter (seccomp) for what Landlock does not decide: sockets, the attributes of files, processes by their numbers, memory that no limit
//! counts, and parts of the kernel that no model needs. A refused call fails with EPERM, and the process continues.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use crate::policy::{Policy, Processes};

/// Numbers with this bit are calls of x32, a second interface of some kernels for x86-64.
const X32: u32 = 0x4000_0000;

/// Since Linux 6.6 and 6.13; libc has no names for some of them.
const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const PROCESS_MRELEASE: c_long = 448;
const FILE_SETATTR: c_long = 469;

/// Modes, owners, times and further attributes, which Landlock does not look at.
const ATTRIBUTES: &[c_long] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    FILE_SETATTR,
];

/// Calls that access other processes, or share memory and messages with them by a name.
const OTHERS: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    PROCESS_MRELEASE,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semctl,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgget,
    libc::SYS_msgctl,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Parts of the kernel that ordinary users may call, and models do not.
const KERNEL: &[c_long] = &[
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    // io_uring can make sockets that this filter does not see. Libraries work without it.
    libc::SYS_io_uring_setup,
];

/// Old calls that only x86-64 still has.
#[cfg(target_arch = "x86_64")]
const FORMER_ATTRIBUTES: &[c_long] =
    &[libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat];
#[cfg(not(target_arch = "x86_64"))]
const FORMER_ATTRIBUTES: &[c_long] = &[];
#[cfg(target_arch = "x86_64")]
const FORMER_FORKS: &[c_long] = &[libc::SYS_fork, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const FORMER_FORKS: &[c_long] = &[];

/// Calls that set attributes of a file through a descriptor that is open only for reading: flags such as "immutable", its generation, further
/// attributes, verity and encryption. File systems have three numbers for flags and generations.
const ATTRIBUTES_BY_IOCTL: [u64; 6] = [0x4008_6602, 0x4008_6604, 0x4008_7602, 0x401c_5820, 0x4080_6685, 0x800c_6613];
/// Calls of Btrfs have this in their second byte. Some make, mark and remove subvolumes, through a directory that is open only for reading.
const BTRFS: u64 = 0x9400;
/// Calls of all file systems that have this byte too. They copy and compare between descriptors that may be written.
const CLONES: [u64; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];

/// Puts bytes into the input of a terminal, as if its user had typed them.
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
/// Calls that change a terminal's settings or its foreground group. They could stop a server in the background that writes its log to the terminal.
const TERMINAL: [u64; 11] =
    [0x5402, 0x5403, 0x5404, 0x5406, 0x5407, 0x5408, 0x402c_542b, 0x402c_542c, 0x402c_542d, 0x540e, 0x5410];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Conditions = Vec<SeccompCondition>;

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoFilter {
    #[error("seccomp has no filters for processors of this kind ({0})")]
    Processor(BackendError),
    #[error("the kernel takes no seccomp filter ({0}): it needs CONFIG_SECCOMP_FILTER")]
    Kernel(seccompiler::Error),
    #[error(
        "the kernel cannot keep a process that starts others from signalling processes outside, which needs Landlock of ABI 6: run Linux 6.12 \
         or newer, or set sandbox-processes=0"
    )]
    Signals,
}

/// Refuses the calls from now on, in this process and in the program that it becomes. `has_scopes`: the kernel itself refuses signals to processes
/// outside.
pub(crate) fn restrict(policy: &Policy, has_scopes: bool) -> Result<(), NoFilter> {
    let signals = if has_scopes {
        None
    } else if policy.processes == Processes::Itself {
        Some(u64::from(std::process::id()))
    } else if policy.is_best_effort {
        None
    } else {
        return Err(NoFilter::Signals);
    };
    let filters = filters(policy, signals).map_err(NoFilter::Processor)?;
    filters.iter().try_for_each(|filter| seccompiler::apply_filter(filter)).map_err(NoFilter::Kernel)
}

/// The filter programs that the kernel runs for each call. Each may refuse the call.
fn filters(policy: &Policy, own_number: Option<u64>) -> Result<Vec<BpfProgram>, BackendError> {
    // The flags of `clone3` are in memory, which a filter cannot read. Libraries use `clone` if `clone3` does not exist.
    let absent = compiled(Rules::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)?;
    let refused = compiled(refused(policy, own_number)?, libc::EPERM)?;
    let mut filters = vec![absent, refused];
    if cfg!(target_arch = "x86_64") {
        filters.push(without_x32());
    }
    Ok(filters)
}

/// Refuses each call of x32, whatever its number. `seccompiler` has rules for single numbers only.
fn without_x32() -> BpfProgram {
    let instruction = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    vec![
        // The number is the first field of the data that the kernel gives to a filter.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, X32, 0, 1),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]
}

fn refused(policy: &Policy, own_number: Option<u64>) -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    let whole = ATTRIBUTES.iter().chain(FORMER_ATTRIBUTES).chain(OTHERS).chain(KERNEL);
    rules.extend(whole.map(|call| (*call, Vec::new())));
    rules.insert(libc::SYS_ioctl, any(ioctls()?)?);
    by_number(&mut rules, own_number)?;
    if !policy.has_network {
        rules.insert(libc::SYS_socket, Vec::new());
        rules.insert(libc::SYS_socketpair, any(pairs()?)?);
    }
    if policy.memory_bytes.is_some() {
        rules.extend([libc::SYS_memfd_create, libc::SYS_memfd_secret].map(|call| (call, Vec::new())));
        let shared = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64;
        // The limit on data counts a mapping that grows downwards as a stack, and so not at all.
        let stack = libc::MAP_GROWSDOWN as u64;
        rules.insert(libc::SYS_mmap, any([vec![masked(3, shared, shared)?], vec![masked(3, stack, stack)?]])?);
    }
    let mut clones = vec![vec![masked(0, libc::CLONE_NEWUSER as u64, libc::CLONE_NEWUSER as u64)?]];
    if policy.processes == Processes::Itself {
        clones.push(vec![masked(0, libc::CLONE_THREAD as u64, 0)?]);
        rules.extend(FORMER_FORKS.iter().map(|call| (*call, Vec::new())));
    }
    rules.insert(libc::SYS_clone, any(clones)?);
    Ok(rules)
}

/// Calls on descriptors that are refused.
fn ioctls() -> Result<Vec<Conditions>, BackendError> {
    let numbers = [TIOCSTI, TIOCLINUX].into_iter().chain(TERMINAL).chain(ATTRIBUTES_BY_IOCTL);
    let mut ioctls: Vec<_> = numbers.map(|number| Ok(vec![is(1, number)?])).collect::<Result<_, BackendError>>()?;
    let btrfs = std::iter::once(masked(1, 0xff00, BTRFS)).chain(CLONES.map(|number| is_not(1, number)));
    ioctls.push(btrfs.collect::<Result<_, _>>()?);
    Ok(ioctls)
}

/// Pairs of sockets that are refused. A connected pair reaches no other process. But one end of a datagram pair could be connected to another socket.
/// For SOCK_RAW the kernel makes a datagram pair as well.
fn pairs() -> Result<Vec<Conditions>, BackendError> {
    let connected = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
    let kinds = (0..=SOCK_TYPE_MASK).filter(|kind| connected.iter().all(|allowed| *kind != *allowed as u64));
    let of_kind = kinds.map(|kind| Ok(vec![masked(1, SOCK_TYPE_MASK, kind)?]));
    std::iter::once(Ok(vec![is_not(0, libc::AF_UNIX as u64)?])).chain(of_kind).collect()
}

/// The rest of a socket's type are flags.
const SOCK_TYPE_MASK: u64 = 0xf;

/// Calls that act on any process of the same user. This process may name only itself, mostly as 0.
fn by_number(rules: &mut Rules, own_number: Option<u64>) -> Result<(), BackendError> {
    let numbered = [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
        libc::SYS_move_pages,
    ];
    for call in numbered {
        rules.insert(call, any([vec![is_not(0, 0)?]])?);
    }
    let (process, io_process) = (libc::PRIO_PROCESS as u64, 1);
    rules.insert(libc::SYS_setpriority, any([vec![is_not(0, process)?], vec![is_not(1, 0)?]])?);
    rules.insert(libc::SYS_ioprio_set, any([vec![is_not(0, io_process)?], vec![is_not(1, 0)?]])?);
    let Some(own) = own_number else { return Ok(()) };
    let signals = [libc::SYS_kill, libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo];
    for call in signals {
        rules.insert(call, any([vec![is_not(0, own)?]])?);
    }
    // For `kill`, 0 means the caller's group. The process could join the server's group, because both are in one session.
    let whole = [libc::SYS_tkill, libc::SYS_pidfd_send_signal, libc::SYS_setpgid, libc::SYS_setsid];
    rules.extend(whole.map(|call| (call, Vec::new())));
    let owners = any([vec![is(1, libc::F_SETOWN as u64)?], vec![is(1, F_SETOWN_EX)?]])?;
    rules.insert(libc::SYS_fcntl, owners);
    let owners = [vec![is(1, FIOSETOWN)?], vec![is(1, SIOCSPGRP)?]];
    rules.entry(libc::SYS_ioctl).or_default().extend(any(owners)?);
    Ok(())
}

/// These set which process gets the signals of a descriptor, by fcntl and by ioctl.
const F_SETOWN_EX: u64 = 15;
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;

fn compiled(rules: Rules, errno: i32) -> Result<BpfProgram, BackendError> {
    let processor = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), processor)?.try_into()
}

fn any(each: impl IntoIterator<Item = Conditions>) -> Result<Vec<SeccompRule>, BackendError> {
    each.into_iter().map(SeccompRule::new).collect()
}

fn condition(argument: u8, how: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, how, value)
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::Eq, value)
}

fn is_not(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::Ne, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::MaskedEq(mask), value)
}

#[cfg(test)]
mod tests;
