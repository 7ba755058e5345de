//! When is unused memory returned to the system?

use std::sync::Arc;
use std::time::Duration;

use nerite_api::Api;
use nerite_engine::Engine;
use nerite_watchdog::{is_asleep, until_awake};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often memory is checked.
const ROUND: Duration = Duration::from_secs(1);
/// Rounds that unused tensor memory is kept for the next request.
const POOL_ROUNDS: u32 = 2;
/// Rounds that a returned lease is kept for its session's next request.
const LEASE_ROUNDS: u32 = 3;
/// The allocator returns free memory after this many idle rounds, or after the second number of rounds in any case. Requests wait meanwhile: a few
/// milliseconds for each 16 MiB.
const HEAP_ROUNDS: u32 = 3;
const HEAP_ROUNDS_BUSY: u32 = 60;
/// If the heap has grown by this many bytes, or clients hold this much less, it is trimmed even if the server is busy.
const HEAP_GROWN_BYTES: u64 = 16 << 20;
/// While it has that much more than its minimum, it is trimmed again after this many rounds. Each trim without effect doubles the number. Clients'
/// charges do not show all memory that was freed.
const HEAP_AGAIN_ROUNDS: u32 = 4;
const HEAP_AGAIN_ROUNDS_MAX: u32 = 256;
/// Bytes above its minimum that the process keeps.
const HEAP_KEPT_BYTES: u64 = 2 << 20;
/// A round counts as idle if the process used at most this much processor time, in hundredths of a second.
const IDLE_TICKS: u64 = 2;
/// The heap is trimmed again only if the process has used more processor time than this since the last trim while it was idle. With less, it can
/// have freed only little.
const WORKED_TICKS: u64 = 10;

/// After this many rounds in which there was nothing to return and the process was idle, memory is checked again when front threads work, or
/// after the pause: models may be loaded and runs may end without them.
const QUIET_ROUNDS: u32 = 5;
const PAUSE: Duration = Duration::from_mins(1);

const _: () = assert!(
    QUIET_ROUNDS > POOL_ROUNDS && QUIET_ROUNDS > LEASE_ROUNDS && QUIET_ROUNDS > HEAP_ROUNDS,
    "all is returned before the pause"
);

/// Returns memory to the system that no request used for a while.
#[expect(clippy::disallowed_methods, reason = "one at a time")]
pub(super) async fn keep(api: Api, engine: Arc<Engine>) {
    let mut ticks = interval(ROUND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut heap, mut quiet) = (Heap::default(), Quiet::default());
    loop {
        ticks.tick().await;
        let freed = give_back_round(&api, &engine);
        let held = api.held_bytes();
        let used = Usage::now().unwrap_or_default();
        let is_due = heap.is_due(used, held) || freed;
        quiet.note(is_due || !heap.is_idle());
        if quiet.may_pause(is_asleep()) {
            // Ends at once if there is work by now.
            let _ = timeout(PAUSE, until_awake()).await;
            // What the work leaves is returned some rounds later.
            quiet.note(!is_asleep());
        }
        if is_due {
            // Not on a thread that serves connections. If there is no other thread, the next round tries again.
            let _ = tokio::task::spawn_blocking(nerite_memory::trim_heap).await;
            heap.trimmed(Usage::now().unwrap_or_default(), held);
        }
    }
}

/// The same in the process of another program: the heap belongs to that program and is not trimmed.
pub(crate) async fn give_back(api: Api, engine: Arc<Engine>) {
    let mut ticks = interval(ROUND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        give_back_round(&api, &engine);
    }
}

/// One round has passed. Returns whether tensor memory was returned.
fn give_back_round(api: &Api, engine: &Engine) -> bool {
    api.pools().trim(LEASE_ROUNDS);
    engine.runtimes().iter().for_each(|runtime| runtime.trim(LEASE_ROUNDS));
    nerite_memory::trim_pool(POOL_ROUNDS) > 0
}

/// Decides when the rounds pause.
#[derive(Debug, Default)]
struct Quiet {
    rounds: u32,
}

impl Quiet {
    /// A round or a pause has passed. `is_busy`: memory was returned, or the process worked.
    fn note(&mut self, is_busy: bool) {
        self.rounds = if is_busy { 0 } else { self.rounds.saturating_add(1) };
    }

    /// Whether to wait for work. `is_asleep`: front threads had none for a while.
    fn may_pause(&self, is_asleep: bool) -> bool {
        is_asleep && self.rounds >= QUIET_ROUNDS
    }
}

