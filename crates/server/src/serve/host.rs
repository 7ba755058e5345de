//! How busy is the machine?

use std::time::Duration;

use nerite_api::{Api, HostMetrics};
use nerite_memory::Group;
use tokio::time::{MissedTickBehavior, interval};

/// Measures the load of the machine at the interval `every` for the metrics, until the task is dropped.
pub async fn watch(api: Api, every: Duration) {
    let mut ticks = interval(every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = Ticks::default();
    loop {
        ticks.tick().await;
        // Files of /proc are generated in memory, so reading them hardly blocks.
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let now = ticks_of(&read("/proc/stat"));
        let (memory_total_bytes, memory_used_bytes) = memory_of(&read("/proc/meminfo"), nerite_memory::group());
        api.note_host(HostMetrics { cpu_utilization: utilization(before, now), memory_total_bytes, memory_used_bytes });
        before = now;
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
    fn memory_is_in_bytes() {
        let meminfo = "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:  40 kB\n";
        let of_group = |limit_bytes| memory_of(meminfo, Some(Group { limit_bytes, used_bytes: 7 }));
        assert_eq!(memory_of(meminfo, None), (102_400, 61_440));
        assert_eq!(of_group(Some(5000)), (5000, 7));
        assert_eq!(of_group(Some(200_000)), (102_400, 61_440));
    }
}
