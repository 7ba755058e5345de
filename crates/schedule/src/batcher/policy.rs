//! What are the settings of dynamic batching?

use std::collections::BTreeMap;

use crate::event::{Deadline, TimeoutAction};

/// The settings of a [`Batcher`](crate::Batcher).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchPolicy {
    /// The most rows of a batch. Less than 1 counts as 1.
    pub rows_max: u32,
    /// Numbers of rows at which a batch starts even if more requests wait.
    pub preferred: Vec<u32>,
    /// How long the oldest request of a batch waits for others while an instance is free, in µs.
    pub delay_us: u64,
    /// If set, the delay adapts to the load, and is kept so short that it makes no response take longer than this, in µs.
    pub latency_bound_us: Option<u64>,
    /// No batch starts before this many requests have waited at the same time once. 0 for no such condition.
    pub hold_back: usize,
    /// The most waiting requests of all levels together. `None` for no limit.
    pub requests_max: Option<usize>,
    /// The queues, by priority.
    pub levels: PriorityLevels,
    /// Whether [`Arrival::shapes`](crate::Arrival::shapes) decides which requests may share a batch.
    pub by_shapes: bool,
    /// Whether requests with adjacent inputs are put in the order of their addresses.
    pub by_spans: bool,
}

/// The priority levels, and the policy of each level's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityLevels {
    /// The number of levels. 0 for a queue without levels.
    pub count: u64,
    /// The level of requests that name none, or one that does not exist.
    pub default_level: u64,
    /// The policy of levels without their own policy.
    pub default_policy: QueuePolicy,
    /// The policies of levels that have their own.
    pub policies: BTreeMap<u64, QueuePolicy>,
}

/// How many requests may wait in one queue, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePolicy {
    /// How long a request may wait, in µs. 0 for no limit.
    pub timeout_us: u64,
    /// The action at that time.
    pub action: TimeoutAction,
    /// Whether a request may ask for a shorter time.
    pub allow_override: bool,
    /// The most waiting requests. `None` for no limit.
    pub requests_max: Option<usize>,
}

impl Default for QueuePolicy {
    fn default() -> QueuePolicy {
        QueuePolicy { timeout_us: 0, action: TimeoutAction::Reject, allow_override: false, requests_max: None }
    }
}

impl BatchPolicy {
    /// The most rows of a batch.
    pub(super) fn rows_max(&self) -> u32 {
        self.rows_max.max(1)
    }

    /// The largest preferred size. A batch of this size starts without delay.
    pub(super) fn preferred_max(&self) -> u32 {
        self.preferred.iter().copied().max().unwrap_or(0)
    }
}

impl PriorityLevels {
    /// The level of a request with this priority. 1 is served first.
    pub fn level(&self, priority: u64) -> u64 {
        match priority {
            _ if self.count == 0 => 0,
            1.. if priority <= self.count => priority,
            _ => self.default_level,
        }
    }

    /// The policy of that level.
    pub fn policy(&self, level: u64) -> &QueuePolicy {
        self.policies.get(&level).unwrap_or(&self.default_policy)
    }
}

impl QueuePolicy {
    /// The deadline of a request that arrives now and requests a timeout of `requested_us`; 0 for none. As in Triton, a request can only shorten a
    /// timeout that the policy sets.
    pub fn deadline(&self, requested_us: u64, now_us: u64) -> Option<Deadline> {
        if self.timeout_us == 0 {
            return None;
        }
        let is_shorter = self.allow_override && requested_us > 0 && requested_us < self.timeout_us;
        let timeout_us = if is_shorter { requested_us } else { self.timeout_us };
        Some(Deadline { at_us: now_us.saturating_add(timeout_us), action: self.action })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_level(count: u64, priority: u64, expect: u64) {
        let levels = PriorityLevels { count, default_level: 2, ..PriorityLevels::default() };
        assert_eq!(levels.level(priority), expect, "{priority} of {count}");
    }

    #[test]
    fn a_priority_that_does_not_exist_is_the_default_one() {
        check_level(0, 0, 0);
        check_level(0, 7, 0);
        check_level(3, 0, 2);
        check_level(3, 1, 1);
        check_level(3, 3, 3);
        check_level(3, 4, 2);
        check_level(u64::MAX, u64::MAX, u64::MAX);
    }

    #[track_caller]
    fn check_deadline(timeout_us: u64, allow_override: bool, requested_us: u64, expect: Option<u64>) {
        let policy = QueuePolicy { timeout_us, allow_override, ..QueuePolicy::default() };
        let found = policy.deadline(requested_us, 1000).map(|deadline| deadline.at_us);
        assert_eq!(found, expect, "{timeout_us} {allow_override} {requested_us}");
    }

    #[test]
    fn a_request_may_only_shorten_a_timeout_that_is_set() {
        check_deadline(0, false, 0, None);
        check_deadline(0, true, 50, None);
        check_deadline(100, false, 50, Some(1100));
        check_deadline(100, true, 50, Some(1050));
        check_deadline(100, true, 0, Some(1100));
        check_deadline(100, true, 200, Some(1100));
        check_deadline(u64::MAX, true, 0, Some(u64::MAX));
    }

    #[test]
    fn levels_without_their_own_policy_have_the_default_one() {
        let own = QueuePolicy { timeout_us: 5, ..QueuePolicy::default() };
        let levels = PriorityLevels { count: 2, policies: BTreeMap::from([(1, own)]), ..PriorityLevels::default() };
        assert_eq!((levels.policy(1).timeout_us, levels.policy(2).timeout_us), (5, 0));
    }
}
