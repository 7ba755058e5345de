//! Which metrics do backends make?
//!
//! Families and metrics are in the server's registry, together with those of Python models: equal names and labels are one metric. Each object here
//! has its own [`MetricMaker`], so a metric exists as long as any object for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::{CustomMetrics, MetricChange, MetricMaker, MetricSource};
use nerite_locks::Mutex;
use nerite_request::Status;
use nerite_request::report::MetricKind;

use super::object;
use crate::fault::Fault;
use crate::limits::METRICS_MAX;

/// Makes metrics in the server's registry, here or through a channel. It is global, because these functions have no
/// argument for the server.
static REGISTRY: Mutex<Option<Arc<dyn MetricSource>>> = Mutex::new(None);

/// `TRITONSERVER_MetricFamily`.
pub struct FamilyObject {
    name: String,
    help: String,
    kind: MetricKind,
    _maker: Box<dyn MetricMaker>,
    /// Shared with the metrics that were made with it.
    used: Arc<()>,
}

object!(FamilyObject, 16, "metric family");

/// The number of metric objects.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Counts one metric object, until it is dropped.
struct MetricPermit;

/// `TRITONSERVER_Metric`.
pub struct MetricObject {
    kind: MetricKind,
    _permit: MetricPermit,
    maker: Box<dyn MetricMaker>,
    number: u64,
    _used: Arc<()>,
}

object!(MetricObject, 17, "metric");

/// `TRITONSERVER_MetricArgs`.
#[derive(Default)]
pub struct MetricArgs(Mutex<Vec<f64>>);

object!(MetricArgs, 18, "metric arguments object");

/// The kind of this number of the interface.
pub fn kind_of(number: u32) -> Result<MetricKind, Fault> {
    match number {
        0 => Ok(MetricKind::Counter),
        1 => Ok(MetricKind::Gauge),
        2 => Ok(MetricKind::Histogram),
        other => Err(Fault::misuse(format!("there is no kind of metrics {other}"))),
    }
}

/// The number of the interface for a kind.
pub fn number_of(kind: MetricKind) -> u32 {
    match kind {
        MetricKind::Counter => 0,
        MetricKind::Gauge => 1,
        MetricKind::Histogram => 2,
    }
}

/// Sets the registry for the metrics of backends.
pub fn count_in(metrics: &Arc<CustomMetrics>) {
    make_metrics_by(Arc::new(Arc::clone(metrics)));
}

/// Sets how the metrics of backends are made from now on.
pub fn make_metrics_by(source: Arc<dyn MetricSource>) {
    *lock(&REGISTRY) = Some(source);
}

fn maker() -> Box<dyn MetricMaker> {
    let source = Arc::clone(lock(&REGISTRY).get_or_insert_with(|| Arc::new(Arc::<CustomMetrics>::default())));
    source.maker()
}

impl MetricArgs {
    /// Sets the bounds of the buckets of a histogram.
    pub fn set(&self, bounds: Vec<f64>) {
        *lock(&self.0) = bounds;
    }

    /// The bounds of the buckets.
    pub fn bounds(&self) -> Vec<f64> {
        lock(&self.0).clone()
    }
}

impl FamilyObject {
    /// An object for the family of this name.
    pub fn new(kind: MetricKind, name: String, help: String) -> Result<FamilyObject, Fault> {
        let mut maker = maker();
        maker.family(&name, &help, kind).map_err(Status::invalid)?;
        Ok(FamilyObject { name, help, kind, _maker: maker, used: Arc::default() })
    }

    /// Its kind.
    pub fn kind(&self) -> MetricKind {
        self.kind
    }

    /// Whether a metric of it still exists.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.used) > 1
    }

    /// An object for the metric with these labels. Only histograms have `bounds`.
    pub fn metric(&self, labels: BTreeMap<String, String>, bounds: Option<Vec<f64>>) -> Result<MetricObject, Fault> {
        let permit = MetricPermit::take()?;
        let mut maker = maker();
        let family = maker.family(&self.name, &self.help, self.kind).map_err(Status::invalid)?;
        let number = maker.metric(family, labels, bounds).map_err(Status::invalid)?;
        Ok(MetricObject { kind: self.kind, _permit: permit, maker, number, _used: Arc::clone(&self.used) })
    }
}

