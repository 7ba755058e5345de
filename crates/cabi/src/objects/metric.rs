//! What do backends count, and how is it shown?

use std::fmt::Write;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use nerite_locks::Mutex;
use nerite_request::Status;

use super::object;
use crate::fault::Fault;
use crate::limits::METRICS_MAX;

/// What kind of numbers a family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Number 0 of the interface: it only grows.
    Counter,
    /// Number 1: it is set.
    Gauge,
    /// Number 2: it counts what was observed.
    Histogram,
}

/// `TRITONSERVER_MetricFamily`: one model's share of a family.
pub struct FamilyObject {
    /// The family, which others may share.
    pub family: Arc<Family>,
    used: Arc<()>,
}

object!(FamilyObject, 16, "metric family");

/// `TRITONSERVER_Metric`: one model's share of a metric.
pub struct MetricObject {
    /// The metric, which others may share.
    pub metric: Arc<Metric>,
    /// Its family's share is in use as long as this is there.
    _uses: Arc<()>,
}

object!(MetricObject, 17, "metric");

/// Numbers under one name.
pub struct Family {
    name: String,
    help: String,
    kind: Kind,
    metrics: Mutex<Vec<Weak<Metric>>>,
}

/// The numbers of one set of labels.
pub struct Metric {
    family: Arc<Family>,
    /// As the page shows them, without braces.
    labels: String,
    numbers: Mutex<Numbers>,
}

/// `TRITONSERVER_MetricArgs`.
#[derive(Default)]
pub struct MetricArgs(Mutex<Vec<f64>>);

object!(MetricArgs, 18, "metric arguments object");

#[derive(Default)]
struct Numbers {
    value: f64,
    count: u64,
    /// Upper bounds, and how many of the observed were within each but not within the one before.
    buckets: Vec<(f64, u64)>,
}

/// All families, as long as a backend holds them.
static FAMILIES: Mutex<Vec<Weak<Family>>> = Mutex::new(Vec::new());

