//! Does docs/metrics.md list every family of the metrics as the server writes it?
//!
//! `NERITE_WRITE_METRICS_PAGE=1 cargo test -p nerite-wire --test metrics_page` writes the tables.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use nerite_request::report::{BucketReport, Latency, LatencyReport, StatisticsReport, SummaryReport};
use nerite_wire::prometheus::{
    BusyMetrics, CacheMetrics, ConnectionMetrics, DemandMetrics, GpuMetrics, HostMetrics, MetricsReport,
    MissingVersion, ModelLoads, ModelMetrics, ServerMetrics, SessionSocketMetrics, write_metrics,
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
const BEGIN: &str = "<!-- families:begin -->\n";
const END: &str = "<!-- families:end -->\n";

/// A family as the page lists it.
#[derive(Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// A report with everything. Each field is named, so that a new one is not forgotten here.
fn full_report() -> MetricsReport {
    let by = |label: &'static str| vec![(label, 1)];
    MetricsReport {
        server: ServerMetrics {
            is_ready: true,
            version: "1".to_owned(),
            started_s: Some(1.0),
            certificates: by("http"),
            refused: by("memory"),
        },
        loads: vec![ModelLoads { name: "m".to_owned(), namespace: String::new(), successes: 1, failures: 0 }],
        models: vec![model()],
        missing: vec![MissingVersion { name: "n".to_owned(), namespace: String::new(), version: None }],
        gone: Vec::new(),
        counter_latencies: true,
        host: Some(HostMetrics::default()),
        gpus: vec![gpu()],
        pinned_total_bytes: 1,
        pinned_used_bytes: 1,
        copied_bytes: by("unaligned"),
        shm_regions: by("system"),
        demand: Some(DemandMetrics::default()),
        shm_mapped_bytes: 1,
        sessions: 1,
        session_socket: Some(SessionSocketMetrics::default()),
        budget: nerite_budget::Counts { used: 1, leaving: 1, max: 1, shed: by("peer"), refused: 1 },
        lease_bytes: by("lent"),
        front_busy: Some(BusyMetrics::default()),
        connections: ConnectionMetrics { open: 1, peers: 1, refused: by("peer"), ended: by("idle") },
        cache: Some(CacheMetrics::default()),
        traces: by("written"),
        trace_bytes: 1,
        log_lines_lost: by("queue_full"),
        access: Some(nerite_access::Counters {
            tokens: vec![nerite_access::Counts::default()],
            ..nerite_access::Counters::default()
        }),
        // Models name these.
        custom: Vec::new(),
    }
}

fn model() -> ModelMetrics {
    let all = [
        Latency::Request,
        Latency::Queue,
        Latency::ComputeInput,
        Latency::ComputeInfer,
        Latency::ComputeOutput,
        Latency::CacheHit,
        Latency::CacheMiss,
    ];
    let summary = SummaryReport { quantiles: vec![(0.5, None)], ..SummaryReport::default() };
    let first_response = Some(BucketReport { buckets: vec![(1.0, 0)], ..BucketReport::default() });
    ModelMetrics {
        statistics: StatisticsReport { name: "m".to_owned(), version: 1, ..StatisticsReport::default() },
        tags: Vec::new(),
        caches: true,
        latencies: vec![LatencyReport { summaries: all.map(|of| (of, summary.clone())).into(), first_response }],
        is_ready: true,
        restarts: 0,
        has_failed_reload: false,
    }
}

fn gpu() -> GpuMetrics {
    GpuMetrics {
        uuid: "GPU-1".to_owned(),
        utilization: Some(1.0),
        memory_total_bytes: Some(1),
        memory_used_bytes: Some(1),
        power_usage_watts: Some(1.0),
        power_limit_watts: Some(1.0),
        energy_joules: Some(1.0),
        age_s: 1.0,
    }
}

/// The families of a page of metrics, by name.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    let mut last = String::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            name.clone_into(&mut last);
            help.trim_end_matches('.').clone_into(&mut families.entry(last.clone()).or_default().help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert_eq!(name, last);
            kind.clone_into(&mut families.get_mut(name).unwrap().kind);
        } else {
            families.get_mut(&last).unwrap().labels.extend(labels(line));
        }
    }
    families
}

/// The names of the labels of a sample. No value of this report has a comma or an equals sign.
fn labels(sample: &str) -> Vec<String> {
    let Some((_, rest)) = sample.split_once('{') else { return Vec::new() };
    let (labels, _) = rest.rsplit_once('}').unwrap();
    labels.split(',').map(|label| label.split_once('=').unwrap().0.to_owned()).collect()
}

/// The tables: the families of nerite's own, and those that Triton has too.
fn tables(families: &BTreeMap<String, Family>) -> String {
    let mut out = String::new();
    for (title, is_tritons) in [("Of nerite's own", false), ("As in Triton", true)] {
        let _ = write!(out, "## {title}\n\n| family | kind | labels | meaning |\n|---|---|---|---|\n");
        for (name, Family { kind, help, labels }) in families {
            if name.starts_with("nv_") == is_tritons {
                let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
                let _ = writeln!(out, "| `{name}` | {kind} | {} | {} |", labels.join(", "), help.replace('|', "\\|"));
            }
        }
        out.push('\n');
    }
    out
}

#[test]
fn the_page_lists_every_family_as_the_server_writes_it() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let expect = format!("{before}{BEGIN}{}{END}{after}", tables(&families(&write_metrics(&full_report()))));
    if std::env::var_os("NERITE_WRITE_METRICS_PAGE").is_some() {
        std::fs::write(PAGE, &expect).unwrap();
        return;
    }
    assert!(
        page == expect,
        "docs/metrics.md is not as the code has it: set NERITE_WRITE_METRICS_PAGE=1 and run this again"
    );
}