impl MetricPermit {
    fn take() -> Result<MetricPermit, Fault> {
        let present = LIVE.fetch_add(1, Ordering::Relaxed);
        let permit = MetricPermit;
        if present < METRICS_MAX {
            return Ok(permit);
        }
        let text = format!("compiled backends have {METRICS_MAX} metrics, the most there may be: delete some first");
        Err(Status::unavailable(text).into())
    }
}

impl Drop for MetricPermit {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MetricObject {
    /// Its kind.
    pub fn kind(&self) -> MetricKind {
        self.kind
    }

    /// Its value.
    pub fn value(&self) -> Result<f64, Fault> {
        match self.kind {
            MetricKind::Histogram => {
                Err(Status::unsupported("TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value").into())
            }
            MetricKind::Counter | MetricKind::Gauge => self.change(MetricChange::Value),
        }
    }

    /// Changes the metric. Returns its new value.
    pub fn change(&self, change: MetricChange) -> Result<f64, Fault> {
        self.maker.change(self.number, change).map_err(|why| {
            let is_negative = self.kind == MetricKind::Counter && matches!(change, MetricChange::Increment(_));
            if is_negative { Status::invalid(why).into() } else { Status::unsupported(why).into() }
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nerite_request::report::CustomValue;

    use super::*;

    fn family(kind: MetricKind, name: &str) -> FamilyObject {
        registry();
        FamilyObject::new(kind, name.to_owned(), String::new()).unwrap()
    }

    /// The registry of all tests of this file.
    fn registry() -> Arc<CustomMetrics> {
        static OF_TESTS: std::sync::OnceLock<Arc<CustomMetrics>> = std::sync::OnceLock::new();
        Arc::clone(OF_TESTS.get_or_init(|| {
            let made = Arc::default();
            count_in(&made);
            made
        }))
    }

    fn shown(name: &str) -> Option<Vec<CustomValue>> {
        let registry = registry();
        let found = registry.report().into_iter().find(|family| family.name == name)?;
        Some(found.metrics.into_iter().map(|(_, value)| value).collect())
    }

    #[test]
    fn a_metric_exists_as_long_as_any_object_for_it() {
        let first = family(MetricKind::Counter, "lasting");
        let pair = [0; 2].map(|_| first.metric(BTreeMap::new(), None).unwrap());
        assert!(first.is_used());
        pair[0].change(MetricChange::Increment(1.5)).unwrap();
        assert!((pair[1].value().unwrap() - 1.5).abs() < 1e-9);
        let [one, other] = pair;
        drop(one);
        assert_eq!(shown("lasting"), Some(vec![CustomValue::Number(1.5)]));
        drop(other);
        assert!(!first.is_used());
        assert_eq!(shown("lasting"), Some(vec![]));
        drop(first);
        assert_eq!(shown("lasting"), None);
    }

    #[test]
    fn changes_that_a_kind_lacks_are_refused() {
        let counter = family(MetricKind::Counter, "refusing");
        let metric = counter.metric(BTreeMap::new(), None).unwrap();
        for change in [MetricChange::Increment(-1.0), MetricChange::Set(1.0), MetricChange::Observe(1.0)] {
            assert!(metric.change(change).is_err(), "{change:?}");
        }
        assert!(FamilyObject::new(MetricKind::Gauge, "refusing".to_owned(), String::new()).is_err());
        let histogram = family(MetricKind::Histogram, "observing").metric(BTreeMap::new(), Some(vec![1.0])).unwrap();
        histogram.change(MetricChange::Observe(0.5)).unwrap();
        assert!(histogram.value().is_err() && histogram.change(MetricChange::Set(1.0)).is_err());
        for name in ["", "1a", "a b", "nv_inference_count", "nerite_x"] {
            assert!(FamilyObject::new(MetricKind::Counter, name.to_owned(), String::new()).is_err(), "{name}");
        }
    }
}
