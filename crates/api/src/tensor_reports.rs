//! How are a model's tensors described to a client?

use nerite_config::TensorSpec;
use nerite_engine::Served;
use nerite_request::report::TensorReport;
use nerite_tensor::DataType;

/// A version's inputs as a client must send them.
pub(crate) fn input_reports(served: &Served) -> Vec<TensorReport> {
    all(served.inputs(), served)
}

/// A version's outputs as a client gets them.
pub(crate) fn output_reports(served: &Served) -> Vec<TensorReport> {
    all(served.outputs(), served)
}

fn all(specs: &[TensorSpec], served: &Served) -> Vec<TensorReport> {
    let batching = served.config().batches();
    let report = |spec: &TensorSpec| TensorReport {
        name: spec.name.as_str().to_owned(),
        datatype: spec.data_type.unwrap_or(DataType::Bytes),
        shape: spec.shape(batching),
    };
    specs.iter().map(report).collect()
}