impl Kind {
    /// The kind of this number.
    pub fn of(number: u32) -> Result<Kind, Fault> {
        match number {
            0 => Ok(Kind::Counter),
            1 => Ok(Kind::Gauge),
            2 => Ok(Kind::Histogram),
            other => Err(Fault::misuse(format!("there is no kind of metrics {other}"))),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

impl MetricArgs {
    /// Bounds of the buckets of a histogram.
    pub fn set(&self, bounds: Vec<f64>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = bounds;
    }

    /// They.
    pub fn bounds(&self) -> Vec<f64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl FamilyObject {
    /// A share of the family.
    pub fn new(family: Arc<Family>) -> FamilyObject {
        FamilyObject { family, used: Arc::default() }
    }

    /// Whether a metric that was made with it is held.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.used) > 1
    }

    /// A share of the metric with these labels.
    pub fn metric(&self, labels: &[(String, String)], bounds: &[f64]) -> Result<MetricObject, Fault> {
        Ok(MetricObject { metric: self.family.metric(labels, bounds)?, _uses: Arc::clone(&self.used) })
    }
}

impl Family {
    /// The family of that name; one that is there already is shared.
    pub fn named(kind: Kind, name: String, help: String) -> Result<Arc<Family>, Fault> {
        let is_letter = |next: char| next.is_ascii_alphanumeric() || matches!(next, '_' | ':');
        if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) || !name.chars().all(is_letter) {
            return Err(Status::invalid(format!("'{name}' is no name of a metric family")).into());
        }
        if name.starts_with("nerite_") || name.starts_with("nv_") {
            return Err(Status::invalid(format!("'{name}' begins as the server's own metric families do")).into());
        }
        let mut families = lock(&FAMILIES);
        families.retain(|family| family.strong_count() > 0);
        if let Some(present) = families.iter().filter_map(Weak::upgrade).find(|family| family.name == name) {
            if present.kind == kind {
                return Ok(present);
            }
            return Err(Status::invalid(format!("metric family '{name}' is a {} already", present.kind.word())).into());
        }
        check_room(families.len(), "metric families")?;
        let family = Arc::new(Family { name, help, kind, metrics: Mutex::default() });
        families.push(Arc::downgrade(&family));
        Ok(family)
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The metric with these labels; one that is there already is shared.
    pub fn metric(self: &Arc<Self>, labels: &[(String, String)], bounds: &[f64]) -> Result<Arc<Metric>, Fault> {
        if self.kind == Kind::Histogram && !bounds.is_sorted_by(|a, b| a < b) {
            return Err(Status::invalid(format!("the bounds of histogram '{}' do not ascend", self.name)).into());
        }
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let pairs: Vec<_> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let labels = pairs.join(",");
        let mut metrics = lock(&self.metrics);
        metrics.retain(|metric| metric.strong_count() > 0);
        if let Some(present) = metrics.iter().filter_map(Weak::upgrade).find(|metric| metric.labels == labels) {
            return Ok(present);
        }
        check_room(metrics.len(), "metrics of one family")?;
        let buckets = bounds.iter().map(|bound| (*bound, 0)).collect();
        let numbers = Mutex::new(Numbers { buckets, ..Numbers::default() });
        let metric = Arc::new(Metric { family: Arc::clone(self), labels, numbers });
        metrics.push(Arc::downgrade(&metric));
        Ok(metric)
    }

    fn write(&self, page: &mut String) {
        let metrics: Vec<_> = lock(&self.metrics).iter().filter_map(Weak::upgrade).collect();
        if metrics.is_empty() {
            return;
        }
        let (name, help) = (&self.name, self.help.replace('\\', "\\\\").replace('\n', "\\n"));
        // Writing to a String cannot fail.
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {}", self.kind.word());
        for metric in metrics {
            metric.write(page);
        }
    }
}

impl Metric {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.family.kind
    }

    /// Its value.
    pub fn value(&self) -> Result<f64, Fault> {
        match self.kind() {
            Kind::Histogram => Err(self.lacks("Value")),
            Kind::Counter | Kind::Gauge => Ok(lock(&self.numbers).value),
        }
    }

    /// Adds to it.
    pub fn increment(&self, by: f64) -> Result<(), Fault> {
        match self.kind() {
            Kind::Histogram => return Err(self.lacks("Increment")),
            Kind::Counter if by < 0.0 => {
                let text =
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.";
                return Err(Status::invalid(text).into());
            }
            Kind::Counter | Kind::Gauge => lock(&self.numbers).value += by,
        }
        Ok(())
    }

    /// Sets it.
    pub fn set(&self, value: f64) -> Result<(), Fault> {
        if self.kind() != Kind::Gauge {
            return Err(self.lacks("Set"));
        }
        lock(&self.numbers).value = value;
        Ok(())
    }

    /// Counts what was observed.
    pub fn observe(&self, value: f64) -> Result<(), Fault> {
        if self.kind() != Kind::Histogram {
            return Err(self.lacks("Observe"));
        }
        let mut numbers = lock(&self.numbers);
        numbers.count += 1;
        numbers.value += value;
        if let Some((_, count)) = numbers.buckets.iter_mut().find(|(bound, _)| value <= *bound) {
            *count += 1;
        }
        Ok(())
    }

    fn lacks(&self, call: &str) -> Fault {
        let kind = self.kind().word().to_uppercase();
        Status::unsupported(format!("TRITONSERVER_METRIC_KIND_{kind} does not support {call}")).into()
    }

    fn write(&self, page: &mut String) {
        let (name, numbers) = (&self.family.name, lock(&self.numbers));
        let braced = |more: String| match (self.labels.as_str(), more.as_str()) {
            ("", "") => String::new(),
            ("", alone) | (alone, "") => format!("{{{alone}}}"),
            (labels, more) => format!("{{{labels},{more}}}"),
        };
        let plain = braced(String::new());
        // Writing to a String cannot fail.
        if self.kind() != Kind::Histogram {
            let _ = writeln!(page, "{name}{plain} {}", numbers.value);
            return;
        }
        let mut within = 0;
        for (bound, count) in &numbers.buckets {
            within += count;
            let _ = writeln!(page, "{name}_bucket{} {within}", braced(format!("le=\"{bound}\"")));
        }
        let _ = writeln!(page, "{name}_bucket{} {}", braced("le=\"+Inf\"".to_owned()), numbers.count);
        let _ = writeln!(page, "{name}_sum{plain} {}\n{name}_count{plain} {}", numbers.value, numbers.count);
    }
}

/// All that backends count, as Prometheus text.
pub fn page() -> String {
    let families: Vec<_> = lock(&FAMILIES).iter().filter_map(Weak::upgrade).collect();
    families.iter().fold(String::new(), |mut page, family| {
        family.write(&mut page);
        page
    })
}

fn check_room(present: usize, what: &str) -> Result<(), Fault> {
    if present < METRICS_MAX {
        return Ok(());
    }
    Err(Status::unavailable(format!("there are {present} {what} of compiled backends, which is the most")).into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[track_caller]
    fn check(kind: Kind, name: &str, act: impl FnOnce(&Metric), expected: &str) {
        let family = Family::named(kind, name.to_owned(), "what it is".to_owned()).unwrap();
        let label = [("model".to_owned(), "a\"b".to_owned())];
        let metric = family.metric(&label, &[1.0, 2.5]).unwrap();
        act(&metric);
        let mut page = String::new();
        family.write(&mut page);
        assert_eq!(page, format!("# HELP {name} what it is\n# TYPE {name} {}\n{expected}", kind.word()));
        assert!(super::page().contains(expected));
    }

    #[test]
    fn each_kind_is_shown_as_prometheus_wants_it() {
        check(Kind::Counter, "c", |c| c.increment(1.5).unwrap(), "c{model=\"a\\\"b\"} 1.5\n");
        check(Kind::Gauge, "g", |g| g.set(-2.0).unwrap(), "g{model=\"a\\\"b\"} -2\n");
        let buckets = "h_bucket{model=\"a\\\"b\",le=\"1\"} 1\nh_bucket{model=\"a\\\"b\",le=\"2.5\"} 2\nh_bucket{model=\"a\\\"b\",le=\"+Inf\"} 3\n";
        let sums = "h_sum{model=\"a\\\"b\"} 12\nh_count{model=\"a\\\"b\"} 3\n";
        let observe = |h: &Metric| [1.0, 2.0, 9.0].into_iter().for_each(|value| h.observe(value).unwrap());
        check(Kind::Histogram, "h", observe, &format!("{buckets}{sums}"));
    }

    #[test]
    fn what_a_kind_lacks_is_refused() {
        let counter = Family::named(Kind::Counter, "refusing".to_owned(), String::new()).unwrap();
        let metric = counter.metric(&[], &[]).unwrap();
        assert!(metric.increment(-1.0).is_err() && metric.set(1.0).is_err() && metric.observe(1.0).is_err());
        assert!(Family::named(Kind::Gauge, "refusing".to_owned(), String::new()).is_err());
        assert!(Arc::ptr_eq(&metric, &counter.metric(&[], &[]).unwrap()));
        let shares = [0; 2].map(|_| FamilyObject::new(Arc::clone(&counter)));
        let held = shares[0].metric(&[], &[]).unwrap();
        assert_eq!(shares.each_ref().map(FamilyObject::is_used), [true, false]);
        drop(held);
        assert!(!shares[0].is_used());
        for name in ["", "1a", "a b", "nv_inference_count", "nerite_x"] {
            assert!(Family::named(Kind::Counter, name.to_owned(), String::new()).is_err(), "{name}");
        }
    }
}
