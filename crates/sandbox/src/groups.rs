//! Which control group holds the processes of an instance together?
//!
//! ```text
//!   nerite.service             delegated to the server (systemd's Delegate=, or the top of a container)
//!   ├─ nerite-server           the server, and processes that nothing confines
//!   ├─ nerite-sandbox-4711     an instance: pids.max, memory.max
//!   └─ nerite-sandbox-4712
//! ```
//!
//! The server finds the group that it may divide. The process that confines itself makes a group below that one and joins it, before it loses the
//! right to write there. A group with processes cannot have children with limits, so the server moves into a child group as well if necessary.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Access, access, getxattr};

use crate::policy::{Policy, Processes};

/// The beginning of the names of instances' groups. The number of the process that made the group follows.
const PREFIX: &str = "nerite-sandbox-";
/// The server's own.
const SERVER: &str = "nerite-server";
/// How often the processes of a group are moved out. New ones may start meanwhile.
const MOVES_MAX: usize = 8;

/// Why there is no control group.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoGroup {
    #[error("no control groups of version 2 are mounted")]
    Version,
    #[error(
        "the server's control group '{0}' is not its own to divide; give its service Delegate=yes, or start it in a group below the top of its container"
    )]
    NotDelegated(String),
    #[error("{} has no controller '{missing}' for groups below it", path.display())]
    Controller { path: PathBuf, missing: &'static str },
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
}

/// Only one load at a time changes groups.
static CHANGE: Mutex<()> = Mutex::new(());

/// The group below which this policy's processes have their groups; `None` if the policy has no limit that needs one.
pub(crate) fn base(policy: &Policy) -> Result<Option<PathBuf>, NoGroup> {
    let controllers = controllers(policy);
    if controllers.is_empty() {
        return Ok(None);
    }
    let _one = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    let read = |name: &str| fs::read_to_string(Path::new("/proc/self").join(name)).unwrap_or_default();
    let path = GroupPath::read(&read("cgroup"), &read("mountinfo")).ok_or(NoGroup::Version)?;
    path.divide(&controllers, is_delegated).map(Some)
}

fn controllers(policy: &Policy) -> Vec<&'static str> {
    let counts = matches!(policy.processes, Processes::AtMost(_)).then_some("pids");
    counts.into_iter().chain(policy.group_memory_bytes.map(|_| "memory")).collect()
}

/// Where a process is among the groups.
#[derive(Debug, PartialEq, Eq)]
struct GroupPath {
    /// Where the top is mounted.
    top: PathBuf,
    /// The path of its group, from the top.
    own: String,
}

impl GroupPath {
    /// From the texts of the files that proc(5) calls `cgroup` and `mountinfo`.
    fn read(cgroup: &str, mountinfo: &str) -> Option<GroupPath> {
        let own = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
        let top = mountinfo.lines().find_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let top = mount.split(' ').nth(4)?;
            kind.starts_with("cgroup2 ").then(|| PathBuf::from(top))
        })?;
        // A group outside of the namespace's top.
        (!own.starts_with("/..")).then_some(GroupPath { top, own })
    }

    /// The group that may be divided, with these controllers enabled for the groups below it.
    fn divide(&self, controllers: &[&'static str], is_delegated: impl Fn(&Path) -> bool) -> Result<PathBuf, NoGroup> {
        let dir = self.top.join(self.own.trim_start_matches('/'));
        let parent = dir.parent().unwrap_or(&self.top);
        if dir == self.top {
            // The top group of the system may have both processes and child groups with limits. That of a container may not.
            return match enable(&dir, controllers) {
                Err(NoGroup::File { error, .. }) if error.kind() == io::ErrorKind::ResourceBusy => {
                    Err(NoGroup::NotDelegated(self.own.clone()))
                }
                enabled => enabled.map(|()| dir),
            };
        }
        if is_delegated(&dir) {
            move_out(&dir)?;
            enable(&dir, controllers)?;
            return Ok(dir);
        }
        // The group was made by systemd's DelegateSubgroup=, by this server earlier, or by the set-up of the container.
        if is_delegated(parent) && !is_unit(&dir) {
            enable(parent, controllers)?;
            return Ok(parent.to_owned());
        }
        if parent == self.top && missing(parent, controllers)?.is_none() && access(parent, Access::WRITE_OK).is_ok() {
            return Ok(parent.to_owned());
        }
        Err(NoGroup::NotDelegated(self.own.clone()))
    }
}

