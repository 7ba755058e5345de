//! How is the server as a whole shown as metrics?

use super::page::{Page, Value, escaped};

/// The server as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerMetrics {
    /// Whether it was ready, by the last answers of its models.
    pub is_ready: bool,
    /// Its version.
    pub version: String,
    /// When its process started, in seconds since 1970. `None` if that is not known.
    pub started_s: Option<f64>,
    /// For each port with TLS, its name and the end of its certificates, in seconds since 1970.
    pub certificates: Vec<(&'static str, u64)>,
    /// Requests refused before a model saw them, by reason.
    pub refused: Vec<(&'static str, u64)>,
}

pub(super) fn write(page: &mut Page, server: &ServerMetrics) {
    let ServerMetrics { is_ready, version, started_s, certificates, refused } = server;
    let one = |value| [(String::new(), Value::Whole(value))];
    page.family(
        "nerite_ready",
        "gauge",
        "Whether the server is ready, as /v2/health/ready has it, by the last answers of models that report their own readiness",
        one((*is_ready).into()),
    );
    page.family(
        "nerite_build_info",
        "gauge",
        "Always 1; the label is the server's version",
        [(format!("{{version=\"{}\"}}", escaped(version)), Value::Whole(1))],
    );
    page.family(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds",
        started_s.map(|seconds| (String::new(), Value::Real(seconds))),
    );
    page.family(
        "nerite_certificate_not_after_seconds",
        "gauge",
        "Unix time at which the first certificate of the port's chain ends",
        certificates.iter().map(|(port, seconds)| (format!("{{port=\"{port}\"}}"), Value::Whole(*seconds))),
    );
    page.family(
        "nerite_requests_refused_total",
        "counter",
        "Requests refused before a model saw them, by reason; memory has the connections that were ended because of what they held, too",
        refused.iter().map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), Value::Whole(*count))),
    );
}
