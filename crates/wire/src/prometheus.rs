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
mod loads;
mod missing;
mod page;
mod sample;
mod server;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use nerite_request::report::{CustomFamily, LatencyReport, StatisticsReport};

use self::page::{Page, Value, escaped};

pub use self::cache::CacheMetrics;

pub use demand::DemandMetrics;
pub use gpus::GpuMetrics;
pub use loads::ModelLoads;
pub use missing::MissingVersion;
pub use sample::Sample;
pub use server::ServerMetrics;

/// Everything that `/metrics` shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsReport {
    /// The server as a whole.
    pub server: ServerMetrics,
    /// The loads of each model.
    pub loads: Vec<ModelLoads>,
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
    /// Whether it serves although a later load of its model failed.
    pub has_failed_reload: bool,
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
    server::write(&mut page, &report.server);
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
        "How often a process of the model was started anew after one had ended, whether or not that start succeeded",
        report.models.iter().map(|m| (m.labels(None), Value::Whole(m.restarts))),
    );
    page.family(
        "nerite_model_reload_failed",
        "gauge",
        "Whether the last load of the model failed while this version serves on",
        report.models.iter().map(|m| (m.labels(None), Value::Whole(m.has_failed_reload.into()))),
    );
    loads::write(page, &report.loads);
    page.family(
        "nerite_model_run_rows_total",
        "counter",
        "Rows of the model's runs, of failed ones as well; divided by nv_inference_exec_count, the mean rows of a run",
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
        "Bytes of clients' memory that are mapped, by sessions and by models' processes as well",
        [(String::new(), Value::Whole(report.shm_mapped_bytes))],
    );
    page.family(
        "nerite_traces_total",
        "counter",
        "Traces written to a file or accepted by a collector, how many of these were shortened, and how many were dropped",
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
        "Lines of the log that were lost: queue_full, they came too fast; write_failed, they could not be written, for example to a full disk",
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
