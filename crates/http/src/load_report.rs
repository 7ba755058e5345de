//! How does an answer report to a load balancer how busy the host is?
//! A request with the header `endpoint-load-metrics-format: text` or `json` gets an answer with the header `endpoint-load-metrics`, in the format of ORCA
//! (Open Request Cost Aggregation). Triton reports the cache of TensorRT-LLM there, or nothing if there is no such cache. This server reports the load of the
//! host.

use http::{HeaderMap, HeaderName, HeaderValue};
use nerite_api::{Api, HostMetrics};

const FORMAT: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");
const REPORT: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// Adds the report to the headers of an answer, if the request asks for it and processor metrics are on.
pub fn add_report(api: &Api, format: Option<LoadFormat>, answer: &mut HeaderMap) {
    if let Some((format, host)) = format.and_then(|format| Some((format, api.host_metrics()?))) {
        format.report(&host, answer);
    }
}

/// The form in which a client wants the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFormat {
    /// `TEXT name=value, …`.
    Text,
    /// `JSON {"name":value,…}`.
    Json,
}

impl LoadFormat {
    /// The format that the request names. As in Triton, an unknown format is not an error.
    pub fn of(headers: &HeaderMap) -> Option<LoadFormat> {
        match headers.get(FORMAT)?.as_bytes() {
            b"text" => Some(LoadFormat::Text),
            b"json" => Some(LoadFormat::Json),
            _ => None,
        }
    }

    fn report(self, host: &HostMetrics, headers: &mut HeaderMap) {
        let cpu = share(host.cpu_utilization);
        let memory = share(host.memory_used_bytes as f64 / (host.memory_total_bytes as f64).max(1.0));
        let text = match self {
            LoadFormat::Text => format!("TEXT cpu_utilization={cpu:.4}, mem_utilization={memory:.4}"),
            LoadFormat::Json => format!("JSON {{\"cpu_utilization\":{cpu:.4},\"mem_utilization\":{memory:.4}}}"),
        };
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(REPORT, value);
        }
    }
}

fn share(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(format: &'static str, expected: Option<&str>) {
        let headers = [(FORMAT, HeaderValue::from_static(format))].into_iter().collect();
        let host = HostMetrics { cpu_utilization: 0.25, memory_total_bytes: 8, memory_used_bytes: 6 };
        let mut answer = HeaderMap::new();
        if let Some(format) = LoadFormat::of(&headers) {
            format.report(&host, &mut answer);
        }
        let header = answer.get(REPORT).map(|value| value.to_str().unwrap_or_default());
        assert_eq!(header, expected, "{format}");
    }

    #[test]
    fn a_report_is_in_the_form_that_was_asked_for() {
        check("text", Some("TEXT cpu_utilization=0.2500, mem_utilization=0.7500"));
        check("json", Some("JSON {\"cpu_utilization\":0.2500,\"mem_utilization\":0.7500}"));
        check("xml", None);
    }

    #[test]
    fn numbers_that_make_no_sense_are_not_reported() {
        let host = HostMetrics { cpu_utilization: f64::NAN, memory_total_bytes: 0, memory_used_bytes: 6 };
        let mut answer = HeaderMap::new();
        LoadFormat::Text.report(&host, &mut answer);
        assert_eq!(
            answer.get(REPORT).map(HeaderValue::as_bytes),
            Some(&b"TEXT cpu_utilization=0.0000, mem_utilization=1.0000"[..])
        );
    }
}
