//! Which scheduler does a configuration choose?

use std::sync::Arc;

use nerite_config::proto::model_queue_policy::TimeoutAction as ConfiguredAction;
use nerite_config::proto::model_sequence_batching::{StrategyChoice, StrategyDirect};
use nerite_config::proto::{ModelDynamicBatching, ModelQueuePolicy, ModelSequenceBatching};
use nerite_config::{ModelConfig, Padding};
use nerite_schedule::{
    BatchPolicy, Batcher, Direct, DirectPolicy, Fifo, HoldBack, Oldest, OldestPolicy, PriorityLevels, QueuePolicy,
    Scheduler, TimeoutAction, limit_of_share,
};

use crate::arrival::{Arrivals, is_compared};
use crate::limits::QUEUE_REQUESTS_MAX;
use crate::policies::InstanceCores;
use crate::rates::Claims;

/// The operator's settings for all queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// The most requests that wait for the instances of one model version. The author of a model may set a higher number for it.
    pub requests_max: usize,
    /// Triton's `TRITONSERVER_DELAY_SCHEDULER`: a dynamic batcher starts no batch before this many requests have waited at the same time.
    pub hold_back: usize,
    /// Triton's `TRITONSERVER_BACKLOG_DELAY_SCHEDULER`: schedulers of sequences start no batch before this many requests have waited for a slot at
    /// the same time.
    pub hold_back_backlog: usize,
}

impl Default for QueueLimits {
    fn default() -> QueueLimits {
        QueueLimits { requests_max: QUEUE_REQUESTS_MAX, hold_back: 0, hold_back_backlog: 0 }
    }
}

/// How the requests of one model version are ordered.
pub(crate) struct Scheduling {
    pub scheduler: Box<dyn Scheduler + Send>,
    pub arrivals: Arrivals,
    /// Whether responses are sent in the order of the requests.
    pub preserve_ordering: bool,
    /// The most requests that wait.
    pub requests_max: usize,
    /// The resources that the instances share with those of other models.
    pub claims: Option<Claims>,
    /// The cores of the instances. `None` for all cores.
    pub cores: Option<Arc<InstanceCores>>,
}

impl Scheduling {
    /// The scheduling of this configuration, which is valid.
    pub fn of(config: &ModelConfig, instances: usize, limits: QueueLimits) -> Scheduling {
        if let Some(sequences) = config.sequence_batching() {
            return Scheduling::of_sequences(config, sequences, instances, limits);
        }
        let Some(dynamic) = config.dynamic_batching() else {
            return Scheduling {
                scheduler: Box::new(Fifo::bounded(limits.requests_max)),
                arrivals: Arrivals::default().with_padding(padding(config)),
                preserve_ordering: false,
                requests_max: limits.requests_max,
                claims: None,
                cores: None,
            };
        };
        let policy = batch_policy(config, dynamic, limits);
        let (levels, requests_max) = (policy.levels.clone(), policy.requests_max.unwrap_or(usize::MAX));
        let scheduler = Box::new(Batcher::new(policy));
        Scheduling {
            arrivals: Arrivals::new(levels, &config.inputs(), scheduler.wants()).with_padding(padding(config)),
            scheduler,
            // A request with several responses cannot be ordered among others.
            preserve_ordering: dynamic.preserve_ordering && !config.decoupled(),
            requests_max,
            claims: None,
            cores: None,
        }
    }
}

impl Scheduling {
    fn of_sequences(
        config: &ModelConfig,
        sequences: &ModelSequenceBatching,
        instances: usize,
        limits: QueueLimits,
    ) -> Scheduling {
        let rows_max = u32::try_from(config.max_batch_size).unwrap_or(0).max(1);
        let joins = config.max_batch_size > 1;
        let by_shapes = joins && config.inputs().iter().any(is_compared);
        let (idle_us, requests_max) = (sequences.max_sequence_idle_microseconds, Some(limits.requests_max));
        let (scheduler, preserve_ordering): (Box<dyn Scheduler + Send>, bool) = match &sequences.strategy_choice {
            Some(StrategyChoice::Oldest(oldest)) => {
                let candidates = usize::try_from(oldest.max_candidate_sequences).unwrap_or(0);
                let batch = BatchPolicy {
                    rows_max,
                    preferred: sizes(&oldest.preferred_batch_size),
                    delay_us: oldest.max_queue_delay_microseconds,
                    latency_bound_us: None,
                    hold_back: limits.hold_back,
                    requests_max: None,
                    levels: PriorityLevels::default(),
                    by_shapes,
                    by_spans: joins,
                };
                let candidates_max = if candidates == 0 { rows_max as usize } else { candidates };
                let policy = OldestPolicy { instances, candidates_max, idle_us, requests_max, batch };
                (Box::new(Oldest::new(policy)), oldest.preserve_ordering)
            }
            strategy => {
                let direct = match strategy {
                    Some(StrategyChoice::Direct(direct)) => *direct,
                    _ => StrategyDirect::default(),
                };
                let policy = DirectPolicy {
                    instances,
                    rows_max: rows_max as usize,
                    idle_us,
                    delay_us: direct.max_queue_delay_microseconds,
                    utilization_min: direct.minimum_slot_utilization,
                    by_shapes,
                    requests_max,
                    hold_back: HoldBack { placed: limits.hold_back, backlog: limits.hold_back_backlog },
                };
                (Box::new(Direct::new(policy)), false)
            }
        };
        Scheduling {
            arrivals: Arrivals::new(PriorityLevels::default(), &config.inputs(), scheduler.wants())
                .with_padding(padding(config))
                .of_sequences(sequences.iterative_sequence),
            scheduler,
            // A request that runs again would be ordered after later requests, which may wait for it.
            preserve_ordering: preserve_ordering && !config.decoupled() && !sequences.iterative_sequence,
            requests_max: limits.requests_max,
            claims: None,
            cores: None,
        }
    }
}

