//! How does a backend count?

use std::sync::Arc;

use nerite_request::Status;

use super::exports;
use crate::abi::{List, Out, Text};
use crate::fault::Fault;
use crate::objects::{Family, FamilyObject, MetricArgs, MetricKind, MetricObject, ParameterObject};
use crate::table::Handle;

type Labels = List<Handle<ParameterObject>>;

fn new_metric(
    place: &Out<Handle<MetricObject>>,
    family: Handle<FamilyObject>,
    labels: Labels,
    count: u64,
    bounds: &[f64],
) -> Result<(), Fault> {
    let mut pairs = Vec::new();
    for label in labels.read(count)? {
        let label = label.get()?;
        let Some(value) = label.text() else {
            return Err(Status::invalid("Parameter must have a string value to be a label of a metric").into());
        };
        pairs.push((label.name().to_owned(), value));
    }
    place.put(Handle::to(Arc::new(family.get()?.metric(&pairs, bounds)?))?)
}

exports! {
    "TRITONSERVER_MetricFamilyNew" = family_new(family: Out<Handle<FamilyObject>>, kind: u32, name: Text, description: Text) {
        let help = description.read_if_given().unwrap_or_default();
        let shared = Family::named(MetricKind::of(kind)?, name.read()?, help)?;
        family.put(Handle::to(Arc::new(FamilyObject::new(shared)))?)?;
    }

    "TRITONSERVER_MetricFamilyDelete" = family_delete(family: Handle<FamilyObject>) {
        if family.get()?.is_used() {
            Err(Status::internal("Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete."))?;
        }
        family.take()?;
    }

    "TRITONSERVER_GetMetricFamilyKind" = family_kind(family: Handle<FamilyObject>, kind: Out<u32>) {
        kind.put(family.get()?.family.kind() as u32)?;
    }

    "TRITONSERVER_MetricArgsNew" = args_new(args: Out<Handle<MetricArgs>>) {
        args.put(Handle::to(Arc::new(MetricArgs::default()))?)?;
    }

    "TRITONSERVER_MetricArgsSetHistogram" = args_set_histogram(args: Handle<MetricArgs>, bounds: List<f64>, count: u64) {
        args.get()?.set(bounds.read(count)?);
    }

    "TRITONSERVER_MetricArgsDelete" = args_delete(args: Handle<MetricArgs>) {
        args.take()?;
    }

    "TRITONSERVER_MetricNew" = metric_new(metric: Out<Handle<MetricObject>>, family: Handle<FamilyObject>, labels: Labels, count: u64) {
        new_metric(&metric, family, labels, count, &[])?;
    }

    "TRITONSERVER_MetricNewWithArgs" = metric_new_with_args(
        metric: Out<Handle<MetricObject>>,
        family: Handle<FamilyObject>,
        labels: Labels,
        count: u64,
        args: Handle<MetricArgs>,
    ) {
        let bounds = if args.is_null() { Vec::new() } else { args.get()?.bounds() };
        new_metric(&metric, family, labels, count, &bounds)?;
    }

    "TRITONSERVER_MetricDelete" = metric_delete(metric: Handle<MetricObject>) {
        metric.take()?;
    }

    "TRITONSERVER_MetricValue" = metric_value(metric: Handle<MetricObject>, value: Out<f64>) {
        value.put(metric.get()?.metric.value()?)?;
    }

    "TRITONSERVER_MetricIncrement" = metric_increment(metric: Handle<MetricObject>, by: f64) {
        metric.get()?.metric.increment(by)?;
    }

    "TRITONSERVER_MetricSet" = metric_set(metric: Handle<MetricObject>, value: f64) {
        metric.get()?.metric.set(value)?;
    }

    "TRITONSERVER_MetricObserve" = metric_observe(metric: Handle<MetricObject>, value: f64) {
        metric.get()?.metric.observe(value)?;
    }

    "TRITONSERVER_GetMetricKind" = metric_kind(metric: Handle<MetricObject>, kind: Out<u32>) {
        kind.put(metric.get()?.metric.kind() as u32)?;
    }
}