/// The usage of the process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    /// Processor time so far, in hundredths of a second.
    ticks: u64,
    /// Memory of its own.
    bytes: u64,
}

impl Usage {
    /// `None` where the system has no such files.
    fn now() -> Option<Usage> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).ok();
        Usage::parse(&read("stat")?, &read("status")?)
    }

    /// From what proc(5) calls `stat` and `status`.
    fn parse(stat: &str, status: &str) -> Option<Usage> {
        // The program's name, in parentheses, may contain anything.
        let mut times = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(11);
        let mut time = || times.next()?.parse::<u64>().ok();
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"))?;
        Some(Usage { ticks: time()?.saturating_add(time()?), bytes: own.parse::<u64>().ok()?.saturating_mul(1024) })
    }
}

/// Decides when the heap is trimmed. Otherwise the allocator would keep the memory of the largest burst.
#[derive(Debug, Default)]
struct Heap {
    before: Usage,
    /// The minimum so far; 0 until the first look.
    least: u64,
    /// The minimum since the last trim.
    floor: u64,
    /// Processor time at the last trim of an idle process; 0 if it was busy. What a busy process uses may be free a moment later.
    trimmed_ticks: u64,
    /// The most that clients made the server hold since then, in bytes.
    most_held: u64,
    idle_rounds: u32,
    rounds: u32,
    /// Rounds after which it is trimmed again; 0 before the first trim.
    again: u32,
}

impl Heap {
    /// One round has passed. Clients make the server hold `held` bytes.
    fn is_due(&mut self, now: Usage, held: u64) -> bool {
        let idle = now.ticks.saturating_sub(self.before.ticks) <= IDLE_TICKS;
        self.idle_rounds = if idle { self.idle_rounds.saturating_add(1) } else { 0 };
        self.rounds = self.rounds.saturating_add(1);
        if self.least == 0 {
            (self.least, self.floor) = (now.bytes, now.bytes);
        }
        (self.least, self.floor) = (self.least.min(now.bytes), self.floor.min(now.bytes));
        self.before = now;
        let has_grown = now.bytes > self.floor + HEAP_KEPT_BYTES;
        // Memory that was in use at the last trim and was freed since does not make the heap grow.
        let worked = now.ticks.saturating_sub(self.trimmed_ticks) > WORKED_TICKS;
        let may_have_freed = worked && now.bytes > self.least + HEAP_KEPT_BYTES;
        let rests = self.rests();
        // The clients that made it grow may have gone, while others are served.
        self.most_held = self.most_held.max(held);
        let has_grown_much = now.bytes > self.floor + HEAP_GROWN_BYTES;
        let was_let_go = self.most_held - held > HEAP_GROWN_BYTES && now.bytes > self.least + HEAP_GROWN_BYTES;
        let is_much = (has_grown_much || was_let_go) && self.rounds >= HEAP_ROUNDS;
        let stays = worked && now.bytes > self.least + HEAP_GROWN_BYTES;
        let is_again = stays && self.again > 0 && self.rounds >= self.again;
        rests && (has_grown || may_have_freed) || is_much || is_again || self.rounds >= HEAP_ROUNDS_BUSY && has_grown
    }

    /// Whether the process was idle in the last round.
    fn is_idle(&self) -> bool {
        self.idle_rounds > 0
    }

    fn rests(&self) -> bool {
        self.idle_rounds >= HEAP_ROUNDS
    }

