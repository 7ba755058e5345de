//! How busy is the machine?
//!
//! The load is measured on request and not periodically, so it costs nothing if nobody reads it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use nerite_api::{HostMeter, HostMetrics};
use nerite_locks::Mutex;
use nerite_memory::Group;

/// The shortest time between two measurements.
const EVERY_MIN: Duration = Duration::from_millis(10);

/// Measures the load of the machine, once in `every` at most. In between, the last figures are returned. The use of the processors is the share since
/// the measurement before, at the first time since the machine started.
pub fn meter(every: Duration) -> HostMeter {
    let (every, last) = (every.max(EVERY_MIN), Mutex::new(Last::default()));
    Box::new(move || {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        // Files of /proc are generated in memory, so reading them hardly blocks.
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        last.metrics(every, Instant::now(), || (read("/proc/stat"), read("/proc/meminfo")))
    })
}

/// The last measurement.
#[derive(Debug, Default)]
struct Last {
    at: Option<Instant>,
    ticks: Ticks,
    metrics: HostMetrics,
}

impl Last {
    /// The figures. `read` gives the contents of /proc/stat and /proc/meminfo.
    fn metrics(&mut self, every: Duration, now: Instant, read: impl FnOnce() -> (String, String)) -> HostMetrics {
        if self.at.is_none_or(|at| now.saturating_duration_since(at) >= every) {
            let (stat, meminfo) = read();
            let ticks = ticks_of(&stat);
            let (memory_total_bytes, memory_used_bytes) = memory_of(&meminfo, nerite_memory::group());
            let cpu_utilization = utilization(self.ticks, ticks);
            self.metrics = HostMetrics { cpu_utilization, memory_total_bytes, memory_used_bytes };
            (self.at, self.ticks) = (Some(now), ticks);
        }
        self.metrics
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
}

/// The first line of /proc/stat: `cpu user nice system idle iowait irq softirq steal …`.
fn ticks_of(stat: &str) -> Ticks {
    let numbers: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|n| n.parse().ok())
        .collect();
    let idle = numbers.get(3).copied().unwrap_or(0) + numbers.get(4).copied().unwrap_or(0);
    Ticks { all: numbers.iter().sum(), idle }
}

fn utilization(before: Ticks, now: Ticks) -> f64 {
    let all = now.all.saturating_sub(before.all);
    let idle = now.idle.saturating_sub(before.idle);
    if all == 0 { 0.0 } else { all.saturating_sub(idle) as f64 / all as f64 }
}

/// Total and used bytes: the host's, or those of the control group if its limit is lower.
fn memory_of(meminfo: &str, group: Option<Group>) -> (u64, u64) {
    let kib = |key: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let (total, available) = (kib("MemTotal"), kib("MemAvailable"));
    let host = (total * 1024, total.saturating_sub(available) * 1024);
    match group {
        Some(Group { limit_bytes: Some(limit), used_bytes }) if limit < host.0 => (limit, used_bytes),
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_the_share_between_two_looks() {
        let before = ticks_of("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 1 1 1\n");
        let now = ticks_of("cpu  40 0 30 110 20 0 0 0 0 0\n");
        assert_eq!(before, Ticks { all: 100, idle: 80 });
        assert!((utilization(before, now) - 0.5).abs() < 1e-9);
        assert!(utilization(now, now).abs() < 1e-9);
    }

    #[test]
    fn figures_are_taken_when_needed_and_once_in_an_interval_at_most() {
        let (begun, every, mut last) = (Instant::now(), Duration::from_millis(100), Last::default());
        let mut share = |at_ms: u64, stat: &str| {
            let mut reads = 0;
            let read = || {
                reads += 1;
                (format!("cpu {stat}"), "MemTotal: 2 kB\nMemAvailable: 1 kB\n".to_owned())
            };
            let found = last.metrics(every, begun + Duration::from_millis(at_ms), read);
            (reads, (found.cpu_utilization * 100.0).round() as u64)
        };
        assert_eq!(share(0, "10 0 0 90"), (1, 10));
        assert_eq!(share(99, "90 0 0 100"), (0, 10));
        assert_eq!(share(100, "60 0 0 140"), (1, 50));
        assert_eq!(share(60_000, "90 0 0 210"), (1, 30), "the share since the last measurement");
    }

    #[test]
    fn memory_is_in_bytes() {
        let meminfo = "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:  40 kB\n";
        let of_group = |limit_bytes| memory_of(meminfo, Some(Group { limit_bytes, used_bytes: 7 }));
        assert_eq!(memory_of(meminfo, None), (102_400, 61_440));
        assert_eq!(of_group(Some(5000)), (5000, 7));
        assert_eq!(of_group(Some(200_000)), (102_400, 61_440));
    }
}
