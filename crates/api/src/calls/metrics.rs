//! What do the metrics contain?

use std::sync::{Arc, PoisonError};

use nerite_cache::CacheCounts;
use nerite_engine::DemandCounts;
use nerite_memory::{Reason, copied_bytes};
use nerite_watchdog::{Busy, Counts, busy};
use nerite_wire::prometheus::{
    BusyMetrics, CacheMetrics, DemandMetrics, Histogram, HostMetrics, MetricsReport, ModelMetrics, SessionSocketMetrics,
};

use crate::{Api, GpuFigures};

impl Api {
    /// Whether the report may be long. Then it is made on another thread than a front thread.
    pub fn has_long_metrics(&self) -> bool {
        self.inner.engine.has_custom_metrics()
    }

    /// All metrics with their present values.
    pub fn metrics_report(&self) -> MetricsReport {
        let model = |served: &nerite_engine::Served| {
            let tags = &served.config().metric_tags;
            let tags = tags.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            let (statistics, latencies) = (served.statistics(), served.latencies());
            let caches = served.config().caches_responses();
            ModelMetrics { statistics, tags, caches, latencies, is_ready: served.was_ready() }
        };
        let regions = self.inner.regions.counts();
        let (leases, traces) = (self.inner.pools.counts(), self.inner.tracer.counts());
        let pinned = self.inner.engine.runtimes().staging().map(|staging| staging.pinned()).unwrap_or_default();
        MetricsReport {
            models: self.inner.engine.all().iter().map(|served| model(served)).collect(),
            // Triton keeps the failures of unloaded models. This server does not, because the list would grow without bound.
            gone: Vec::new(),
            counter_latencies: self.inner.options.counter_latencies,
            host: *self.inner.host.lock().unwrap_or_else(PoisonError::into_inner),
            gpus: self.inner.gpus.report(),
            pinned_total_bytes: pinned.total,
            pinned_used_bytes: pinned.used,
            copied_bytes: Reason::ALL.iter().map(|&reason| (reason.name(), copied_bytes(reason))).collect(),
            shm_regions: vec![("system", regions.mapped), ("cuda", regions.cuda_mapped)],
            shm_mapped_bytes: regions.mapped_bytes + regions.cuda_mapped_bytes,
            traces: vec![("written", traces.written), ("shortened", traces.shortened), ("dropped", traces.dropped)],
            trace_bytes: traces.held_bytes,
            demand: self.inner.engine.demand_counts().map(demand),
            sessions: leases.sessions,
            session_socket: *self.inner.session_socket.lock().unwrap_or_else(PoisonError::into_inner),
            budget: self.inner.budgets.counts(),
            lease_bytes: vec![("lent", leases.bytes.saturating_sub(leases.idle_bytes)), ("idle", leases.idle_bytes)],
            front_busy: Some(front_busy()),
            cache: self.inner.engine.services().cache.as_ref().map(|cache| of_cache(&cache.counts())),
            access: self.inner.options.tokens.as_ref().map(nerite_access::Tokens::counters),
            custom: self.inner.engine.custom_metrics(),
            // The front ends fill in the connections.
            ..MetricsReport::default()
        }
    }

    /// The load of the machine at its last measurement. `None` if it is not measured.
    pub fn host_metrics(&self) -> Option<HostMetrics> {
        *self.inner.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the measured load of the machine.
    pub fn note_host(&self, host: HostMetrics) {
        *self.inner.host.lock().unwrap_or_else(PoisonError::into_inner) = Some(host);
    }

    /// The figures of the GPUs. The thread that measures them needs nothing else of the server.
    pub fn gpu_figures(&self) -> &Arc<GpuFigures> {
        &self.inner.gpus
    }

    /// Stores whether sessions can be opened.
    pub fn note_session_socket(&self, socket: SessionSocketMetrics) {
        *self.inner.session_socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
    }
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
    BusyMetrics { wall: histogram(&wall), cpu: histogram(&cpu) }
}
