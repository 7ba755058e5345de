//! How much memory do the processes of a model have, as the kernel says?

use std::sync::Arc;

use nerite_request::report::MemoryUsage;
use rustix::param::page_size;
use rustix::process::Pid;

use crate::child::Child;
use crate::living::Living;
use crate::os_process::OsProcess;

/// The processes of one model version. Each counts as long as it lives.
#[derive(Default)]
pub struct ResidentMemory(Living<OsProcess>);

impl ResidentMemory {
    /// Counts this process from now on.
    pub fn add(&self, child: &Child) {
        self.add_process(&child.os_process);
    }

    /// The sum of the processes' own memory, read now: resident pages that belong to no file. It has neither memory that they share with the server
    /// or with clients, nor the memory of processes that a model starts itself.
    pub fn report(&self) -> Vec<MemoryUsage> {
        let all = self.0.all();
        let pages: u64 = all.iter().filter_map(|process| own_pages(process)).fold(0, u64::saturating_add);
        MemoryUsage::of_host(pages.saturating_mul(page_size() as u64))
    }

    fn add_process(&self, process: &Arc<OsProcess>) {
        self.0.add(process);
    }
}

/// The pages of a process that is not reaped yet.
fn own_pages(process: &OsProcess) -> Option<u64> {
    let pages = pages_of(process.pid()?)?;
    // If the process was reaped meanwhile, the pages may be those of another process with the same ID.
    (!process.is_reaped()).then_some(pages)
}

/// Reading `statm` takes none of the locks of the process's memory, so a process that maps or unmaps much does not delay it.
fn pages_of(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).ok()?;
    let mut numbers = text.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, of_files) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(resident.saturating_sub(of_files))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// A process that has filled this many MiB.
    fn filled(mib: usize) -> Arc<OsProcess> {
        // The shell keeps what it has read in memory of its own.
        let script = format!("a=$(head -c {} /dev/zero | tr '\\0' x); echo; sleep 1000", mib << 20);
        let mut command = Command::new("sh");
        let mut process = command.args(["-c", &script]).stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        Arc::new(OsProcess::new(process))
    }

    #[test]
    fn processes_count_what_they_filled_as_long_as_they_live() {
        let memory = ResidentMemory::default();
        assert_eq!(memory.report(), []);
        let (one, other) = (filled(8), filled(16));
        memory.add_process(&one);
        memory.add_process(&other);
        let bytes = |memory: &ResidentMemory| memory.report().iter().map(|one| one.bytes).sum::<u64>();
        assert!(memory.report().iter().all(|one| (one.kind, one.id) == ("CPU", 0)));
        let both = bytes(&memory);
        assert!((24 << 20..200 << 20).contains(&both), "{both}");
        other.kill_and_reap();
        let left = bytes(&memory);
        assert!((8 << 20..both - (16 << 20) + 1).contains(&left), "{left} of {both}");
        drop(other);
        one.kill_and_reap();
        assert_eq!(memory.report(), []);
    }
}
