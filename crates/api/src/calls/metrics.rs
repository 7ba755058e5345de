//! What do the metrics contain?

use std::sync::{Arc, PoisonError};

use nerite_cache::CacheCounts;
use nerite_config::proto::model_metrics::metric_control::MetricOptions;
use nerite_engine::{DemandCounts, LoadCount, Missing, Served};
use nerite_memory::{Reason, copied_bytes};
use nerite_request::limits::INLINE_WORK_BYTES_MAX;
use nerite_watchdog::{Busy, Counts, busy};
use nerite_wire::prometheus::{
    BusyMetrics, CacheMetrics, DemandMetrics, Histogram, HostMetrics, MetricsReport, MissingVersion, ModelLoads,
    ModelMetrics, ServerMetrics, SessionSocketMetrics,
};

use crate::stalling::staged_requests;
use crate::{Api, GpuFigures, HostMeter, Options};

/// Lines of a model version on one device: its counters, gauges, and summaries with the usual quantiles; without its own buckets.
const LINES_MAX: usize = 80;
/// Lines of the loads of a model.
const LOADS_LINES: usize = 2;
/// Bytes of a line beside the model's name and tags.
const LINE_BYTES_MAX: usize = 96;

impl Api {
    /// Whether the report may be long. Then it is made on another thread than a front thread.
    pub fn has_long_metrics(&self) -> bool {
        let bytes = || self.inner.engine.all().iter().map(|served| bytes_max(served)).sum::<usize>();
        let loads_bytes = || {
            let (names, models) = self.inner.engine.load_counts_size();
            LOADS_LINES * (names + models * LINE_BYTES_MAX)
        };
        self.inner.engine.has_custom_metrics() || bytes() + loads_bytes() > INLINE_WORK_BYTES_MAX
    }

    /// All metrics with their present values.
    pub fn metrics_report(&self) -> MetricsReport {
        let (failed_reloads, budget) = (self.inner.engine.failed_reloads(), self.inner.engine.budgets().counts());
        let model = |served: &nerite_engine::Served| {
            let tags = &served.config().metric_tags;
            let tags = tags.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            let (statistics, latencies) = (served.statistics(), served.latencies());
            let caches = served.config().caches_responses();
            let (is_ready, restarts) = (served.was_ready(), served.restarts());
            let has_failed_reload = failed_reloads.contains(served.identifier());
            ModelMetrics { statistics, tags, caches, latencies, is_ready, restarts, has_failed_reload }
        };
        let regions = self.inner.regions.counts();
        let (leases, traces) = (self.inner.pools.counts(), self.inner.tracer.counts());
        let pinned = self.inner.engine.runtimes().staging().map(|staging| staging.pinned()).unwrap_or_default();
        MetricsReport {
            server: self.server_metrics(&budget),
            missing: self.inner.engine.missing().into_iter().map(|missing| self.missing_version(&missing)).collect(),
            loads: self.inner.engine.load_counts().iter().map(|count| self.model_loads(count)).collect(),
            models: self.inner.engine.all().iter().map(|served| model(served)).collect(),
            // Triton keeps the failures of unloaded models. This server does not, because the list would grow without bound.
            gone: Vec::new(),
            counter_latencies: self.inner.options.counter_latencies,
            host: self.host_metrics(),
            gpus: self.inner.gpus.report(),
            pinned_total_bytes: pinned.total,
            pinned_used_bytes: pinned.used,
            copied_bytes: Reason::ALL.iter().map(|&reason| (reason.name(), copied_bytes(reason))).collect(),
            shm_regions: vec![("system", regions.mapped), ("cuda", regions.cuda_mapped)],
            shm_mapped_bytes: regions.mapped_bytes + regions.cuda_mapped_bytes,
            traces: vec![("written", traces.written), ("shortened", traces.shortened), ("dropped", traces.dropped)],
            trace_bytes: traces.held_bytes,
            log_lines_lost: self.inner.log.lost_lines().to_vec(),
            demand: self.inner.engine.demand_counts().map(demand),
            sessions: leases.sessions,
            session_socket: *self.inner.session_socket.lock().unwrap_or_else(PoisonError::into_inner),
            budget,
            lease_bytes: vec![("lent", leases.bytes.saturating_sub(leases.idle_bytes)), ("idle", leases.idle_bytes)],
            front_busy: Some(BusyMetrics {
                stalling_peers: self.turns().stalling_peers() as u64,
                staged_requests: staged_requests(),
                ..front_busy()
            }),
            cache: self.inner.engine.services().cache.as_ref().map(|cache| of_cache(&cache.counts())),
            access: self.inner.options.tokens.as_ref().map(nerite_access::Tokens::counters),
            custom: self.inner.engine.custom_metrics(),
            // The front ends fill in the connections.
            ..MetricsReport::default()
        }
    }

