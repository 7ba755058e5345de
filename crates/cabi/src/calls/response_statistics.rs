//! How does a backend report its responses one by one?

use std::sync::Arc;

use super::exports;
use crate::abi::Out;
use crate::objects::{ErrorObject, Factory, InstanceObject, ResponseStatistics};
use crate::table::Handle;

type Statistics = Handle<ResponseStatistics>;

exports! {
    "TRITONBACKEND_ModelInstanceResponseStatisticsNew" = response_statistics_new(statistics: Out<Statistics>) {
        statistics.put(Handle::to(Arc::<ResponseStatistics>::default())?)?;
    }

    "TRITONBACKEND_ModelInstanceResponseStatisticsDelete" = response_statistics_delete(statistics: Statistics) {
        statistics.delete()?;
    }

    "TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance" = set_model_instance(statistics: Statistics, instance: Handle<InstanceObject>) {
        statistics.get()?.values().instance = instance;
    }

    "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory" = set_response_factory(statistics: Statistics, factory: Handle<Factory>) {
        statistics.get()?.values().factory = factory;
    }

    "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart" = set_response_start(statistics: Statistics, ns: u64) {
        statistics.get()?.values().start = ns;
    }

    "TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart" = set_compute_output_start(statistics: Statistics, ns: u64) {
        statistics.get()?.values().output_start = ns;
    }

    "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd" = set_response_end(statistics: Statistics, ns: u64) {
        statistics.get()?.values().end = ns;
    }

    "TRITONBACKEND_ModelInstanceResponseStatisticsSetError" = set_error(statistics: Statistics, error: Handle<ErrorObject>) {
        statistics.get()?.values().error = error;
    }

    "TRITONBACKEND_ModelInstanceReportResponseStatistics" = report_response_statistics(statistics: Statistics) {
        // Handles of deleted objects are detected here, not when they are set.
        let values = *statistics.get()?.values();
        let (instance, factory) = (values.instance.get()?, values.factory.get()?);
        let error = if values.error.is_null() { None } else { Some(values.error.get()?.code) };
        // As in Triton, a report with invalid times takes its position too.
        let index = factory.path.next_reported();
        let durations = values.times().durations(values.outcome(error))?;
        if let Some(meter) = instance.meter() {
            meter.response(index, &durations);
        }
    }
}
