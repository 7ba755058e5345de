//! How do metrics look as Prometheus text?
//!
//! The text format is 0.0.4. The families and labels that Triton's dashboards expect come first, nerite's own families last. A family without samples
//! is omitted.

mod access;
mod cache;
mod clients;
mod custom;
mod demand;
mod gpus;
mod latencies;
mod missing;
mod page;

use std::fmt::Write;

use nerite_request::report::{CustomFamily, LatencyReport, StatisticsReport};

use self::page::{Page, Value, escaped};

pub use self::cache::CacheMetrics;

pub use demand::DemandMetrics;
pub use gpus::GpuMetrics;
pub use missing::MissingVersion;

/// Everything that `/metrics` shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsReport {
    /// The loaded model versions.
    pub models: Vec<ModelMetrics>,
    /// The model versions that should be loaded and are not.
    pub missing: Vec<MissingVersion>,
    /// Versions that were unloaded. Their failures are still shown, as in Triton.
    pub gone: Vec<ModelMetrics>,
    /// Whether the sums of durations are shown (`--metrics-config counter_latencies`).
    pub counter_latencies: bool,
    /// The host. `None` to omit it (`--allow-cpu-metrics=false`).
    pub host: Option<HostMetrics>,
    /// The GPUs that the server sees.
    pub gpus: Vec<GpuMetrics>,
    /// Size of the pinned memory pool in bytes.
    pub pinned_total_bytes: u64,
    /// Bytes of the pinned memory pool in use.
    pub pinned_used_bytes: u64,
    /// Bytes copied so far, by reason.
    pub copied_bytes: Vec<(&'static str, u64)>,
    /// Registered regions, by kind.
    pub shm_regions: Vec<(&'static str, u64)>,
    /// The models that requests load. `None` in other control modes.
    pub demand: Option<DemandMetrics>,
    /// Bytes of other processes' memory that are mapped.
    pub shm_mapped_bytes: u64,
    /// Sessions that are open.
    pub sessions: u64,
    /// The session socket. `None` if the server has none (`--session-socket=off`).
    pub session_socket: Option<SessionSocketMetrics>,
    /// Bytes that clients make the server hold, the limits for them, and the connections that were ended because of them.
    pub budget: nerite_budget::Counts,
    /// Bytes of leases, by state.
    pub lease_bytes: Vec<(&'static str, u64)>,
    /// How long front threads were busy without a break. `None` to omit it.
    pub front_busy: Option<BusyMetrics>,
    /// Connections of HTTP, gRPC and metrics.
    pub connections: ConnectionMetrics,
    /// The response cache. `None` if the server has none.
    pub cache: Option<CacheMetrics>,
    /// Traces, by outcome.
    pub traces: Vec<(&'static str, u64)>,
    /// Bytes that traces hold in memory.
    pub trace_bytes: u64,
    /// Lines of the log that were lost, by reason.
    pub log_lines_lost: Vec<(&'static str, u64)>,
    /// Tokens, and how they are used. `None` if the server requires no tokens.
    pub access: Option<nerite_access::Counters>,
    /// Metrics that models created.
    pub custom: Vec<CustomFamily>,
}

/// How long each stretch of work on a front thread took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BusyMetrics {
    /// Elapsed time.
    pub wall: Histogram,
    /// In processor time.
    pub cpu: Histogram,
    /// Users and addresses whose requests made threads wait lately.
    pub stalling_peers: u64,
    /// Requests of such peers that ran on copies of the client's memory.
    pub staged_requests: u64,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// For each bucket, its upper bound in ns and the number of durations up to it. Bounds ascend.
    pub buckets: Vec<(u64, u64)>,
    /// Number of all durations.
    pub count: u64,
    /// Sum of all durations.
    pub sum_ns: u64,
}

/// Connections by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionMetrics {
    /// Connections that are open.
    pub open: u64,
    /// Users and addresses that have open connections.
    pub peers: u64,
    /// Connections refused so far, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Connections that the server ended so far because of their client, by reason.
    pub ended: Vec<(&'static str, u64)>,
}

/// The socket for opening sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSocketMetrics {
    /// Whether clients can open sessions there.
    pub is_up: bool,
    /// How often it was opened after the start, because its file was removed or could not be created before.
    pub reopened: u64,
}

/// One model version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelMetrics {
    /// Its counters.
    pub statistics: StatisticsReport,
    /// `metric_tags` of its configuration. They are printed with an underscore in front, which is not included here.
    pub tags: Vec<(String, String)>,
    /// Whether its configuration enables the response cache.
    pub caches: bool,
    /// The distributions of its latencies that are recorded: for each part of [`StatisticsReport::by_device`], or one.
    pub latencies: Vec<LatencyReport>,
    /// Whether it was ready when its state was last checked.
    pub is_ready: bool,
    /// How often its processes were started anew after their death.
    pub restarts: u64,
}

/// The host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostMetrics {
    /// Share of the processors' time that was used, from 0 to 1.
    pub cpu_utilization: f64,
    /// Bytes of memory.
    pub memory_total_bytes: u64,
    /// Bytes of memory in use.
    pub memory_used_bytes: u64,
}

