//! What does an instance answer to one request?

use std::sync::{Arc, Mutex, PoisonError};

use nerite_request::{AdmittedRequest, Cancel, ExactlyOne, InferResponse, Parameters, Reply, Sequence, Status, Wanted};
use nerite_tensor::{Name, Tensor};

use crate::{Batch, Job, ModelVersion, NoMeter};

/// Makes a request of one row with these inputs and outputs, has `run` give it to an instance, and returns the answer.
///
/// # Panics
/// If there is no answer by the time `run` returns, or more than one.
pub fn ask(inputs: Vec<Tensor>, wanted: Vec<Wanted>, run: impl FnOnce(Batch)) -> Result<InferResponse, Status> {
    let seen = Arc::new(Mutex::new(None));
    let into = Arc::clone(&seen);
    let mut one = ExactlyOne::default();
    let sink = move |response| *into.lock().unwrap_or_else(PoisonError::into_inner) = one.take(response);
    let request = AdmittedRequest {
        id: Name::default(),
        rows: 1,
        inputs: inputs.into(),
        wanted: wanted.into(),
        priority: 0,
        timeout_us: 0,
        sequence: Sequence::default(),
        parameters: Parameters::new(),
        cancel: Cancel::new(),
        reply: Reply::new(sink),
    };
    let job = Job::new(request, ModelVersion::unmetered("m").begin(), 1);
    run(Batch { jobs: vec![job].into(), meter: Arc::new(NoMeter) });
    let answer = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
    let only = answer.expect("an instance answers before it returns");
    only.unwrap_or_else(|not_one| panic!("one response, not {}", not_one.count))
}
