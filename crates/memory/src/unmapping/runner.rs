//! Does a thread for the waiting work run, or must one be started?

use std::sync::atomic::{AtomicU64, Ordering};

/// The process in which the thread runs (upper 32 bits), and how often work was added since it began (lower 32 bits). 0 if no thread runs. A forked process
/// finds the number of its parent here, but does not have the parent's thread.
pub(super) struct Runner(AtomicU64);

impl Runner {
    pub(super) const fn new() -> Runner {
        Runner(AtomicU64::new(0))
    }

    /// Notes that work was added before this call. Returns whether the caller must start a thread, or do the work itself.
    pub(super) fn added(&self) -> bool {
        let process = std::process::id();
        let next = |word| Some(after_added(word, process).0);
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).unwrap_or_else(|word| word);
        after_added(before, process).1
    }

    /// Whether a thread runs.
    pub(super) fn is_running(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// The thread calls this before it looks for work. The result is for [`Runner::may_end`].
    pub(super) fn begins_round(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether the thread may end, because no work was added since [`Runner::begins_round`] returned `word`. Call this when the thread has found no more work.
    pub(super) fn may_end(&self, word: u64) -> bool {
        self.0.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

const COUNT: u64 = u32::MAX as u64;

/// The next word, and whether a thread must be started. The word is not 0, because no process has the number 0.
fn after_added(word: u64, process: u32) -> (u64, bool) {
    let own = u64::from(process) << 32;
    let is_running = word & !COUNT == own;
    (own | word.wrapping_add(1) & COUNT, !is_running)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_started_if_none_runs_in_this_process() {
        let (first, starts) = after_added(0, 7);
        assert!(first != 0 && starts);
        let (second, starts) = after_added(first, 7);
        assert!(second != first && !starts);
        let (in_child, starts) = after_added(second, 8);
        assert!(in_child != second && starts);
        let (wrapped, starts) = after_added((7 << 32) | COUNT, 7);
        assert_eq!((wrapped, starts), (7 << 32, false));
    }

    #[test]
    fn a_thread_does_not_end_before_it_has_seen_all_work() {
        let runner = Runner::new();
        assert!(!runner.is_running() && runner.added());
        let word = runner.begins_round();
        assert!(!runner.added());
        assert!(!runner.may_end(word));
        assert!(runner.is_running() && runner.may_end(runner.begins_round()));
        assert!(!runner.is_running() && runner.added());
    }
}