/// The values of the label `reason`, in the order of [`StatisticsReport::failures`].
const FAILURES: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

type Read = fn(&StatisticsReport) -> u64;

const COUNTS: [(&str, &str, Read); 3] = [
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes", |s| s.success.count),
    ("nv_inference_count", "Number of inferences performed (does not include cached requests)", |s| s.inference_count),
    ("nv_inference_exec_count", "Number of model executions performed (does not include cached requests)", |s| {
        s.execution_count
    }),
];

const LATENCIES: [(&str, &str, Read); 5] = [
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        |s| s.success.ns,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        |s| s.queue.ns,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        |s| s.compute_input.ns,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        |s| s.compute_infer.ns,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        |s| s.compute_output.ns,
    ),
];

/// Renders the report.
pub fn write_metrics(report: &MetricsReport) -> String {
    write_metrics_of(report, 2048 + 1536 * report.models.len())
}

/// As [`write_metrics`], with this initial capacity. If it is too small, the text is copied as it grows.
pub fn write_metrics_of(report: &MetricsReport, bytes_expected: usize) -> String {
    let mut page = Page { out: String::with_capacity(bytes_expected) };
    write_counters(&mut page, report);
    cache::write_counters(&mut page, report);
    gpus::write(&mut page, &report.gpus);
    write_gauges(&mut page, report);
    cache::write_gauges(&mut page, report);
    latencies::write(&mut page, report);
    write_models(&mut page, report);
    write_own(&mut page, report);
    gpus::write_own(&mut page, &report.gpus);
    report.access.iter().for_each(|counters| access::write(&mut page, counters));
    report.custom.iter().for_each(|family| custom::write(&mut page, family));
    page.out
}

fn write_counters(page: &mut Page, report: &MetricsReport) {
    let models = &report.models;
    let [success, others @ ..] = COUNTS;
    page.family(success.0, "counter", success.1, by_device(models, success.2));
    let failed = models.iter().chain(&report.gone);
    let failures = failed.flat_map(|m| m.parts().map(move |part| (m, part))).flat_map(|(m, part)| {
        let by_reason = FAILURES.iter().zip(part.failures);
        by_reason.map(move |(reason, count)| (m.labels_of(part, Some(reason)), Value::Whole(count)))
    });
    page.family(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        failures,
    );
    for (name, help, read) in others {
        page.family(name, "counter", help, by_device(models, read));
    }
    if !report.counter_latencies {
        return;
    }
    for (name, help, read_ns) in LATENCIES {
        let sums = models.iter().flat_map(|m| m.parts().map(move |part| (m, part)));
        let sums = sums.map(|(m, part)| (m.labels_of(part, None), Value::Whole(read_ns(part) / 1000)));
        page.family(name, "counter", help, sums);
    }
}

/// A count of each model, for each of its devices if it has several.
fn by_device(models: &[ModelMetrics], read: Read) -> impl Iterator<Item = (String, Value)> {
    let parts = models.iter().flat_map(|m| m.parts().map(move |part| (m, part)));
    parts.map(move |(m, part)| (m.labels_of(part, None), Value::Whole(read(part))))
}

