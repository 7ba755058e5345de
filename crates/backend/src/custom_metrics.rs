//! Which custom metrics have models made?
//!
//! The server has one registry. As in Triton, families of the same name are one family, and metrics of a family with the same labels are one metric,
//! even if several models make them. A family or a metric exists until the last of its owners has dropped it. Each process of a model has a
//! [`MetricOwner`]. When the owner is dropped, it gives up all its families and metrics.

mod family;

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::report::{CustomFamily, MetricKind};

use self::family::{Family, Labels, check_label, is_metric_name};
use crate::limits::{
    METRIC_BUCKETS_MAX, METRIC_FAMILIES_MAX, METRIC_LABEL_BYTES_MAX, METRIC_NAME_BYTES_MAX, METRIC_TEXT_BYTES_MAX,
    METRICS_MAX,
};

/// The beginnings of the names of the server's own families.
const OWN: [&str; 3] = ["nv_", "nerite_", "process_start_time_seconds"];

/// The metrics that all models made.
#[derive(Debug, Default)]
pub struct CustomMetrics(Mutex<BTreeMap<String, Family>>);

/// The metrics that one process of a model made. Dropping this value gives them up.
#[derive(Debug)]
pub struct MetricOwner {
    registry: Arc<CustomMetrics>,
    last: u64,
    /// The families that this owner has, by number: the name of each, and this owner's metrics in it.
    families: BTreeMap<u64, Own>,
    metrics: BTreeMap<u64, (u64, Labels)>,
}

#[derive(Debug)]
struct Own {
    name: String,
    metrics: BTreeMap<Labels, u64>,
}

/// A change of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricChange {
    /// Only read the value.
    Value,
    /// Add this number.
    Increment(f64),
    /// Set the value to this number.
    Set(f64),
    /// Observe this value, for a histogram.
    Observe(f64),
}

/// Makes metrics in this process, or in the server that this process works for.
pub trait MetricMaker: Send + Sync {
    /// As [`MetricOwner::family`].
    fn family(&mut self, name: &str, description: &str, kind: MetricKind) -> Result<u64, String>;

    /// As [`MetricOwner::metric`].
    fn metric(
        &mut self,
        family: u64,
        labels: BTreeMap<String, String>,
        buckets: Option<Vec<f64>>,
    ) -> Result<u64, String>;

    /// As [`MetricOwner::change`].
    fn change(&self, metric: u64, change: MetricChange) -> Result<f64, String>;
}

/// Makes [`MetricMaker`]s. A maker that is dropped gives up all metrics that it made.
pub trait MetricSource: Send + Sync {
    /// Returns a new maker.
    fn maker(&self) -> Box<dyn MetricMaker>;
}

impl MetricSource for Arc<CustomMetrics> {
    fn maker(&self) -> Box<dyn MetricMaker> {
        Box::new(self.owner())
    }
}

impl CustomMetrics {
    /// The families that exist now, in the order of their names.
    pub fn report(&self) -> Vec<CustomFamily> {
        self.lock().iter().map(|(name, family)| family.report(name)).collect()
    }

