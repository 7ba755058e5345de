//! How are metrics that models created written?

use std::fmt::Write;

use nerite_request::report::{CustomFamily, CustomValue, MetricKind};

use super::page::{Page, escaped};

/// Writes one family. Writes nothing if it has no metric.
pub(super) fn write(page: &mut Page, family: &CustomFamily) {
    let CustomFamily { name, description, kind, metrics } = family;
    if metrics.is_empty() {
        return;
    }
    if !description.is_empty() {
        let help = description.replace('\\', "\\\\").replace('\n', "\\n");
        page.line(format_args!("# HELP {name} {help}"));
    }
    page.line(format_args!("# TYPE {name} {}", word(*kind)));
    for (labels, value) in metrics {
        match value {
            CustomValue::Number(value) => page.line(format_args!("{name}{} {}", braced(labels, None), number(*value))),
            CustomValue::Histogram(buckets, count, sum) => {
                let plain = braced(labels, None);
                page.line(format_args!("{name}_count{plain} {count}"));
                page.line(format_args!("{name}_sum{plain} {}", number(*sum)));
                let all = (f64::INFINITY, *count);
                let unbounded = buckets.last().is_none_or(|(bound, _)| bound.is_finite());
                for (bound, within) in buckets.iter().copied().chain(unbounded.then_some(all)) {
                    page.line(format_args!("{name}_bucket{} {within}", braced(labels, Some(bound))));
                }
            }
        }
    }
}

fn word(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
    }
}

fn braced(labels: &[(String, String)], bound: Option<f64>) -> String {
    let mut text = String::new();
    for (name, value) in labels {
        let _ = write!(text, "{}{name}=\"{}\"", if text.is_empty() { "" } else { "," }, escaped(value));
    }
    if let Some(bound) = bound {
        let _ = write!(text, "{}le=\"{}\"", if text.is_empty() { "" } else { "," }, number(bound));
    }
    if text.is_empty() { text } else { format!("{{{text}}}") }
}

/// A number in Prometheus's syntax.
fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        value if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value}"),
        value => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: MetricKind, description: &str, labels: &[(&str, &str)], value: CustomValue, expected: &str) {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let metrics = vec![(labels, value)];
        let mut page = Page { out: String::new() };
        write(&mut page, &CustomFamily { name: "m".into(), description: description.into(), kind, metrics });
        assert_eq!(page.out, expected);
    }

    #[test]
    fn each_kind_is_written_as_prometheus_reads_it() {
        let number = CustomValue::Number;
        check(MetricKind::Counter, "Hits", &[], number(2.5), "# HELP m Hits\n# TYPE m counter\nm 2.5\n");
        check(MetricKind::Gauge, "", &[("a", "x\"\n")], number(-3.0), "# TYPE m gauge\nm{a=\"x\\\"\\n\"} -3\n");
        check(MetricKind::Gauge, "a\n\\", &[], number(f64::NAN), "# HELP m a\\n\\\\\n# TYPE m gauge\nm NaN\n");
        check(MetricKind::Gauge, "", &[], number(1e300), "# TYPE m gauge\nm 1e300\n");
        let buckets = vec![(0.1, 0), (10.0, 2)];
        check(
            MetricKind::Histogram,
            "",
            &[("a", "1")],
            CustomValue::Histogram(buckets, 3, 108.0),
            "# TYPE m histogram\nm_count{a=\"1\"} 3\nm_sum{a=\"1\"} 108\nm_bucket{a=\"1\",le=\"0.1\"} 0\n\
             m_bucket{a=\"1\",le=\"10\"} 2\nm_bucket{a=\"1\",le=\"+Inf\"} 3\n",
        );
        check(
            MetricKind::Histogram,
            "",
            &[],
            CustomValue::Histogram(vec![], 0, 0.0),
            "# TYPE m histogram\nm_count 0\nm_sum 0\nm_bucket{le=\"+Inf\"} 0\n",
        );
    }

    #[test]
    fn a_family_without_a_metric_is_left_out() {
        let mut page = Page { out: String::new() };
        let (name, description) = ("m".to_owned(), "Hits".to_owned());
        write(&mut page, &CustomFamily { name, description, kind: MetricKind::Gauge, metrics: vec![] });
        assert_eq!(page.out, "");
    }
}
