//! How much of the front threads' time did a peer or a flow use?

use std::sync::atomic::{AtomicU64, Ordering};

/// A peer that uses more than 1/8 of a thread's time is a heavy user.
const SHARE_PARTS: u64 = 8;
/// Time that it may use at once without becoming one.
const BURST_NS: u64 = 5_000_000;
/// After this time without use a peer is a light user again, however much it used before.
const REMEMBERED_NS: u64 = 1_000_000_000;

/// The recent usage of a peer, as a leaky bucket.
///
/// When two threads charge the same peer at once, one charge may be lost. The peer is then recognised as a heavy user a little later.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// When the bucket is empty again. It leaks one part in [`SHARE_PARTS`] of the time that passes.
    empty_at_ns: AtomicU64,
}

impl Usage {
    pub(crate) fn add(&self, now_ns: u64, spent_ns: u64) {
        let from_ns = self.empty_at_ns.load(Ordering::Relaxed).max(now_ns);
        let empty_at_ns = from_ns.saturating_add(spent_ns.saturating_mul(SHARE_PARTS));
        self.empty_at_ns.store(empty_at_ns.min(now_ns + REMEMBERED_NS), Ordering::Relaxed);
    }

    pub(crate) fn is_heavy(&self, now_ns: u64) -> bool {
        self.empty_at_ns.load(Ordering::Relaxed) > now_ns + BURST_NS * SHARE_PARTS
    }
}

/// The service that a peer or a flow had so far, in ns: its start tag in the fair queue.
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

    /// Raises it to `served_ns` if it is less, and returns it: a peer or flow gets no credit for time that it did not ask for.
    pub(crate) fn raise_to(&self, served_ns: u64) -> u64 {
        self.0.fetch_max(served_ns, Ordering::Relaxed).max(served_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const NOW: u64 = 1000 * MS;

    #[test]
    fn a_share_and_a_burst_do_not_make_a_heavy_user() {
        let usage = Usage::default();
        for step in 0..1000 {
            assert!(!usage.is_heavy(NOW + step * 8 * MS), "{step}");
            usage.add(NOW + step * 8 * MS, MS);
        }
        let at_ns = NOW + 1000 * 8 * MS;
        usage.add(at_ns, 5 * MS);
        assert!(!usage.is_heavy(at_ns));
        usage.add(at_ns, 1);
        assert!(usage.is_heavy(at_ns) && !usage.is_heavy(at_ns + 8));
    }

    #[test]
    fn use_of_long_ago_is_forgotten() {
        let usage = Usage::default();
        usage.add(NOW, u64::MAX);
        assert!(usage.is_heavy(NOW + 900 * MS));
        assert!(!usage.is_heavy(NOW + 1000 * MS));
    }

    #[test]
    fn time_that_was_not_asked_for_is_not_owed() {
        let served = Served::new(7);
        served.add(3);
        assert_eq!((served.get(), served.raise_to(4), served.raise_to(40), served.get()), (10, 10, 40, 40));
    }
}
