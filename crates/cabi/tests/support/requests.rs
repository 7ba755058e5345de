//! How do the tests, the benchmark and the example of this crate make instances and requests?

use std::sync::Arc;

use nerite_backend::{Batch, Instance, InstanceSpec, Job, Meter, Model, ModelVersion, now_ns};
use nerite_request::{AdmittedRequest, Reply, Status, Wanted};
use nerite_tensor::Tensor;

/// One instance of a model.
pub fn instance(model: &dyn Model, index: usize, device: Option<u32>) -> Result<Box<dyn Instance>, Status> {
    model.instance(&InstanceSpec { name: format!("m_{index}"), index, device, ..InstanceSpec::default() })
}

/// A request of one row with these inputs and for these outputs.
pub fn request<'n>(
    inputs: impl IntoIterator<Item = Tensor>,
    outputs: impl IntoIterator<Item = &'n str>,
    reply: Reply,
) -> AdmittedRequest {
    AdmittedRequest {
        inputs: inputs.into_iter().collect(),
        wanted: outputs.into_iter().map(|name| Wanted { name: name.into(), slot: None }).collect(),
        ..AdmittedRequest::new(reply)
    }
}

/// A batch of one request to this model version.
pub fn batch(request: AdmittedRequest, version: &Arc<ModelVersion>, meter: &Arc<dyn Meter>) -> Batch {
    Batch { jobs: vec![Job::new(request, version.begin(), now_ns())].into(), meter: Arc::clone(meter) }
}
