//! How much processor time did processes use, how often did their threads sleep, and where do they listen?

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

/// What the threads of some processes used so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage(HashMap<u32, Thread>);

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    cpu_ns: u64,
    /// Voluntary context switches.
    sleeps: u64,
}

/// Where the threads of some processes ran last: the clock ticks that each has used, and its core.
#[derive(Clone, Debug, Default)]
pub(super) struct Cores(HashMap<u32, (u64, u64)>);

impl Cores {
    pub(super) fn of(pids: &[u32]) -> Cores {
        let read = |path: String| {
            let fields = fields(&fs::read_to_string(path).ok()?)?;
            Some((fields.get(USER)? + fields.get(SYSTEM)?, *fields.get(CORE)?))
        };
        let all = pids.iter().flat_map(|pid| threads(*pid));
        Cores(
            all.filter_map(|(pid, thread)| Some((thread, read(format!("/proc/{pid}/task/{thread}/stat"))?))).collect(),
        )
    }

    /// The cores of threads that have run since.
    pub(super) fn since(&self, before: &Cores) -> HashSet<u64> {
        let has_run = |(thread, (ticks, _)): &(&u32, &(u64, u64))| {
            before.0.get(thread).is_none_or(|(earlier, _)| ticks > earlier)
        };
        self.0.iter().filter(has_run).map(|(_, (_, core))| *core).collect()
    }
}

impl Usage {
    pub(super) fn of(pids: &[u32]) -> Usage {
        let all = pids.iter().flat_map(|pid| threads(*pid));
        Usage(all.filter_map(|(pid, thread)| Some((thread, read_thread(pid, thread)?))).collect())
    }

    /// A thread that has ended since does not count any more.
    pub(super) fn cpu_ns_since(&self, before: &Usage) -> u64 {
        self.since(before).map(|(now, before)| now.cpu_ns.saturating_sub(before.cpu_ns)).sum()
    }

    pub(super) fn wake_ups_since(&self, before: &Usage) -> u64 {
        self.since(before).map(|(now, before)| now.sleeps.saturating_sub(before.sleeps)).sum()
    }

    fn since<'u>(&'u self, before: &'u Usage) -> impl Iterator<Item = (&'u Thread, Thread)> + 'u {
        self.0.iter().map(|(thread, now)| (now, before.0.get(thread).copied().unwrap_or_default()))
    }
}

fn read_thread(pid: u32, thread: u32) -> Option<Thread> {
    let folder = format!("/proc/{pid}/task/{thread}");
    let scheduled = fs::read_to_string(format!("{folder}/schedstat")).ok()?;
    let status = fs::read_to_string(format!("{folder}/status")).ok()?;
    Some(Thread {
        cpu_ns: scheduled.split_whitespace().next()?.parse().ok()?,
        sleeps: field(&status, "voluntary_ctxt_switches")?,
    })
}

/// These processes and all their descendants at this moment.
pub(super) fn with_descendants(roots: &[u32]) -> Vec<u32> {
    let parent =
        |pid: u32| Some((pid, *fields(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.get(PARENT)? as u32));
    let parents: Vec<(u32, u32)> = if roots.is_empty() {
        Vec::new()
    } else {
        numbers(Path::new("/proc")).into_iter().filter_map(parent).collect()
    };
    let mut family = roots.to_vec();
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        let children: Vec<u32> =
            parents.iter().filter(|(pid, of)| *of == parent && !family.contains(pid)).map(|(pid, _)| *pid).collect();
        family.extend(children);
        at += 1;
    }
    family
}

/// The process on this host that listens at this TCP port. `None`: no process, or one of another user.
pub(crate) fn listening_at(port: u16) -> Option<u32> {
    let sockets = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let link = format!("socket:[{}]", sockets.iter().find_map(|table| listener(table, port))?);
    let has_it = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target.to_str() == Some(&link))
    };
    // Processes that a server starts may have the socket too, and have larger numbers mostly. The parent counts them anyway.
    let mut pids = numbers(Path::new("/proc"));
    pids.sort_unstable();
    pids.into_iter().find(has_it)
}

/// The inode of the socket that listens at this port, from `/proc/net/tcp`; see proc_pid_net(5).
fn listener(table: &str, port: u16) -> Option<&str> {
    const LISTENS: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, own) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(own, 16).ok()? == port && *fields.get(3)? == LISTENS;
        is_it.then(|| fields.get(9).copied()).flatten()
    })
}

/// Resident memory in bytes.
pub(super) fn resident(pid: u32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS").map(|kib| kib << 10)
}

/// The largest resident memory so far in bytes.
pub(super) fn resident_max(pid: u32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmHWM").map(|kib| kib << 10)
}

/// The threads of a process, with its number.
fn threads(pid: u32) -> impl Iterator<Item = (u32, u32)> {
    numbers(Path::new(&format!("/proc/{pid}/task"))).into_iter().map(move |thread| (pid, thread))
}

/// The entries of a folder whose names are numbers.
fn numbers(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

// Positions after the state, which follows the name in brackets; see proc_pid_stat(5).
const PARENT: usize = 0;
const USER: usize = 10;
const SYSTEM: usize = 11;
const CORE: usize = 35;

/// The numbers after the state. The name may hold spaces and brackets, so the last bracket is what counts.
fn fields(stat: &str) -> Option<Vec<u64>> {
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect())
}

/// A number of `/proc/<pid>/status`.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let mut stat = "7 (a) b) S 3".to_owned();
        (5..=52).for_each(|number| stat += &format!(" {number}"));
        let all = fields(&stat).expect("fields");
        // proc_pid_stat(5) numbers the parent 4 and the core 39.
        assert_eq!((all[PARENT], all[CORE]), (3, 39));
    }

    #[test]
    fn a_listener_is_found_by_its_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F40 00000000:0000 01 0:0 00:0 0 0 0 11 1\n   1: 00000000:1F40 00000000:0000 0A 0:0 00:0 0 0 0 22 1\n";
        assert_eq!(listener(table, 8000), Some("22"));
        assert_eq!(listener(table, 8001), None);
    }

    #[test]
    fn a_core_counts_if_a_thread_ran_there_since() {
        let before = Cores([(1, (10, 0)), (2, (10, 0))].into());
        let after = Cores([(1, (10, 0)), (2, (11, 1))].into());
        assert_eq!(after.since(&before), HashSet::from([1]));
    }

    #[test]
    fn a_thread_that_has_ended_does_not_count() {
        let thread = |cpu_ns| Thread { cpu_ns, ..Thread::default() };
        let before = Usage([(1, thread(10)), (2, thread(99))].into());
        let after = Usage([(1, thread(25)), (3, thread(4))].into());
        assert_eq!(after.cpu_ns_since(&before), 19);
    }
}
