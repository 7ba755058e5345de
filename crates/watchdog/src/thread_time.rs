//! How long did this thread run, and how long was it ready to run without a processor?

use std::fs::File;
use std::io::Read;

use rustix::time::{ClockId, clock_gettime};

/// What the kernel says of this thread: its processor time, and how long it waited for a processor, in ns. It is not kept open, because each thread would
/// need a descriptor. Kernels that do not count have no such file.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";
/// Three numbers of 20 digits, and what separates them.
const SCHEDSTAT_BYTES_MAX: usize = 64;

/// The processor time of this thread, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How long this thread was ready to run and other threads had the processors, in nanoseconds. It tells a busy machine from a wait. 0 if the kernel does
/// not count it.
pub(crate) fn thread_ready_ns() -> u64 {
    let mut text = [0; SCHEDSTAT_BYTES_MAX];
    let len = File::open(SCHEDSTAT).and_then(|mut file| file.read(&mut text)).unwrap_or(0);
    text.get(..len).and_then(ready_ns_of).unwrap_or(0)
}

/// The second number.
fn ready_ns_of(schedstat: &[u8]) -> Option<u64> {
    std::str::from_utf8(schedstat).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_is_the_time_without_a_processor() {
        let check = |text: &str, expect| assert_eq!(ready_ns_of(text.as_bytes()), expect, "{text}");
        check("1290861 5134 7\n", Some(5134));
        check("18446744073709551615 18446744073709551615 18446744073709551615\n", Some(u64::MAX));
        check("1290861", None);
        check("1290861 x 7", None);
    }

    #[test]
    fn the_times_of_a_thread_never_go_back() {
        let before = (thread_cpu_ns(), thread_ready_ns());
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        assert!(thread_cpu_ns() > before.0 && thread_ready_ns() >= before.1);
    }
}
