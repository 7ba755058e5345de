//! What do all models of a server share?

use std::collections::BTreeMap;
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
    /// The identity of each GPU, by its number among those that the process may see.
    pub gpu_uuids: Arc<BTreeMap<u32, String>>,
}

impl Services {
    /// The GPU that all instances of a model compute on, from the device of each. `None` if they compute on the host, or on several devices.
    pub(crate) fn gpu_uuid(&self, devices: impl IntoIterator<Item = Option<u32>>) -> Option<&str> {
        let mut devices = devices.into_iter();
        let first = devices.next()??;
        if devices.all(|device| device == Some(first)) { self.gpu_uuids.get(&first).map(String::as_str) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(devices: &[Option<u32>], expect: Option<&str>) {
        let gpu_uuids = Arc::new([(0, "GPU-a".to_owned()), (1, "GPU-b".to_owned())].into());
        let services = Services { gpu_uuids, ..Services::default() };
        assert_eq!(services.gpu_uuid(devices.iter().copied()), expect, "{devices:?}");
    }

    #[test]
    fn a_model_has_a_gpu_if_all_its_instances_compute_on_it() {
        check(&[Some(1)], Some("GPU-b"));
        check(&[Some(0), Some(0)], Some("GPU-a"));
        check(&[Some(0), Some(1)], None);
        check(&[Some(0), None], None);
        check(&[None], None);
        check(&[], None);
        check(&[Some(7)], None);
    }
}