fn write_gauges(page: &mut Page, report: &MetricsReport) {
    let models = &report.models;
    page.family(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        models.iter().map(|m| (m.labels(None), Value::Whole(m.statistics.pending))),
    );
    page.family(
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        models.iter().map(|m| (m.labels(None), Value::Real(m.statistics.load_ns as f64 / 1e9))),
    );
    let mut single = |name, help, value| page.family(name, "gauge", help, [(String::new(), value)]);
    single(
        "nv_pinned_memory_pool_total_bytes",
        "Pinned memory pool total memory size, in bytes",
        Value::Whole(report.pinned_total_bytes),
    );
    single(
        "nv_pinned_memory_pool_used_bytes",
        "Pinned memory pool used memory size, in bytes",
        Value::Whole(report.pinned_used_bytes),
    );
    if let Some(host) = report.host {
        single("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", Value::Real(host.cpu_utilization));
        single("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", Value::Whole(host.memory_total_bytes));
        single("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", Value::Whole(host.memory_used_bytes));
    }
}

fn write_models(page: &mut Page, report: &MetricsReport) {
    page.family(
        "nerite_model_ready",
        "gauge",
        "Whether the model's instances could take requests when that was last looked at; 0 for a version that should be loaded and is not",
        report
            .models
            .iter()
            .map(|m| (m.labels(None), Value::Whole(m.is_ready.into())))
            .chain(report.missing.iter().map(|missing| (missing.labels(), Value::Whole(0)))),
    );
    page.family(
        "nerite_model_restarts_total",
        "counter",
        "How often a process of the model was started anew after one had ended",
        report.models.iter().map(|m| (m.labels(None), Value::Whole(m.restarts))),
    );
    page.family(
        "nerite_model_run_rows_total",
        "counter",
        "Rows of the model's runs, of failed ones as well",
        report.models.iter().map(|m| (m.labels(None), Value::Whole(m.statistics.run_rows()))),
    );
}

fn write_own(page: &mut Page, report: &MetricsReport) {
    page.family(
        "nerite_copied_bytes_total",
        "counter",
        "Tensor bytes copied, by reason",
        report.copied_bytes.iter().map(|(reason, bytes)| (format!("{{reason=\"{reason}\"}}"), Value::Whole(*bytes))),
    );
    page.family(
        "nerite_shm_regions",
        "gauge",
        "Registered shared memory regions, by kind",
        report.shm_regions.iter().map(|(kind, count)| (format!("{{kind=\"{kind}\"}}"), Value::Whole(*count))),
    );
    page.family(
        "nerite_shm_mapped_bytes",
        "gauge",
        "Bytes of other processes' memory that are mapped",
        [(String::new(), Value::Whole(report.shm_mapped_bytes))],
    );
    page.family(
        "nerite_traces_total",
        "counter",
        "Traced requests, by what became of their traces",
        report.traces.iter().map(|(outcome, count)| (format!("{{outcome=\"{outcome}\"}}"), Value::Whole(*count))),
    );
    page.family(
        "nerite_trace_bytes",
        "gauge",
        "Bytes that traces hold in memory",
        [(String::new(), Value::Whole(report.trace_bytes))],
    );
    page.family(
        "nerite_log_lines_lost_total",
        "counter",
        "Lines of the log that were lost, by reason",
        report.log_lines_lost.iter().map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), Value::Whole(*count))),
    );
    if let Some(demand) = &report.demand {
        demand::write(page, demand);
    }
    page.family("nerite_sessions", "gauge", "Open sessions", [(String::new(), Value::Whole(report.sessions))]);
    let socket = report.session_socket;
    page.family(
        "nerite_session_socket_up",
        "gauge",
        "Whether sessions can be opened at the session socket",
        socket.map(|socket| (String::new(), Value::Whole(socket.is_up.into()))),
    );
    page.family(
        "nerite_session_socket_reopened_total",
        "counter",
        "Number of times the session socket was opened after the start, because its file was gone or could not be made before",
        socket.map(|socket| (String::new(), Value::Whole(socket.reopened))),
    );
    page.family(
        "nerite_lease_bytes",
        "gauge",
        "Bytes of memory lent to sessions, and of returned leases kept for them, by state",
        report.lease_bytes.iter().map(|(state, bytes)| (format!("{{state=\"{state}\"}}"), Value::Whole(*bytes))),
    );
    if let Some(busy) = &report.front_busy {
        clients::write_busy(page, busy);
    }
    clients::write_connections(page, &report.connections);
    clients::write_budget(page, &report.budget);
}

