//! What do the threads of a server do?

use std::fs;
use std::thread::yield_now;

/// Looks at the other threads ten times a second, whatever they do.
const WATCHDOG: &str = "nerite-watchdog";

/// What the kernel says of the threads of this process, without the watchdog and the thread that calls.
fn statuses(process: u32) -> Vec<String> {
    let own = fs::read_link("/proc/thread-self").unwrap();
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().map(Result::unwrap);
    let others = threads.filter(|thread| Some(&*thread.file_name()) != own.file_name());
    // A thread may end meanwhile.
    let statuses = others.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    statuses.filter(|status| value(status, "Name:") != WATCHDOG).collect()
}

/// The numbers of these threads.
pub fn threads(process: u32) -> Vec<String> {
    statuses(process).iter().map(|status| value(status, "Pid:").to_owned()).collect()
}

fn value<'s>(status: &'s str, key: &str) -> &'s str {
    status.lines().find_map(|line| line.strip_prefix(key)).map_or("", str::trim)
}

fn until_all(process: u32, is_so: impl Fn(&str) -> bool) {
    while !statuses(process).iter().all(|status| is_so(status)) {
        yield_now();
    }
}

/// Waits until all threads sleep. What they had to do for a request is done then.
pub fn until_asleep(process: u32) {
    until_all(process, |status| value(status, "State:").starts_with('S'));
}

/// Waits until somebody traces all threads.
pub fn until_traced(process: u32) {
    until_all(process, |status| value(status, "TracerPid:") != "0");
}

/// How often the threads went to sleep until now.
pub fn sleeps(process: u32) -> u64 {
    statuses(process).iter().map(|status| value(status, "voluntary_ctxt_switches:").parse::<u64>().unwrap_or(0)).sum()
}