    /// The heap was trimmed. `now` is what was left.
    fn trimmed(&mut self, now: Usage, held: u64) {
        let least = self.least.min(now.bytes);
        let gave_back = self.before.bytes > now.bytes + HEAP_KEPT_BYTES;
        let again = if gave_back { 0 } else { (2 * self.again).min(HEAP_AGAIN_ROUNDS_MAX) }.max(HEAP_AGAIN_ROUNDS);
        let trimmed_ticks = if self.rests() { now.ticks } else { 0 };
        *self = Heap { before: now, least, floor: now.bytes, trimmed_ticks, most_held: held, again, ..Heap::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Looks at these usages in turn, each in ticks and MiB. Checks in which rounds the heap is trimmed, if each trim leaves `left` MiB.
    #[track_caller]
    fn check(rounds: &[(u64, u64)], left: u64, due: &[usize]) {
        let (mut heap, mut ticks, mut found) = (Heap::default(), 0, Vec::new());
        for (round, (more, mib)) in rounds.iter().enumerate() {
            ticks += more;
            if heap.is_due(Usage { ticks, bytes: mib * MIB }, 0) {
                found.push(round);
                heap.trimmed(Usage { ticks, bytes: left * MIB }, 0);
            }
        }
        assert_eq!(found, due);
    }

    #[test]
    fn the_heap_is_trimmed_once_after_a_burst_when_there_is_nothing_to_do() {
        check(&[(50, 5), (50, 20), (0, 20), (0, 20), (0, 20), (0, 6), (0, 6), (0, 6), (0, 6), (0, 6)], 6, &[4]);
        check(&[(0, 5), (0, 7), (0, 7), (0, 7), (0, 7)], 6, &[]);
        check(&[(0, 5), (0, 5), (0, 5), (0, 20)], 6, &[3]);
    }

    #[test]
    fn the_heap_of_a_busy_server_is_trimmed_once_a_minute_or_when_much_was_kept() {
        let mut rounds = vec![(50, 5)];
        rounds.extend([(50, 20); 130]);
        check(&rounds, 6, &[59, 119]);
        check(&[(50, 5), (50, 60), (50, 60), (50, 40), (50, 40), (50, 60)], 40, &[2, 5]);
        check(&[(50, 5), (50, 60), (50, 60), (50, 60), (50, 60), (50, 60)], 60, &[2]);
    }

    #[test]
    fn the_heap_of_a_busy_server_is_trimmed_when_clients_let_much_go() {
        let mut heap = Heap::default();
        // Held at the first trim, and let go afterwards.
        let rounds = [(5, 0), (60, 50), (60, 50), (60, 50), (60, 0), (60, 0), (60, 0)];
        let mut found = Vec::new();
        for (round, (mib, held)) in rounds.into_iter().enumerate() {
            let now = Usage { ticks: 50 * round as u64, bytes: mib * MIB };
            if heap.is_due(now, held * MIB) {
                found.push(round);
                heap.trimmed(now, held * MIB);
            }
        }
        assert_eq!(found, [2, 5]);
    }

    #[test]
    fn the_heap_of_a_busy_server_is_trimmed_again_while_much_stays_and_less_often_when_it_is_in_use() {
        let mut rounds = vec![(50, 5), (50, 60)];
        rounds.extend([(50, 60); 70]);
        check(&rounds, 60, &[2, 6, 14, 30, 62]);
        // Memory that is not much above the minimum may stay.
        rounds.truncate(3);
        rounds.extend([(50, 20); 50]);
        check(&rounds, 20, &[2]);
    }

    #[test]
    fn what_is_freed_after_the_heap_was_trimmed_goes_back_when_there_is_nothing_to_do() {
        let (busy, idle) = ([(50, 20)], [(0, 20)]);
        let rounds = |first: &[(u64, u64)]| [first, &busy.repeat(60), &idle.repeat(10)].concat();
        check(&rounds(&[(50, 5)]), 20, &[59, 63]);
        let held = [&[(50, 5), (50, 20)][..], &idle.repeat(5), &[(4, 20), (4, 20), (4, 20)], &idle.repeat(10)].concat();
        check(&held, 20, &[4, 12]);
        let still = [&[(50, 5), (50, 20)][..], &idle.repeat(70)].concat();
        check(&still, 20, &[4]);
        // Trimmed while it was busy, and idle right after that.
        check(&[&[(50, 5), (50, 60), (50, 60)][..], &[(0, 60)].repeat(70)].concat(), 60, &[2, 5]);
    }

    #[test]
    fn rounds_pause_when_nothing_was_returned_for_some_and_front_threads_have_no_work() {
        let mut quiet = Quiet::default();
        let mut after = |rounds: &[bool], is_asleep| {
            for is_busy in rounds {
                quiet.note(*is_busy);
            }
            quiet.may_pause(is_asleep)
        };
        assert!(!after(&[false; QUIET_ROUNDS as usize - 1], true));
        assert!(!after(&[false], false), "front threads work");
        assert!(after(&[false], true));
        assert!(!after(&[true], true));
        assert!(after(&[false; QUIET_ROUNDS as usize], true));
    }

    #[test]
    fn usage_is_read_from_what_the_kernel_writes() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 2 3 4 150 25 0 0 20 0 5 0 1 2 3";
        let status = "Name:\ta\nVmRSS:\t    4000 kB\nRssAnon:\t     800 kB\nRssFile:\t 3000 kB\n";
        assert_eq!(Usage::parse(stat, status), Some(Usage { ticks: 175, bytes: 800 * 1024 }));
        assert_eq!(Usage::parse("", status), None);
        assert_eq!(Usage::parse(stat, "VmRSS: 1 kB"), None);
        assert!(Usage::now().is_some_and(|used| used.bytes > 0));
    }
}
