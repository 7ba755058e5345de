//! How is the response cache shown as metrics?

use super::page::{Page, Value};
use super::{MetricsReport, ModelMetrics, Read};

/// The response cache of all models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheMetrics {
    /// Bytes in use.
    pub bytes: u64,
    /// The most bytes that may be in use.
    pub bytes_max: u64,
    /// Number of stored responses.
    pub entries: u64,
    /// Look-ups that found a response.
    pub hits: u64,
    /// Look-ups that found no response.
    pub misses: u64,
    /// Responses that were evicted to store others.
    pub evictions: u64,
    /// Time of all look-ups, in ns.
    pub lookup_ns: u64,
    /// Time of all insertions, in ns.
    pub insertion_ns: u64,
}

const COUNTS: [(&str, &str, Read); 4] = [
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", |s| s.cache_hit.count),
    ("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds", |s| {
        s.cache_hit.ns / 1000
    }),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", |s| s.cache_miss.count),
    ("nv_cache_miss_duration_per_model", "Total cache miss (insert+lookup) duration per model, in microseconds", |s| {
        s.cache_miss.ns / 1000
    }),
];

/// The hits and misses of each model.
pub(super) fn write_counters(page: &mut Page, report: &MetricsReport) {
    if !report.counter_latencies {
        return;
    }
    for (name, help, read) in COUNTS {
        let models = report.models.iter().filter(|model| model.caches);
        let sample = |model: &ModelMetrics| (model.labels(None), Value::Whole(read(&model.statistics)));
        page.family(name, "counter", help, models.map(sample));
    }
}

/// The totals of all models.
pub(super) fn write_gauges(page: &mut Page, report: &MetricsReport) {
    let Some(cache) = &report.cache else { return };
    let mut single = |name, help, value| page.family(name, "gauge", help, [(String::new(), value)]);
    let used = cache.bytes as f64 / cache.bytes_max.max(1) as f64;
    single("nv_cache_util", "Cache utilization [0.0 - 1.0]", Value::Real(used));
    for (name, help, value) in [
        ("nv_cache_num_entries", "Number of responses stored in response cache", cache.entries),
        ("nv_cache_num_hits", "Number of cache hits in response cache", cache.hits),
        ("nv_cache_num_misses", "Number of cache misses in response cache", cache.misses),
        ("nv_cache_num_lookups", "Number of cache lookups in response cache", cache.hits + cache.misses),
        ("nv_cache_num_evictions", "Number of cache evictions in response cache", cache.evictions),
        (
            "nv_cache_lookup_duration",
            "Total cache lookup duration (hit and miss), in microseconds",
            cache.lookup_ns / 1000,
        ),
        ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds", cache.insertion_ns / 1000),
    ] {
        single(name, help, Value::Whole(value));
    }
}

#[cfg(test)]
mod tests {
    use nerite_request::report::StatisticsReport;

    use super::super::write_metrics;
    use super::*;

    #[track_caller]
    fn check(report: &MetricsReport, line: &str, there: bool) {
        let text = write_metrics(report);
        assert_eq!(text.lines().any(|found| found == line), there, "{line}\n{text}");
    }

    #[test]
    fn models_that_cache_have_counters_and_the_cache_has_gauges() {
        let model = |name: &str, caches| {
            let mut statistics = StatisticsReport { name: name.into(), version: 1, ..StatisticsReport::default() };
            statistics.cache_hit.add(7_000);
            ModelMetrics { statistics, caches, ..ModelMetrics::default() }
        };
        let cache = CacheMetrics { bytes: 64, bytes_max: 256, hits: 2, misses: 3, ..CacheMetrics::default() };
        let models = vec![model("a", true), model("b", false)];
        let report = MetricsReport { models, cache: Some(cache), counter_latencies: true, ..MetricsReport::default() };
        check(&report, "nv_cache_num_hits_per_model{model=\"a\",version=\"1\"} 1", true);
        check(&report, "nv_cache_hit_duration_per_model{model=\"a\",version=\"1\"} 7", true);
        check(&report, "nv_cache_num_misses_per_model{model=\"a\",version=\"1\"} 0", true);
        check(&report, "nv_cache_num_hits_per_model{model=\"b\",version=\"1\"} 1", false);
        check(&report, "nv_cache_util 0.25", true);
        check(&report, "nv_cache_num_lookups 5", true);
        let off = MetricsReport { counter_latencies: false, ..report.clone() };
        check(&off, "nv_cache_num_hits_per_model{model=\"a\",version=\"1\"} 1", false);
        check(&MetricsReport { cache: None, ..report }, "nv_cache_num_lookups 5", false);
    }
}
