//! How does a backend make metrics?

use std::collections::BTreeMap;
use std::sync::Arc;

use nerite_backend::MetricChange;
use nerite_request::Status;
use nerite_request::report::MetricKind;

use super::exports;
use crate::abi::{List, Out, Text};
use crate::fault::Fault;
use crate::objects::{FamilyObject, MetricArgs, MetricObject, ParameterObject, metric_kind_number, metric_kind_of};
use crate::table::Handle;

type Labels = List<Handle<ParameterObject>>;

fn new_metric(
    place: &Out<Handle<MetricObject>>,
    family: Handle<FamilyObject>,
    labels: Labels,
    count: u64,
    bounds: Option<Vec<f64>>,
) -> Result<(), Fault> {
    let mut pairs = BTreeMap::new();
    for label in labels.read(count)? {
        let label = label.get()?;
        let Some(value) = label.text() else {
            return Err(Status::invalid("Parameter must have a string value to be a label of a metric").into());
        };
        pairs.insert(label.name().to_owned(), value);
    }
    place.put(Handle::to(Arc::new(family.get()?.metric(pairs, bounds)?))?)
}

exports! {
    "TRITONSERVER_MetricFamilyNew" = family_new(family: Out<Handle<FamilyObject>>, kind: u32, name: Text, description: Text) {
        let help = description.read_if_given().unwrap_or_default();
        let made = FamilyObject::new(metric_kind_of(kind)?, name.read()?, help)?;
        family.put(Handle::to(Arc::new(made))?)?;
    }

    "TRITONSERVER_MetricFamilyDelete" = family_delete(family: Handle<FamilyObject>) {
        if family.get()?.is_used() {
            Err(Status::internal("Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete."))?;
        }
        family.take()?;
    }

    "TRITONSERVER_GetMetricFamilyKind" = family_kind(family: Handle<FamilyObject>, kind: Out<u32>) {
        kind.put(metric_kind_number(family.get()?.kind()))?;
    }

    "TRITONSERVER_MetricArgsNew" = args_new(args: Out<Handle<MetricArgs>>) {
        args.put(Handle::to(Arc::new(MetricArgs::default()))?)?;
    }

    "TRITONSERVER_MetricArgsSetHistogram" = args_set_histogram(args: Handle<MetricArgs>, bounds: List<f64>, count: u64) {
        args.get()?.set(bounds.read(count)?);
    }

    "TRITONSERVER_MetricArgsDelete" = args_delete(args: Handle<MetricArgs>) {
        args.delete()?;
    }

    "TRITONSERVER_MetricNew" = metric_new(metric: Out<Handle<MetricObject>>, family: Handle<FamilyObject>, labels: Labels, count: u64) {
        new_metric(&metric, family, labels, count, None)?;
    }

    "TRITONSERVER_MetricNewWithArgs" = metric_new_with_args(
        metric: Out<Handle<MetricObject>>,
        family: Handle<FamilyObject>,
        labels: Labels,
        count: u64,
        args: Handle<MetricArgs>,
    ) {
        let bounds = if args.is_null() { None } else { Some(args.get()?.bounds()) };
        // Empty arguments mean none, except for a histogram.
        let is_histogram = family.get()?.kind() == MetricKind::Histogram;
        let bounds = bounds.filter(|bounds| is_histogram || !bounds.is_empty());
        new_metric(&metric, family, labels, count, bounds)?;
    }

    "TRITONSERVER_MetricDelete" = metric_delete(metric: Handle<MetricObject>) {
        metric.take()?;
    }

    "TRITONSERVER_MetricValue" = metric_value(metric: Handle<MetricObject>, value: Out<f64>) {
        value.put(metric.get()?.value()?)?;
    }

    "TRITONSERVER_MetricIncrement" = metric_increment(metric: Handle<MetricObject>, by: f64) {
        metric.get()?.change(MetricChange::Increment(by))?;
    }

    "TRITONSERVER_MetricSet" = metric_set(metric: Handle<MetricObject>, value: f64) {
        metric.get()?.change(MetricChange::Set(value))?;
    }

    "TRITONSERVER_MetricObserve" = metric_observe(metric: Handle<MetricObject>, value: f64) {
        metric.get()?.change(MetricChange::Observe(value))?;
    }

    "TRITONSERVER_GetMetricKind" = metric_kind(metric: Handle<MetricObject>, kind: Out<u32>) {
        kind.put(metric_kind_number(metric.get()?.kind()))?;
    }
}
