//! What do all models of a server share?

use std::sync::Arc;

use nerite_cache::ResponseCache;

use crate::latencies::LatencyMetrics;
use crate::policies::HostPolicies;
use crate::rates::RateLimits;

/// What the operator sets up once for all models.
#[derive(Clone, Default)]
pub struct Services {
    /// Where responses are kept for requests that ask the same; `None` without `--cache-config`.
    pub cache: Option<Arc<ResponseCache>>,
    /// What instances share; `None` without `--rate-limit=execution_count`.
    pub rates: Option<Arc<RateLimits>>,
    /// The cores of instances, by the name of their host policy.
    pub policies: HostPolicies,
    /// What is kept of latencies.
    pub latencies: LatencyMetrics,
}
