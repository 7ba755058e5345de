//! What do client and server cost the machine?

mod process;

use std::fs;

use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::process::listening_at;
use self::process::{Cores, Usage, with_descendants};
use crate::results::Cost;

/// The share of looks at which both sides were on one core, from which on the report says so.
const ONE_CORE: f64 = 0.9;

/// The processes of both sides.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    own: u32,
    /// Empty: the server is on another host, or belongs to another user.
    server: Vec<u32>,
}

/// What was used until a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    client_ns: u64,
    client: Usage,
    server: Usage,
    /// Clock ticks of all cores: idle, and all.
    idle: (u64, u64),
}

/// The cores on which both sides were seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Of the client and of the server.
    cores: [Cores; 2],
    /// Looks since which both sides had run.
    looks: u64,
    on_one_core: u64,
}

impl Meter {
    /// `server` are the server's processes. Their descendants count too.
    pub(crate) fn new(server: &[u32]) -> Meter {
        Meter { own: std::process::id(), server: with_descendants(server) }
    }

    pub(crate) fn read(&self) -> Used {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        Used {
            client_ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
            client: Usage::of(&[self.own]),
            server: Usage::of(&self.server),
            idle: idle(&fs::read_to_string("/proc/stat").unwrap_or_default()),
        }
    }

    /// Notes on which cores the threads of both sides ran since the last look.
    pub(crate) fn look(&self, before: &mut Seen) {
        let now = [Cores::of(&[self.own]), Cores::of(&self.server)];
        let [client, server] = [0, 1].map(|side| now[side].since(&before.cores[side]));
        before.cores = now;
        if client.is_empty() || server.is_empty() {
            return;
        }
        before.looks += 1;
        before.on_one_core += u64::from(client.union(&server).count() == 1);
    }

    /// The cost of each of `requests` requests between two moments.
    pub(crate) fn cost(&self, before: &Used, after: &Used, requests: u64, seen: &Seen) -> Cost {
        let each = |count: f64| count / requests.max(1) as f64;
        let has_server = !self.server.is_empty();
        let (idle, all) = (after.idle.0.saturating_sub(before.idle.0), after.idle.1.saturating_sub(before.idle.1));
        Cost {
            client_cpu_us: each((after.client_ns - before.client_ns) as f64 / 1e3),
            client_wake_ups: each(after.client.wake_ups_since(&before.client) as f64),
            server_cpu_us: has_server.then(|| each(after.server.cpu_ns_since(&before.server) as f64 / 1e3)),
            server_wake_ups: has_server.then(|| each(after.server.wake_ups_since(&before.server) as f64)),
            copied_bytes: None,
            idle: idle as f64 / all.max(1) as f64,
            is_one_core: (seen.looks > 0).then_some(seen.on_one_core as f64 >= ONE_CORE * seen.looks as f64),
            client_bytes: process::resident_max(self.own).unwrap_or_default(),
            server_bytes: has_server.then(|| self.server.iter().filter_map(|pid| process::resident(*pid)).sum()),
        }
    }
}

/// The idle ticks and all ticks of the machine's cores, from `/proc/stat`; see proc_stat(5).
fn idle(stat: &str) -> (u64, u64) {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // User, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time.
    let idle = ticks.iter().skip(3).take(2).sum();
    (idle, ticks.iter().take(8).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_includes_waiting_for_disks() {
        assert_eq!(idle("cpu  10 1 5 80 4 0 0 0 7 0\ncpu0 1 1 1 1\n"), (84, 100));
    }

    #[test]
    fn this_process_uses_time() {
        let meter = Meter::new(&[std::process::id()]);
        let before = meter.read();
        let mut sum = 0u64;
        while meter.read().client_ns < before.client_ns + 1_000_000 {
            sum = sum.wrapping_mul(31).wrapping_add(7);
        }
        let cost = meter.cost(&before, &meter.read(), 1, &Seen::default());
        assert!(cost.client_cpu_us >= 1000.0 && cost.server_cpu_us.is_some_and(|us| us > 0.0), "{cost:?} {sum}");
        assert!(cost.client_bytes > 0);
    }
}
