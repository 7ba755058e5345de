//! What do all models of a server share?

use std::sync::Arc;

use nerite_cache::ResponseCache;

use crate::latencies::LatencyMetrics;
use crate::policies::HostPolicies;
use crate::rates::RateLimits;

/// What the operator sets up once for all models.
#[derive(Clone, Default)]
pub struct Services {
    /// The response cache. `None` without `--cache-config`.
    pub cache: Option<Arc<ResponseCache>>,
    /// The resources that instances share. `None` without `--rate-limit=execution_count`.
    pub rates: Option<Arc<RateLimits>>,
    /// The cores of instances, by the name of their host policy.
    pub policies: HostPolicies,
    /// Which latencies are measured.
    pub latencies: LatencyMetrics,
}