/// Whether systemd has marked the group as delegated. The right to write does not show it: root may write into groups that systemd divides.
fn is_delegated(group: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].into_iter().any(|name| {
        let mut value = [0; 2];
        getxattr(group, name, &mut value).is_ok_and(|count| value.get(..count) == Some(b"1"))
    })
}

/// Whether a systemd made the group. Then the group above it was delegated to that systemd, and only that systemd may divide it.
fn is_unit(group: &Path) -> bool {
    group.extension().is_some_and(|kind| ["service", "scope", "slice"].iter().any(|unit| kind == *unit))
}

/// The first controller that groups below this one do not have.
fn missing(group: &Path, controllers: &[&'static str]) -> Result<Option<&'static str>, NoGroup> {
    let enabled = read(group, "cgroup.subtree_control")?;
    Ok(controllers.iter().copied().find(|name| !enabled.split_whitespace().any(|word| word == *name)))
}

fn enable(group: &Path, controllers: &[&'static str]) -> Result<(), NoGroup> {
    if missing(group, controllers)?.is_none() {
        return Ok(());
    }
    let there = read(group, "cgroup.controllers")?;
    if let Some(missing) = controllers.iter().find(|name| !there.split_whitespace().any(|word| word == **name)) {
        return Err(NoGroup::Controller { path: group.to_owned(), missing });
    }
    let words: Vec<_> = controllers.iter().map(|name| format!("+{name}")).collect();
    write(group, "cgroup.subtree_control", &words.join(" "))
}

/// Moves the processes of a group, including this one, into a group below it.
fn move_out(group: &Path) -> Result<(), NoGroup> {
    let below = group.join(SERVER);
    match fs::create_dir(&below) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(NoGroup::File { path: below, error });
        }
        _ => {}
    }
    for _ in 0..MOVES_MAX {
        let processes = read(group, "cgroup.procs")?;
        if processes.trim().is_empty() {
            break;
        }
        for process in processes.lines() {
            match write(&below, "cgroup.procs", process) {
                // The process has ended.
                Err(NoGroup::File { error, .. }) if error.raw_os_error() == Some(libc::ESRCH) => {}
                written => written?,
            }
        }
    }
    Ok(())
}

/// Joins a group of its own, with the policy's limits. `false`: the policy names no group.
pub(crate) fn join(policy: &Policy) -> Result<bool, NoGroup> {
    let Some(base) = &policy.group else { return Ok(false) };
    let group = base.join(format!("{PREFIX}{}", std::process::id()));
    let failed = |error| NoGroup::File { path: group.clone(), error };
    match fs::create_dir(&group) {
        // An earlier process of the same number left it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir(&group).and_then(|()| fs::create_dir(&group)).map_err(failed)?;
        }
        made => made.map_err(failed)?,
    }
    enter(&group, policy).inspect_err(|_| drop(fs::remove_dir(&group)))?;
    Ok(true)
}

fn enter(group: &Path, policy: &Policy) -> Result<(), NoGroup> {
    if let Processes::AtMost(count) = policy.processes {
        write(group, "pids.max", &count.to_string())?;
    }
    if let Some(bytes) = policy.group_memory_bytes {
        write(group, "memory.max", &bytes.to_string())?;
        // A kernel without swap has no such file. An instance that has lost a process is of no use, so all its processes end together.
        for (name, word) in [("memory.swap.max", "0"), ("memory.oom.group", "1")] {
            let _ = write(group, name, word);
        }
    }
    // 0 means the process that writes it.
    write(group, "cgroup.procs", "0")
}

/// Removes the groups of processes that have ended.
pub(crate) fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            // It fails while processes that this one started are in it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn read(group: &Path, name: &str) -> Result<String, NoGroup> {
    let path = group.join(name);
    fs::read_to_string(&path).map_err(|error| NoGroup::File { path, error })
}

fn write(group: &Path, name: &str, words: &str) -> Result<(), NoGroup> {
    let path = group.join(name);
    fs::write(&path, words).map_err(|error| NoGroup::File { path, error })
}

#[cfg(test)]
mod tests;
