//! What is in one family of metrics?

use std::collections::BTreeMap;

use nerite_request::report::{CustomFamily, CustomValue, MetricKind};

use super::MetricChange;

/// The labels of a metric, by name.
pub type Labels = BTreeMap<String, String>;

#[derive(Debug)]
pub(super) struct Family {
    pub(super) kind: MetricKind,
    description: String,
    /// The number of owners that share it.
    pub(super) owners: usize,
    metrics: BTreeMap<Labels, Metric>,
}

#[derive(Debug)]
struct Metric {
    owners: usize,
    value: f64,
    /// For a histogram: the upper bound of each bucket, and the number of values in it that are in no earlier bucket.
    buckets: Vec<(f64, u64)>,
    /// For a histogram: the number of values that were observed. Their sum is `value`.
    count: u64,
}

impl Family {
    pub(super) fn new(kind: MetricKind, description: &str) -> Family {
        Family { kind, description: description.to_owned(), owners: 0, metrics: BTreeMap::new() }
    }

    /// Adds an owner to the metric with these labels, and makes the metric if there is none.
    pub(super) fn add(&mut self, labels: &Labels, buckets: Option<Vec<f64>>) -> Result<(), String> {
        let bounds = match (self.kind, buckets) {
            (MetricKind::Histogram, Some(bounds)) => bounds,
            (MetricKind::Histogram, None) => return Err("Missing required buckets.".to_owned()),
            (MetricKind::Counter | MetricKind::Gauge, None) => Vec::new(),
            (MetricKind::Counter | MetricKind::Gauge, Some(_)) => return Err("Unexpected buckets found.".to_owned()),
        };
        // Comparisons with NaN are false, so a list of one NaN counts as sorted.
        if !bounds.is_sorted_by(|a, b| a < b) || bounds.iter().any(|bound| bound.is_nan()) {
            return Err("Bucket Boundaries must be strictly sorted".to_owned());
        }
        let buckets = bounds.into_iter().map(|bound| (bound, 0)).collect();
        let fresh = Metric { owners: 0, value: 0.0, buckets, count: 0 };
        self.metrics.entry(labels.clone()).or_insert(fresh).owners += 1;
        Ok(())
    }

    pub(super) fn change(&mut self, labels: &Labels, change: MetricChange) -> Result<f64, String> {
        let metric = self.metrics.get_mut(labels).ok_or("there is no such metric")?;
        match (self.kind, change) {
            (MetricKind::Counter | MetricKind::Gauge, MetricChange::Value) => {}
            (MetricKind::Counter, MetricChange::Increment(by)) if by < 0.0 => {
                return Err(
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
                        .to_owned(),
                );
            }
            (MetricKind::Counter | MetricKind::Gauge, MetricChange::Increment(by)) => metric.value += by,
            (MetricKind::Gauge, MetricChange::Set(to)) => metric.value = to,
            (MetricKind::Histogram, MetricChange::Observe(seen)) => metric.observe(seen),
            (kind, change) => return Err(format!("{} does not support {}", triton_kind(kind), change.word())),
        }
        Ok(if self.kind == MetricKind::Histogram { 0.0 } else { metric.value })
    }

    /// Removes an owner that had these metrics. Returns whether no owner is left.
    pub(super) fn remove_owner<'l>(&mut self, labels: impl Iterator<Item = &'l Labels>) -> bool {
        for labels in labels {
            let Some(metric) = self.metrics.get_mut(labels) else { continue };
            metric.owners -= 1;
            if metric.owners == 0 {
                self.metrics.remove(labels);
            }
        }
        self.owners -= 1;
        self.owners == 0
    }

    pub(super) fn report(&self, name: &str) -> CustomFamily {
        let each = self.metrics.iter().map(|(labels, metric)| {
            let labels = labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            (labels, metric.report(self.kind))
        });
        let (name, description) = (name.to_owned(), self.description.clone());
        CustomFamily { name, description, kind: self.kind, metrics: each.collect() }
    }
}

impl Metric {
    fn observe(&mut self, seen: f64) {
        self.count += 1;
        self.value += seen;
        if let Some((_, count)) = self.buckets.iter_mut().find(|(bound, _)| seen <= *bound) {
            *count += 1;
        }
    }

    fn report(&self, kind: MetricKind) -> CustomValue {
        if kind != MetricKind::Histogram {
            return CustomValue::Number(self.value);
        }
        let within = self.buckets.iter().scan(0, |sum, (bound, count)| {
            *sum += count;
            Some((*bound, *sum))
        });
        CustomValue::Histogram(within.collect(), self.count, self.value)
    }
}

impl MetricChange {
    fn word(self) -> &'static str {
        match self {
            MetricChange::Value => "Value",
            MetricChange::Increment(_) => "Increment",
            MetricChange::Set(_) => "Set",
            MetricChange::Observe(_) => "Observe",
        }
    }
}

/// The kind as Triton's errors name it.
fn triton_kind(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Counter => "TRITONSERVER_METRIC_KIND_COUNTER",
        MetricKind::Gauge => "TRITONSERVER_METRIC_KIND_GAUGE",
        MetricKind::Histogram => "TRITONSERVER_METRIC_KIND_HISTOGRAM",
    }
}

/// Whether Prometheus accepts this name of a family.
pub(super) fn is_metric_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_' || one == ':')
}

/// Refuses a label whose name Prometheus does not accept.
pub(super) fn check_label(name: &str, kind: MetricKind) -> Result<(), String> {
    let is_taken = name.starts_with("__") || name == "le" && kind == MetricKind::Histogram;
    if is_taken || !is_metric_name(name) || name.contains(':') {
        return Err("Invalid label name".to_owned());
    }
    Ok(())
}