    /// Whether there is no family.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// A new owner, which has made nothing yet.
    pub fn owner(self: &Arc<Self>) -> MetricOwner {
        let (families, metrics) = (BTreeMap::new(), BTreeMap::new());
        MetricOwner { registry: Arc::clone(self), last: 0, families, metrics }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Family>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricOwner {
    /// Makes a family, or joins the existing family of that name. Returns its number.
    pub fn family(&mut self, name: &str, description: &str, kind: MetricKind) -> Result<u64, String> {
        if !is_metric_name(name) {
            return Err("Invalid metric name".to_owned());
        }
        if OWN.iter().any(|own| name.starts_with(own)) {
            return Err(format!(
                "Family name already exists with different type: names that begin with 'nv_' or 'nerite_' are the server's own, got '{name}'"
            ));
        }
        check_bytes("the name of a metric family", name.len(), METRIC_NAME_BYTES_MAX)?;
        check_bytes("the description of a metric family", description.len(), METRIC_TEXT_BYTES_MAX)?;
        if self.families.len() >= METRIC_FAMILIES_MAX {
            return Err(format!("a model instance has at most {METRIC_FAMILIES_MAX} metric families at a time"));
        }
        let mut all = self.registry.lock();
        let family = all.entry(name.to_owned()).or_insert_with(|| Family::new(kind, description));
        if family.kind != kind {
            return Err("Family name already exists with different type".to_owned());
        }
        family.owners += 1;
        drop(all);
        self.last += 1;
        self.families.insert(self.last, Own { name: name.to_owned(), metrics: BTreeMap::new() });
        Ok(self.last)
    }

    /// Makes a metric in one of its families, or joins the existing metric with these labels. Returns its number.
    pub fn metric(&mut self, family: u64, labels: Labels, buckets: Option<Vec<f64>>) -> Result<u64, String> {
        let Some(own) = self.families.get_mut(&family) else { return Err("there is no such metric family".to_owned()) };
        if let Some(number) = own.metrics.get(&labels) {
            return Ok(*number);
        }
        if self.metrics.len() >= METRICS_MAX {
            return Err(format!("a model instance has at most {METRICS_MAX} metrics at a time"));
        }
        let bytes = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        check_bytes("the labels of a metric", bytes, METRIC_LABEL_BYTES_MAX)?;
        let count = buckets.as_ref().map_or(0, Vec::len);
        if count > METRIC_BUCKETS_MAX {
            return Err(format!("a histogram has at most {METRIC_BUCKETS_MAX} buckets, got {count}"));
        }
        let mut all = self.registry.lock();
        let family_now = all.get_mut(&own.name).ok_or("there is no such metric family")?;
        labels.keys().try_for_each(|name| check_label(name, family_now.kind))?;
        family_now.add(&labels, buckets)?;
        drop(all);
        self.last += 1;
        own.metrics.insert(labels.clone(), self.last);
        self.metrics.insert(self.last, (family, labels));
        Ok(self.last)
    }

    /// Applies `change` to one of its metrics. Returns the new value, or 0 for a histogram.
    pub fn change(&self, metric: u64, change: MetricChange) -> Result<f64, String> {
        let gone = || "there is no such metric".to_owned();
        let (family, labels) = self.metrics.get(&metric).ok_or_else(gone)?;
        let own = self.families.get(family).ok_or_else(gone)?;
        self.registry.lock().get_mut(&own.name).ok_or_else(gone)?.change(labels, change)
    }

    /// Removes this owner from a family, and from its metrics in the family.
    pub fn drop_family(&mut self, family: u64) {
        let Some(Own { name, metrics }) = self.families.remove(&family) else { return };
        for number in metrics.values() {
            self.metrics.remove(number);
        }
        let mut all = self.registry.lock();
        if all.get_mut(&name).is_some_and(|family| family.remove_owner(metrics.keys())) {
            all.remove(&name);
        }
    }
}

impl MetricMaker for MetricOwner {
    fn family(&mut self, name: &str, description: &str, kind: MetricKind) -> Result<u64, String> {
        MetricOwner::family(self, name, description, kind)
    }

    fn metric(&mut self, family: u64, labels: Labels, buckets: Option<Vec<f64>>) -> Result<u64, String> {
        MetricOwner::metric(self, family, labels, buckets)
    }

    fn change(&self, metric: u64, change: MetricChange) -> Result<f64, String> {
        MetricOwner::change(self, metric, change)
    }
}

impl Drop for MetricOwner {
    fn drop(&mut self) {
        let numbers: Vec<u64> = self.families.keys().copied().collect();
        for number in numbers {
            self.drop_family(number);
        }
    }
}

fn check_bytes(what: &str, bytes: usize, most: usize) -> Result<(), String> {
    if bytes <= most { Ok(()) } else { Err(format!("{what} has at most {most} bytes, got {bytes}")) }
}

#[cfg(test)]
mod tests;