impl ModelMetrics {
    /// The counts of each device. If all instances of the model are on one device, the counts of the model.
    fn parts(&self) -> std::slice::Iter<'_, StatisticsReport> {
        let StatisticsReport { by_device, .. } = &self.statistics;
        if by_device.is_empty() { std::slice::from_ref(&self.statistics).iter() } else { by_device.iter() }
    }

    /// The latencies of each of these parts, with its labels.
    fn latencies_by_part(&self) -> impl Iterator<Item = (String, &LatencyReport)> {
        self.parts().zip(&self.latencies).map(|(part, latencies)| (self.labels_of(part, None), latencies))
    }

    fn labels(&self, reason: Option<&str>) -> String {
        self.labels_of(&self.statistics, reason)
    }

    /// Labels in alphabetical order. A tag begins with an underscore, which sorts before all letters.
    fn labels_of(&self, part: &StatisticsReport, reason: Option<&str>) -> String {
        let mut tags: Vec<_> = self.tags.iter().collect();
        tags.sort();
        let mut out = String::from("{");
        for (name, value) in tags {
            let _ = write!(out, "_{name}=\"{}\",", escaped(value));
        }
        if !part.gpu_uuid.is_empty() {
            let _ = write!(out, "gpu_uuid=\"{}\",", escaped(&part.gpu_uuid));
        }
        let _ = write!(out, "model=\"{}\",", escaped(&self.statistics.name));
        if !self.statistics.namespace.is_empty() {
            let _ = write!(out, "namespace=\"{}\",", escaped(&self.statistics.namespace));
        }
        if let Some(reason) = reason {
            let _ = write!(out, "reason=\"{reason}\",");
        }
        let _ = write!(out, "version=\"{}\"}}", self.statistics.version);
        out
    }
}

#[cfg(test)]
mod tests {
    use nerite_request::report::{BatchReport, Duration};

    use super::*;

    fn model(name: &str) -> ModelMetrics {
        let statistics = StatisticsReport { name: name.into(), version: 1, ..StatisticsReport::default() };
        ModelMetrics { statistics, ..ModelMetrics::default() }
    }

    #[track_caller]
    fn check(report: &MetricsReport, line: &str, there: bool) {
        let text = write_metrics(report);
        assert_eq!(text.lines().any(|found| found == line), there, "{line}\n{text}");
    }

    fn report() -> MetricsReport {
        let mut busy = model("a");
        busy.statistics.success.add(1_999_000);
        busy.statistics.failures = [1, 2, 3, 4];
        busy.statistics.load_ns = 1_500_000_000;
        (busy.is_ready, busy.restarts) = (true, 4);
        let batch = |batch_size, count| BatchReport {
            batch_size,
            compute_infer: Duration { count, ns: 7 },
            ..BatchReport::default()
        };
        busy.statistics.batches = vec![batch(1, 3), batch(4, 2)];
        MetricsReport {
            models: vec![busy, model("b")],
            counter_latencies: true,
            host: Some(HostMetrics { cpu_utilization: 0.25, ..HostMetrics::default() }),
            copied_bytes: vec![("unaligned", 64)],
            shm_regions: vec![("system", 2)],
            sessions: 3,
            session_socket: Some(SessionSocketMetrics { is_up: true, reopened: 2 }),
            budget: nerite_budget::Counts { used: 7, leaving: 3, max: 9, shed: vec![("peer", 2)] },
            lease_bytes: vec![("lent", 4096), ("idle", 0)],
            connections: ConnectionMetrics { open: 7, refused: vec![("peer", 5)], ..ConnectionMetrics::default() },
            ..MetricsReport::default()
        }
    }

