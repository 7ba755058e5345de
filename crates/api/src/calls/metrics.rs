//! What do dashboards see?

use std::sync::PoisonError;

use nerite_cache::CacheCounts;
use nerite_engine::DemandCounts;
use nerite_memory::{Reason, copied_bytes};
use nerite_watchdog::{Busy, Counts, busy};
use nerite_wire::prometheus::{
    BusyMetrics, CacheMetrics, DemandMetrics, Histogram, HostMetrics, MetricsReport, ModelMetrics, SessionSocketMetrics,
};

use crate::Api;

impl Api {
    /// Whether the report may be long: then it is made away from the threads that serve connections.
    pub fn has_long_metrics(&self) -> bool {
        self.0.engine.has_custom_metrics()
    }

    /// Everything that the metrics port shows, as it is now.
    pub fn metrics_report(&self) -> MetricsReport {
        let model = |served: &nerite_engine::Served| {
            let tags = &served.config().metric_tags;
            let tags = tags.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            let (statistics, latencies) = (served.statistics(), served.latencies());
            let caches = served.config().caches_responses();
            ModelMetrics { statistics, tags, caches, latencies, is_ready: served.was_ready() }
        };
        let regions = self.0.regions.counts();
        let (leases, traces) = (self.0.pools.counts(), self.0.tracer.counts());
        let pinned = self.0.engine.runtimes().staging().map(|staging| staging.pinned()).unwrap_or_default();
        MetricsReport {
            models: self.0.engine.all().iter().map(|served| model(served)).collect(),
            // Triton keeps the failures of models that are gone; nobody is known to need that leak.
            gone: Vec::new(),
            counter_latencies: self.0.options.counter_latencies,
            host: *self.0.host.lock().unwrap_or_else(PoisonError::into_inner),
            pinned_total_bytes: pinned.total,
            pinned_used_bytes: pinned.used,
            copied_bytes: Reason::ALL.iter().map(|&reason| (reason.name(), copied_bytes(reason))).collect(),
            shm_regions: vec![("system", regions.mapped), ("cuda", regions.cuda_mapped)],
            shm_mapped_bytes: regions.mapped_bytes + regions.cuda_mapped_bytes,
            traces: vec![("written", traces.written), ("shortened", traces.shortened), ("dropped", traces.dropped)],
            trace_bytes: traces.held_bytes,
            demand: self.0.engine.demand_counts().map(demand),
            sessions: leases.sessions,
            session_socket: *self.0.session_socket.lock().unwrap_or_else(PoisonError::into_inner),
            budget: self.0.budgets.counts(),
            lease_bytes: vec![("lent", leases.bytes.saturating_sub(leases.idle_bytes)), ("idle", leases.idle_bytes)],
            front_busy: Some(front_busy()),
            cache: self.0.engine.services().cache.as_ref().map(|cache| of_cache(&cache.counts())),
            custom: self.0.engine.custom_metrics(),
            // Connections are known to the front ends only.
            ..MetricsReport::default()
        }
    }

    /// How busy the machine was when it was last looked at; `None` where nobody looks.
    pub fn host_metrics(&self) -> Option<HostMetrics> {
        *self.0.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over how busy the machine is, from whoever looks at it regularly.
    pub fn note_host(&self, host: HostMetrics) {
        *self.0.host.lock().unwrap_or_else(PoisonError::into_inner) = Some(host);
    }
    /// Takes over whether sessions can be opened, from whoever listens for them.
    pub fn note_session_socket(&self, socket: SessionSocketMetrics) {
        *self.0.session_socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
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