fn padding(config: &ModelConfig) -> Padding {
    Padding::of(config).unwrap_or_default()
}

fn sizes(list: &[i32]) -> Vec<u32> {
    list.iter().filter_map(|size| u32::try_from(*size).ok()).collect()
}

fn batch_policy(config: &ModelConfig, dynamic: &ModelDynamicBatching, limits: QueueLimits) -> BatchPolicy {
    let levels = PriorityLevels {
        count: dynamic.priority_levels,
        default_level: dynamic.default_priority_level,
        default_policy: dynamic.default_queue_policy.as_ref().map(queue_policy).unwrap_or_default(),
        policies: dynamic.priority_queue_policy.iter().map(|(level, policy)| (*level, queue_policy(policy))).collect(),
    };
    let set = levels.policies.values().chain([&levels.default_policy]).filter_map(|policy| policy.requests_max);
    let set_in_all = set.fold(0, usize::saturating_add);
    let joins = config.max_batch_size > 1;
    BatchPolicy {
        rows_max: u32::try_from(config.max_batch_size).unwrap_or(0).max(1),
        preferred: sizes(&dynamic.preferred_batch_size),
        delay_us: dynamic.max_queue_delay_microseconds,
        latency_bound_us: config.latency_bound_us().unwrap_or_default(),
        hold_back: limits.hold_back,
        requests_max: Some(limits.requests_max.max(limit_of_share(set_in_all))),
        levels,
        by_shapes: joins && config.inputs().iter().any(is_compared),
        by_spans: joins,
    }
}

fn queue_policy(policy: &ModelQueuePolicy) -> QueuePolicy {
    QueuePolicy {
        timeout_us: policy.default_timeout_microseconds,
        action: match policy.timeout_action() {
            ConfiguredAction::Reject => TimeoutAction::Reject,
            ConfiguredAction::Delay => TimeoutAction::Delay,
        },
        allow_override: policy.allow_timeout_override,
        requests_max: (policy.max_queue_size > 0).then_some(policy.max_queue_size as usize),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn policy(settings: &str) -> BatchPolicy {
        let config = nerite_config::parse_text("", format!("name: 'm' {settings}").as_bytes()).unwrap();
        let config = nerite_config::normalise(config, "m");
        let limits = QueueLimits { requests_max: 100, hold_back: 3, ..QueueLimits::default() };
        batch_policy(&config, config.dynamic_batching().unwrap(), limits)
    }

    #[test]
    fn all_settings_of_dynamic_batching_reach_the_scheduler() {
        let found = policy(
            "max_batch_size: 8 input { name: 'A' dims: -1 } dynamic_batching { preferred_batch_size: [2, 4] \
             max_queue_delay_microseconds: 50 priority_levels: 3 default_priority_level: 2 \
             default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 7 } \
             priority_queue_policy { key: 1 value { allow_timeout_override: true max_queue_size: 5 } } }",
        );
        let default_policy = QueuePolicy { timeout_us: 7, action: TimeoutAction::Delay, ..QueuePolicy::default() };
        let first = QueuePolicy { allow_override: true, requests_max: Some(5), ..QueuePolicy::default() };
        let expect = BatchPolicy {
            rows_max: 8,
            preferred: vec![2, 4],
            delay_us: 50,
            latency_bound_us: None,
            hold_back: 3,
            requests_max: Some(100),
            levels: PriorityLevels { count: 3, default_level: 2, default_policy, policies: [(1, first)].into() },
            by_shapes: true,
            by_spans: true,
        };
        assert_eq!(found, expect);
    }

    #[test]
    fn a_bound_of_the_latency_reaches_the_scheduler() {
        let bound = "parameters { key: 'nerite.latency_bound_microseconds' value { string_value: '5000' } }";
        assert_eq!(policy(&format!("max_batch_size: 8 dynamic_batching {{ }} {bound}")).latency_bound_us, Some(5000));
    }

    #[track_caller]
    fn check(settings: &str, expect: (u32, bool, Option<usize>)) {
        let found = policy(settings);
        assert_eq!((found.rows_max, found.by_shapes, found.requests_max), expect, "{settings}");
    }

    #[test]
    fn shapes_are_compared_where_they_can_differ() {
        check("max_batch_size: 4 input { name: 'A' dims: 3 } dynamic_batching { }", (4, false, Some(100)));
        check(
            "max_batch_size: 4 input { name: 'A' dims: 3 optional: true } dynamic_batching { }",
            (4, true, Some(100)),
        );
        let ragged = "input { name: 'A' dims: -1 allow_ragged_batch: true }";
        check(&format!("max_batch_size: 4 {ragged} dynamic_batching {{ }}"), (4, false, Some(100)));
        check("input { name: 'A' dims: -1 } dynamic_batching { }", (1, false, Some(100)));
    }

    #[test]
    fn an_author_may_let_more_wait_than_the_operator() {
        // The limit is so large that one client may have what the author set.
        check("dynamic_batching { default_queue_policy { max_queue_size: 7 } }", (1, false, Some(100)));
        check("dynamic_batching { default_queue_policy { max_queue_size: 700 } }", (1, false, Some(936)));
    }
}
