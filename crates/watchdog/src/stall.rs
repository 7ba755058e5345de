//! Whose requests make threads wait?
//!
//! A client can make an access to its memory wait for seconds: while a hole is punched into a file in memory, the kernel lets a page fault there wait. A
//! thread that serves connections serves nobody then. Nobody can tell before the access. So a peer is marked after its polls waited long, and what its
//! requests do with memory of clients is then done on other threads.
//!
//! Time in which other threads had the processors is no wait, where the kernel counts it. But a thread also waits if the machine stops, or for a lock. So a mark
//! does not mean that the peer did anything wrong, and it ends.

use std::sync::atomic::{AtomicU64, Ordering};

/// A poll that waited this long counts. A thread waits while it neither uses a processor nor is ready to run.
pub const STALL_NS: u64 = 25_000_000;
/// A peer is marked when its waits of [`WAITS_WINDOW_NS`] come to this. On a busy machine polls of honest clients wait as well, for less.
pub const MARKING_NS: u64 = 200_000_000;
/// Earlier waits are forgotten.
const WAITS_WINDOW_NS: u64 = 10_000_000_000;
/// How long the first mark lasts.
pub(crate) const MARKED_NS_MIN: u64 = 60_000_000_000;
/// A peer that is marked again soon after its mark has ended gets one that lasts twice as long, up to this.
pub(crate) const MARKED_NS_MAX: u64 = 16 * MARKED_NS_MIN;

/// Whether a peer is marked.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// When the mark ends or has ended. 0 if there was none.
    until_ns: AtomicU64,
    /// How long the last mark lasts after the last wait.
    length_ns: AtomicU64,
    /// When the first wait of the window ended.
    first_wait_ns: AtomicU64,
    /// The sum of the waits in the window. Two threads that count a wait at once may lose one of them.
    waits_ns: AtomicU64,
    /// When the last wait that was counted ended.
    counted_until_ns: AtomicU64,
}

impl Stall {
    /// Counts a wait that ended now. A wait is noted before its poll ends and once more at the end, and several threads may wait at once: the same time is
    /// counted once. Returns whether the waits of the window are enough for a mark. A marked peer needs only one more wait to renew its mark.
    pub(crate) fn count(&self, now_ns: u64, waited_ns: u64) -> bool {
        let is_old = now_ns.saturating_sub(self.first_wait_ns.load(Ordering::Relaxed)) > WAITS_WINDOW_NS;
        let before_ns = if is_old { 0 } else { self.waits_ns.load(Ordering::Relaxed) };
        if before_ns == 0 {
            self.first_wait_ns.store(now_ns, Ordering::Relaxed);
        }
        let counted_until_ns = self.counted_until_ns.swap(now_ns, Ordering::Relaxed);
        let waits_ns = before_ns.saturating_add(waited_ns.min(now_ns.saturating_sub(counted_until_ns)));
        self.waits_ns.store(waits_ns, Ordering::Relaxed);
        waits_ns >= MARKING_NS || self.is_marked(|| now_ns)
    }

    /// Whether it is marked. The clock is read only if it ever was.
    pub(crate) fn is_marked(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let until_ns = self.until_ns();
        until_ns != 0 && now_ns() < until_ns
    }

    /// Marks it, or renews its mark. Returns how long the mark lasts if it is a new one. If two threads mark it at once, both may call it new.
    pub(crate) fn mark(&self, now_ns: u64) -> Option<u64> {
        let before_ns = self.length_ns.load(Ordering::Relaxed);
        if self.is_marked(|| now_ns) {
            self.until_ns.fetch_max(now_ns + before_ns, Ordering::Relaxed);
            return None;
        }
        let length_ns = if self.is_remembered(now_ns) { (2 * before_ns).min(MARKED_NS_MAX) } else { MARKED_NS_MIN };
        self.length_ns.store(length_ns, Ordering::Relaxed);
        self.until_ns.store(now_ns + length_ns, Ordering::Relaxed);
        Some(length_ns)
    }

    /// Whether the next mark would last longer because of the last one.
    pub(crate) fn is_remembered(&self, now_ns: u64) -> bool {
        let until_ns = self.until_ns();
        until_ns != 0 && now_ns < until_ns + self.length_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn waits_of_a_few_seconds_are_added_up() {
        const MS: u64 = 1_000_000;
        let stall = Stall::default();
        assert!(!stall.count(100 * S, 66 * MS) && !stall.count(101 * S, 66 * MS));
        assert!(stall.count(102 * S, 68 * MS), "200 ms in two seconds");
        assert!(!stall.count(120 * S, 199 * MS), "the earlier waits are forgotten");
        assert!(stall.count(140 * S, 200 * MS));
        stall.mark(140 * S);
        assert!(stall.count(160 * S, 25 * MS), "a marked peer is marked on");
    }

    #[test]
    fn a_wait_that_is_noted_twice_counts_once() {
        const MS: u64 = 1_000_000;
        let stall = Stall::default();
        for now_ns in [100 * S, 100 * S + MS, 100 * S + 2 * MS] {
            assert!(!stall.count(now_ns, 150 * MS));
        }
        assert!(stall.count(101 * S, 50 * MS), "a later one is added");
    }

    #[test]
    fn a_mark_is_renewed_by_each_wait_and_ends_a_while_after_the_last() {
        let stall = Stall::default();
        assert!(!stall.is_marked(|| panic!("the clock is not read for a peer that was never marked")));
        assert_eq!(stall.mark(10 * S), Some(60 * S));
        assert_eq!(stall.mark(30 * S), None);
        assert!(stall.is_marked(|| 90 * S - 1) && !stall.is_marked(|| 90 * S));
    }

    #[test]
    fn a_mark_lasts_longer_each_time_until_it_is_forgotten() {
        let (stall, mut now_ns) = (Stall::default(), S);
        for minutes in [1, 2, 4, 8, 16, 16] {
            assert_eq!(stall.mark(now_ns), Some(minutes * 60 * S));
            now_ns = stall.until_ns();
            assert!(!stall.is_marked(|| now_ns) && stall.is_remembered(now_ns));
        }
        now_ns += MARKED_NS_MAX;
        assert!(!stall.is_remembered(now_ns));
        assert_eq!(stall.mark(now_ns), Some(60 * S));
    }
}
