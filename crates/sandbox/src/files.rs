//! Which files and which other processes can a process access?
//!
//! Landlock, a part of the kernel, decides it. Files that no rule names cannot be opened. A process in a Landlock domain cannot trace processes
//! outside, nor read their memory. If the kernel is new enough, it cannot signal them or reach their abstract sockets either.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

use crate::policy::{Named, Policy};

/// The oldest ABI that also protects files from being truncated: Linux 6.2.
const NEEDED: ABI = ABI::V3;
/// The first ABI that refuses signals to processes outside: Linux 6.12.
const WITH_SCOPES: ABI = ABI::V6;

/// Paths that every program may need. Secrets in them are protected by the permissions of files.
const SYSTEM: [&str; 16] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/proc",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/sys/class",
    "/sys/bus",
    "/sys/module",
];

/// Paths below `/etc`. Other files there have secrets that a server of root could read.
const CONFIGURATION: [&str; 34] = [
    "alternatives",
    "bindresvport.blacklist",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "group",
    "host.conf",
    "hostname",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.preload",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "OpenCL",
    "os-release",
    "passwd",
    "pki/ca-trust",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/certs",
    "timezone",
];

const DEVICES_READ: [&str; 2] = ["/dev/random", "/dev/urandom"];
const DEVICES_WRITTEN: [&str; 2] = ["/dev/null", "/dev/full"];
/// A process that may write to this file can map it as shared memory, which no limit counts.
const ZEROS: &str = "/dev/zero";

/// Which parts of Landlock the kernel supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilesHeld {
    /// The version of Landlock's ABI; `None` if Landlock enforces nothing here.
    pub(crate) abi: Option<i32>,
    /// Whether signals to processes outside are refused.
    pub(crate) has_scopes: bool,
}

/// Why the process's access to files cannot be restricted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoFiles {
    #[error(
        "the kernel has no Landlock of ABI 3 or newer ({0}): run Linux 6.2 or newer with 'landlock' in its lsm= list, and in a container a seccomp \
         profile that lets landlock_create_ruleset pass"
    )]
    Kernel(RulesetError),
    #[error("'{path}', which the model names, cannot be opened without following a link: {error}")]
    Named { path: PathBuf, error: io::Error },
}

/// Restricts this process, and the program that it becomes, to the files of the policy.
pub(crate) fn restrict(policy: &Policy) -> Result<FilesHeld, NoFiles> {
    let mut rules = begin(policy).map_err(NoFiles::Kernel)?;
    for Named { path, is_writable } in &policy.named {
        let failed = |error: io::Error| NoFiles::Named { path: path.clone(), error };
        let file = open(path, ResolveFlags::NO_SYMLINKS).map_err(failed)?;
        let access = if *is_writable { writing() | AccessFs::IoctlDev } else { AccessFs::from_read(NEEDED) };
        rules = allow(rules, &file, access).map_err(NoFiles::Kernel)?;
    }
    for (path, access) in places(policy) {
        // A path that does not exist needs no rule.
        let Ok(file) = open(&path, ResolveFlags::empty()) else { continue };
        rules = allow(rules, &file, access).map_err(NoFiles::Kernel)?;
    }
    let status = rules.restrict_self().map_err(NoFiles::Kernel)?;
    let abi = match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => None,
    };
    Ok(FilesHeld { abi: abi.map(|abi| abi as i32), has_scopes: abi.is_some_and(|abi| abi >= WITH_SCOPES) })
}

/// The restrictions. Newer parts are used if the kernel has them. Otherwise `calls` takes their place.
fn begin(policy: &Policy) -> Result<RulesetCreated, RulesetError> {
    let level = if policy.is_best_effort { CompatLevel::BestEffort } else { CompatLevel::HardRequirement };
    let mut rules = Ruleset::default()
        .set_compatibility(level)
        .handle_access(AccessFs::from_all(NEEDED))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::IoctlDev)?
        .scope(Scope::from_all(WITH_SCOPES))?;
    if !policy.has_network {
        rules = rules.handle_access(AccessNet::from_all(WITH_SCOPES))?;
    }
    rules.create()
}

fn places(policy: &Policy) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
    let read = AccessFs::from_read(NEEDED);
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
    let etc = Path::new("/etc");
    // A distribution's Python reads its sitecustomize.py there.
    let pythons = etc.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let pythons =
        pythons.filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python")));
    let mut places: Vec<_> = SYSTEM.iter().map(|path| (PathBuf::from(path), read)).collect();
    places.extend(CONFIGURATION.iter().map(|name| etc.join(name)).chain(pythons).map(|path| (path, read)));
    places.extend(DEVICES_READ.iter().map(|path| (path.into(), AccessFs::ReadFile.into())));
    places.extend(DEVICES_WRITTEN.iter().map(|path| (path.into(), device)));
    places.push((ZEROS.into(), if policy.memory_bytes.is_some() { AccessFs::ReadFile.into() } else { device }));
    places.extend(policy.read.iter().map(|path| (path.clone(), read)));
    places.extend(policy.write.iter().map(|path| (path.clone(), writing())));
    places
}

/// The rights to read, write, make and remove files. They do not include the execution of programs.
fn writing() -> BitFlags<AccessFs> {
    AccessFs::from_all(NEEDED) & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock)
}

fn allow(rules: RulesetCreated, file: &OwnedFd, access: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    let of_file = access & (AccessFs::from_file(NEEDED) | AccessFs::IoctlDev);
    let is_directory = fstat(file).is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir());
    rules.add_rule(PathBeneath::new(file.as_fd(), if is_directory { access } else { of_file }))
}

fn open(path: &Path, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    Ok(openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}
