//! How are the processes and threads of one model counted?
//!
//! The kernel's own limit (`RLIMIT_NPROC`) counts all that a user has on the host. In its own user namespace, a process counts only the processes
//! that it started there.

use std::fs;
use std::io;

use nix::sched::{CloneFlags, unshare};
use rustix::process::{Resource, getgid, getuid};

use crate::limits::lower;
use crate::policy::{Policy, Processes};

/// Why the processes cannot be counted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoCount {
    #[error(
        "the kernel does not limit how many processes root has: run the server as another user, or set sandbox-processes to 0 (no other \
         process) or 'any'"
    )]
    Root,
    #[error(
        "no user namespace can be made, in which alone a model's processes are counted by themselves ({0}): allow them \
         (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor's or the container's profile), or set sandbox-processes to 0 \
         (no other process) or 'any'"
    )]
    Namespace(io::Error),
    #[error("the number of processes cannot be limited: {0}")]
    Limit(io::Error),
}

/// Limits the number of processes from now on, if the policy sets one. Returns whether the limit is in force.
pub(crate) fn restrict(policy: &Policy) -> Result<bool, NoCount> {
    let Processes::AtMost(count) = policy.processes else { return Ok(policy.processes == Processes::Itself) };
    let counted = if getuid().is_root() { Err(NoCount::Root) } else { own_namespace().map_err(NoCount::Namespace) };
    match counted {
        Err(_) if policy.is_best_effort => Ok(false),
        counted => counted.and_then(|()| lower(Resource::Nproc, count).map_err(NoCount::Limit)).map(|()| true),
    }
}

/// Enters a user namespace in which this user keeps its number.
fn own_namespace() -> io::Result<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    // The kernel requires this before an unprivileged user may map a group.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}