    fn server_metrics(&self, budget: &nerite_budget::Counts) -> ServerMetrics {
        let Options { version, started_s, .. } = &self.inner.options;
        ServerMetrics {
            is_ready: self.was_ready(),
            version: version.clone(),
            started_s: *started_s,
            refused: self.refusals(budget),
            // The metrics port fills in the certificates.
            certificates: Vec::new(),
        }
    }

    fn missing_version(&self, missing: &Missing) -> MissingVersion {
        let (namespace, name) = self.namespace_and_name(&missing.model);
        MissingVersion { name: name.to_owned(), namespace: namespace.to_owned(), version: missing.version }
    }

    fn model_loads(&self, count: &LoadCount) -> ModelLoads {
        let (namespace, name) = self.namespace_and_name(&count.model);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        ModelLoads { name, namespace, successes: count.successes, failures: count.failures }
    }

    /// The parts of a model's identifier. Without `--model-namespacing` the first is empty.
    fn namespace_and_name<'a>(&self, identifier: &'a str) -> (&'a str, &'a str) {
        let name = self.inner.engine.name_of(identifier);
        (identifier.strip_suffix(name).map_or("", |before| before.trim_end_matches(':')), name)
    }

    /// The load of the machine. `None` if it is not measured.
    pub fn host_metrics(&self) -> Option<HostMetrics> {
        self.inner.host.get().map(|measure| measure())
    }

    /// Sets the function that measures the load of the machine. Only the first call has an effect.
    pub fn measure_host_by(&self, meter: HostMeter) {
        let _ = self.inner.host.set(meter);
    }

    /// The figures of the GPUs. The thread that measures them needs nothing else of the server.
    pub fn gpu_figures(&self) -> &Arc<GpuFigures> {
        &self.inner.gpus
    }

    /// Stores the state of the session socket.
    pub fn note_session_socket(&self, socket: SessionSocketMetrics) {
        *self.inner.session_socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
    }
}

/// The most bytes that a model version takes on the page: each line has the version's labels.
fn bytes_max(served: &Served) -> usize {
    let config = served.config();
    let tags: usize = config.metric_tags.iter().map(|(name, value)| name.len() + value.len()).sum();
    let buckets = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control).map(|control| match &control
        .metric_options
    {
        Some(MetricOptions::HistogramOptions(histogram)) => histogram.buckets.len(),
        None => 0,
    });
    (LINES_MAX + buckets.max().unwrap_or(0)) * (LINE_BYTES_MAX + tags + served.name().len())
}

fn of_cache(counts: &CacheCounts) -> CacheMetrics {
    let CacheCounts { bytes, bytes_max, entries, hits, misses, evictions, lookup_ns, insertion_ns } = *counts;
    CacheMetrics { bytes, bytes_max, entries, hits, misses, evictions, lookup_ns, insertion_ns }
}

fn demand(counts: DemandCounts) -> DemandMetrics {
    DemandMetrics {
        models: counts.models as u64,
        bytes: counts.bytes,
        loads: counts.loads,
        evictions: counts.evictions,
        waiting: counts.waiting as u64,
    }
}

fn front_busy() -> BusyMetrics {
    let histogram = |counts: &Counts| Histogram {
        buckets: counts.cumulative().collect(),
        count: counts.count(),
        sum_ns: counts.sum_ns,
    };
    let Busy { wall, cpu } = busy();
    BusyMetrics { wall: histogram(&wall), cpu: histogram(&cpu), ..BusyMetrics::default() }
}