    #[test]
    fn every_model_has_its_series_from_the_start() {
        check(&report(), "nv_inference_request_success{model=\"a\",version=\"1\"} 1", true);
        check(&report(), "nv_inference_request_success{model=\"b\",version=\"1\"} 0", true);
        check(&report(), "nv_inference_request_failure{model=\"a\",reason=\"CANCELED\",version=\"1\"} 2", true);
        check(&report(), "nv_inference_request_failure{model=\"b\",reason=\"OTHER\",version=\"1\"} 0", true);
        check(&report(), "nv_inference_request_duration_us{model=\"a\",version=\"1\"} 1999", true);
        check(&report(), "nv_inference_pending_request_count{model=\"b\",version=\"1\"} 0", true);
        check(&report(), "nv_model_load_duration_secs{model=\"a\",version=\"1\"} 1.5", true);
        check(&report(), "# TYPE nv_inference_exec_count counter", true);
        check(&report(), "nerite_model_ready{model=\"a\",version=\"1\"} 1", true);
        check(&report(), "nerite_model_ready{model=\"b\",version=\"1\"} 0", true);
        check(&report(), "nerite_model_restarts_total{model=\"a\",version=\"1\"} 4", true);
        check(&report(), "nerite_model_restarts_total{model=\"b\",version=\"1\"} 0", true);
        check(&report(), "nerite_model_run_rows_total{model=\"a\",version=\"1\"} 11", true);
        check(&report(), "nerite_model_run_rows_total{model=\"b\",version=\"1\"} 0", true);
    }

    #[test]
    fn families_of_the_host_and_of_nerite_have_no_model() {
        check(&report(), "nv_cpu_utilization 0.25", true);
        check(&report(), "nv_pinned_memory_pool_total_bytes 0", true);
        check(&report(), "nerite_copied_bytes_total{reason=\"unaligned\"} 64", true);
        check(&report(), "nerite_shm_regions{kind=\"system\"} 2", true);
        check(&report(), "nerite_shm_mapped_bytes 0", true);
        check(&report(), "nerite_sessions 3", true);
        let traced = MetricsReport { traces: vec![("dropped", 2)], trace_bytes: 9, ..report() };
        check(&traced, "nerite_traces_total{outcome=\"dropped\"} 2", true);
        check(&traced, "nerite_trace_bytes 9", true);
        let unlogged = MetricsReport { log_lines_lost: vec![("write_failed", 4)], ..report() };
        check(&unlogged, "nerite_log_lines_lost_total{reason=\"write_failed\"} 4", true);
        check(&report(), "nerite_demand_models", false);
        let demand = Some(DemandMetrics { models: 2, bytes: 64, loads: 3, evictions: 1, waiting: 5 });
        let on_demand = MetricsReport { demand, ..report() };
        check(&on_demand, "nerite_demand_models_bytes 64", true);
        check(&on_demand, "nerite_demand_evictions_total 1", true);
        check(&report(), "nerite_session_socket_up 1", true);
        check(&report(), "nerite_session_socket_reopened_total 2", true);
        check(&report(), "nerite_lease_bytes{state=\"lent\"} 4096", true);
        check(&report(), "nerite_memory_budget_bytes{state=\"used\"} 7", true);
        check(&report(), "nerite_memory_budget_bytes{state=\"leaving\"} 3", true);
        check(&report(), "nerite_shed_connections_total{reason=\"peer\"} 2", true);
        check(&report(), "nerite_token_requests_total{outcome=\"passed\",token=\"ci\"} 3", false);
        let ci =
            nerite_access::Counts { name: "ci".into(), passed: 3, bytes_out: 8, ..nerite_access::Counts::default() };
        let counters = nerite_access::Counters { tokens: vec![ci], unknown: 4, ..nerite_access::Counters::default() };
        let by_token = MetricsReport { access: Some(counters), ..report() };
        check(&by_token, "nerite_token_requests_total{outcome=\"passed\",token=\"ci\"} 3", true);
        check(&by_token, "nerite_token_bytes_total{direction=\"out\",token=\"ci\"} 8", true);
        check(&by_token, "nerite_token_refused_total{reason=\"unknown\"} 4", true);
        check(&by_token, "nerite_token_file_current 0", true);
        check(&report(), "nerite_connections 7", true);
        check(&report(), "nerite_connections_refused_total{reason=\"peer\"} 5", true);
    }

