//! How are distributions of latencies shown as metrics?

use nerite_request::report::{BucketReport, Latency, LatencyReport, SummaryReport};

use super::page::Page;
use super::{MetricsReport, ModelMetrics};

/// The summaries in Triton's order.
const SUMMARIES: [(Latency, &str, &str); 7] = [
    (
        Latency::Request,
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
    ),
    (
        Latency::Queue,
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
    ),
    (
        Latency::ComputeInput,
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    (
        Latency::ComputeInfer,
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    (
        Latency::ComputeOutput,
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
    (
        Latency::CacheHit,
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
    ),
    (
        Latency::CacheMiss,
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
    ),
];

const FIRST_RESPONSE: (&str, &str) =
    ("nv_inference_first_response_histogram_ms", "Duration from request to first response in milliseconds");

/// Writes the distributions that are recorded. Families without data are omitted.
pub(super) fn write<'a>(page: &mut Page, report: &'a MetricsReport) {
    let all: Vec<_> = report.models.iter().flat_map(ModelMetrics::latencies_by_part).collect();
    write_first_responses(page, &all);
    for (latency, name, help) in SUMMARIES {
        let find = |report: &'a LatencyReport| report.summaries.iter().find(|(of, _)| *of == latency);
        let kept: Vec<_> = all.iter().filter_map(|(labels, latencies)| Some((labels, &find(latencies)?.1))).collect();
        if kept.is_empty() {
            continue;
        }
        page.head(name, "summary", help);
        for (labels, summary) in kept {
            write_summary(page, name, labels, summary);
        }
    }
}

fn write_summary(page: &mut Page, name: &str, labels: &str, summary: &SummaryReport) {
    page.line(format_args!("{name}_count{labels} {}", summary.count));
    page.line(format_args!("{name}_sum{labels} {}", summary.sum_us));
    for (quantile, value) in &summary.quantiles {
        let labels = with(labels, "quantile", *quantile);
        match value {
            Some(us) => page.line(format_args!("{name}{labels} {us}")),
            // Triton's library writes it in this spelling.
            None => page.line(format_args!("{name}{labels} Nan")),
        }
    }
}

fn write_first_responses(page: &mut Page, all: &[(String, &LatencyReport)]) {
    let (name, help) = FIRST_RESPONSE;
    if all.iter().all(|(_, latencies)| latencies.first_response.is_none()) {
        return;
    }
    page.head(name, "histogram", help);
    for (labels, latencies) in all {
        let Some(BucketReport { buckets, count, sum_ms }) = &latencies.first_response else { continue };
        page.line(format_args!("{name}_count{labels} {count}"));
        page.line(format_args!("{name}_sum{labels} {sum_ms}"));
        for (bound_ms, count) in buckets {
            page.line(format_args!("{name}_bucket{} {count}", with(labels, "le", *bound_ms)));
        }
        let labels = labels.trim_end_matches('}');
        page.line(format_args!("{name}_bucket{labels},le=\"+Inf\"}} {count}"));
    }
}

/// Appends one label to `labels`.
fn with(labels: &str, name: &str, value: f64) -> String {
    format!("{},{name}=\"{value}\"}}", labels.trim_end_matches('}'))
}

#[cfg(test)]
mod tests {
    use nerite_request::report::StatisticsReport;

    use super::super::write_metrics;
    use super::*;

    #[test]
    fn quantiles_and_buckets_follow_the_models_labels() {
        let summary = SummaryReport { quantiles: vec![(0.5, Some(7)), (0.9, None)], count: 2, sum_us: 15 };
        let first_response = BucketReport { buckets: vec![(100.0, 1), (2.5, 2)], count: 3, sum_ms: 1.5 };
        let latencies =
            LatencyReport { summaries: vec![(Latency::Queue, summary)], first_response: Some(first_response) };
        let statistics = StatisticsReport { name: "m".into(), version: 1, ..StatisticsReport::default() };
        let tags = vec![("team".to_owned(), "x".to_owned())];
        let model = ModelMetrics { statistics, tags, latencies: vec![latencies], ..ModelMetrics::default() };
        let text = write_metrics(&MetricsReport { models: vec![model], ..MetricsReport::default() });
        let of = "_team=\"x\",model=\"m\",version=\"1\"";
        for line in [
            format!("nv_inference_queue_summary_us_count{{{of}}} 2"),
            format!("nv_inference_queue_summary_us_sum{{{of}}} 15"),
            format!("nv_inference_queue_summary_us{{{of},quantile=\"0.5\"}} 7"),
            format!("nv_inference_queue_summary_us{{{of},quantile=\"0.9\"}} Nan"),
            format!("nv_inference_first_response_histogram_ms_bucket{{{of},le=\"100\"}} 1"),
            format!("nv_inference_first_response_histogram_ms_bucket{{{of},le=\"+Inf\"}} 3"),
            format!("nv_inference_first_response_histogram_ms_sum{{{of}}} 1.5"),
            "# TYPE nv_inference_queue_summary_us summary".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("nv_inference_request_summary_us"), "{text}");
    }

    #[test]
    fn the_latencies_of_each_device_have_its_labels() {
        let part = |gpu_uuid: &str| StatisticsReport { gpu_uuid: gpu_uuid.into(), ..StatisticsReport::default() };
        let by_device = ["", "GPU-a", "GPU-b"].map(part).to_vec();
        let statistics = StatisticsReport { name: "m".into(), version: 1, by_device, ..StatisticsReport::default() };
        let latencies = (1..4).map(|count| LatencyReport {
            summaries: vec![(Latency::Queue, SummaryReport { count, ..SummaryReport::default() })],
            first_response: Some(BucketReport { count: 10 * count, ..BucketReport::default() }),
        });
        let model = ModelMetrics { statistics, latencies: latencies.collect(), ..ModelMetrics::default() };
        let text = write_metrics(&MetricsReport { models: vec![model], ..MetricsReport::default() });
        for (labels, count) in [("", 1), ("gpu_uuid=\"GPU-a\",", 2), ("gpu_uuid=\"GPU-b\",", 3)] {
            let of = format!("{{{labels}model=\"m\",version=\"1\"}}");
            for line in [
                format!("nv_inference_queue_summary_us_count{of} {count}"),
                format!("nv_inference_first_response_histogram_ms_count{of} {}", 10 * count),
            ] {
                assert!(text.lines().any(|found| found == line), "{line}\n{text}");
            }
        }
    }
}
