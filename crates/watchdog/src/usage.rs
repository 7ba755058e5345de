//! How much of the front threads' time did somebody have?

use std::sync::atomic::{AtomicU64, Ordering};

/// A peer may use one part in so many of a thread's time before it counts as one that uses much.
const SHARE_PARTS: u64 = 8;
/// So much time it may use at once.
const BURST_NS: u64 = 5_000_000;
/// However much it used, it counts as one that uses little after so long.
const REMEMBERED_NS: u64 = 1_000_000_000;

/// What a peer used lately: a bucket that leaks.
///
/// Threads that charge the same peer at the same time may lose a charge; then it counts as one that uses much a moment later.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// When all that was used would be paid for, at one part in [`SHARE_PARTS`] of the time.
    paid_at_ns: AtomicU64,
}

impl Usage {
    pub(crate) fn add(&self, now_ns: u64, spent_ns: u64) {
        let from_ns = self.paid_at_ns.load(Ordering::Relaxed).max(now_ns);
        let paid_at_ns = from_ns.saturating_add(spent_ns.saturating_mul(SHARE_PARTS));
        self.paid_at_ns.store(paid_at_ns.min(now_ns + REMEMBERED_NS), Ordering::Relaxed);
    }

    pub(crate) fn is_much(&self, now_ns: u64) -> bool {
        self.paid_at_ns.load(Ordering::Relaxed) > now_ns + BURST_NS * SHARE_PARTS
    }
}

/// All time that somebody had, in ns, as the order of those who wait counts it.
#[derive(Debug, Default)]
pub(crate) struct Served(AtomicU64);

impl Served {
    pub(crate) fn new(served_ns: u64) -> Served {
        Served(AtomicU64::new(served_ns))
    }

    pub(crate) fn add(&self, spent_ns: u64) {
        self.0.fetch_add(spent_ns, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// What it was, but at least `served_ns`: time that somebody did not ask for is not owed to it.
    pub(crate) fn at_least(&self, served_ns: u64) -> u64 {
        self.0.fetch_max(served_ns, Ordering::Relaxed).max(served_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const NOW: u64 = 1000 * MS;

    #[test]
    fn a_share_and_a_burst_are_little() {
        let usage = Usage::default();
        for step in 0..1000 {
            assert!(!usage.is_much(NOW + step * 8 * MS), "{step}");
            usage.add(NOW + step * 8 * MS, MS);
        }
        let at_ns = NOW + 1000 * 8 * MS;
        usage.add(at_ns, 5 * MS);
        assert!(!usage.is_much(at_ns));
        usage.add(at_ns, 1);
        assert!(usage.is_much(at_ns) && !usage.is_much(at_ns + 8));
    }

    #[test]
    fn what_was_used_long_ago_is_forgotten() {
        let usage = Usage::default();
        usage.add(NOW, u64::MAX);
        assert!(usage.is_much(NOW + 900 * MS));
        assert!(!usage.is_much(NOW + 1000 * MS));
    }

    #[test]
    fn who_asked_for_nothing_is_owed_nothing() {
        let served = Served::new(7);
        served.add(3);
        assert_eq!((served.get(), served.at_least(4), served.at_least(40), served.get()), (10, 10, 40, 40));
    }
}
