//! How are models that requests load shown as metrics?

use super::{Page, Value};

/// Models that requests load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandMetrics {
    /// Loaded models.
    pub models: u64,
    /// Bytes of the files of loaded models.
    pub bytes: u64,
    /// Loads that requests have triggered.
    pub loads: u64,
    /// Models that were unloaded to free memory for others.
    pub evictions: u64,
    /// Requests that wait for a model to load.
    pub waiting: u64,
}

pub(super) fn write(page: &mut Page, demand: &DemandMetrics) {
    let mut one = |name, kind, help, number| page.family(name, kind, help, [(String::new(), Value::Whole(number))]);
    one("nerite_demand_models", "gauge", "Models that are loaded, in control mode 'demand'", demand.models);
    one(
        "nerite_demand_models_bytes",
        "gauge",
        "Bytes of the loaded models as --models-max-bytes counts them: of their files, or of their memory where more was measured",
        demand.bytes,
    );
    one(
        "nerite_demand_loads_total",
        "counter",
        "Models that requests have loaded, with the models that an ensemble is composed of",
        demand.loads,
    );
    one("nerite_demand_evictions_total", "counter", "Models that were evicted to make room", demand.evictions);
    one("nerite_demand_waiting_requests", "gauge", "Requests that wait for a model", demand.waiting);
}