    #[test]
    fn a_histogram_has_cumulative_buckets_a_sum_and_a_count() {
        let wall = Histogram { buckets: vec![(100_000, 7), (10_000_000_000, 9)], count: 10, sum_ns: 1_500_000_000 };
        let front_busy = BusyMetrics { wall, stalling_peers: 2, staged_requests: 3, ..BusyMetrics::default() };
        let report = MetricsReport { front_busy: Some(front_busy), ..report() };
        check(&report, "# TYPE nerite_front_thread_busy_seconds histogram", true);
        check(&report, "nerite_front_thread_busy_seconds_bucket{le=\"0.0001\"} 7", true);
        check(&report, "nerite_front_thread_busy_seconds_bucket{le=\"10\"} 9", true);
        check(&report, "nerite_front_thread_busy_seconds_bucket{le=\"+Inf\"} 10", true);
        check(&report, "nerite_front_thread_busy_seconds_sum 1.5", true);
        check(&report, "nerite_front_thread_busy_seconds_count 10", true);
        check(&report, "nerite_front_thread_busy_cpu_seconds_count 0", true);
        check(&report, "nerite_stalling_peers 2", true);
        check(&report, "nerite_staged_requests_total 3", true);
    }

    #[test]
    fn disabled_metrics_are_omitted() {
        let off = MetricsReport { counter_latencies: false, host: None, session_socket: None, ..report() };
        check(&off, "# TYPE nerite_session_socket_up gauge", false);
        check(&off, "# TYPE nv_inference_queue_duration_us counter", false);
        check(&off, "# TYPE nv_cpu_utilization gauge", false);
        check(&off, "# TYPE nv_inference_count counter", true);
        check(&MetricsReport::default(), "# TYPE nv_inference_count counter", false);
    }

    #[test]
    fn failures_outlive_their_model() {
        let gone = MetricsReport { gone: vec![model("old")], ..report() };
        check(&gone, "nv_inference_request_failure{model=\"old\",reason=\"OTHER\",version=\"1\"} 0", true);
        check(&gone, "nv_inference_count{model=\"old\",version=\"1\"} 0", false);
    }

    #[test]
    fn a_namespace_is_a_label_where_there_are_namespaces() {
        let mut spaced = model("m");
        spaced.statistics.namespace = "/models/a".to_owned();
        let report = MetricsReport { models: vec![spaced], ..MetricsReport::default() };
        let of = "model=\"m\",namespace=\"/models/a\"";
        check(&report, &format!("nv_inference_count{{{of},version=\"1\"}} 0"), true);
        check(&report, &format!("nv_inference_request_failure{{{of},reason=\"OTHER\",version=\"1\"}} 0"), true);
    }

    #[test]
    fn the_gpu_of_a_model_is_a_label() {
        let tags = vec![("b".into(), "1".into())];
        let mut placed = ModelMetrics { tags, ..model("m") };
        placed.statistics.gpu_uuid = "GPU-1".to_owned();
        let report = MetricsReport { models: vec![placed], ..MetricsReport::default() };
        check(&report, "nv_inference_count{_b=\"1\",gpu_uuid=\"GPU-1\",model=\"m\",version=\"1\"} 0", true);
    }

    #[test]
    fn a_model_on_several_devices_is_counted_for_each() {
        let mut placed = model("m");
        let part = |uuid: &str, inference_count| StatisticsReport {
            gpu_uuid: uuid.into(),
            inference_count,
            failures: [inference_count, 0, 0, 0],
            ..placed.statistics.clone()
        };
        let by_device = vec![part("", 1), part("GPU-1", 2), part("GPU-2", 3)];
        placed.statistics = StatisticsReport { inference_count: 6, by_device, ..placed.statistics };
        let report = MetricsReport { models: vec![placed], ..report() };
        check(&report, "nv_inference_count{model=\"m\",version=\"1\"} 1", true);
        check(&report, "nv_inference_count{gpu_uuid=\"GPU-2\",model=\"m\",version=\"1\"} 3", true);
        let of = "gpu_uuid=\"GPU-1\",model=\"m\"";
        check(&report, &format!("nv_inference_request_failure{{{of},reason=\"REJECTED\",version=\"1\"}} 2"), true);
        check(&report, &format!("nv_inference_queue_duration_us{{{of},version=\"1\"}} 0"), true);
        check(&report, "nv_inference_pending_request_count{model=\"m\",version=\"1\"} 0", true);
    }

    #[test]
    fn tags_come_first_and_values_are_escaped() {
        let tags = vec![("b".into(), "x\"\\".into()), ("a".into(), "1".into())];
        let tagged = MetricsReport { models: vec![ModelMetrics { tags, ..model("m") }], ..MetricsReport::default() };
        check(&tagged, "nv_inference_count{_a=\"1\",_b=\"x\\\"\\\\\",model=\"m\",version=\"1\"} 0", true);
    }
}
