//! What does an instance answer to one request?

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nerite_request::{AdmittedRequest, Cancel, ExactlyOne, InferResponse, Recycled, Reply, Response, Status, Wanted};
use nerite_tensor::Tensor;

use crate::{Batch, Instance, Job, ModelVersion, NoMeter};

/// Makes a request of one row with these inputs and outputs. `run` gives it to an instance. Returns the answer.
///
/// # Panics
/// If there is no answer by the time `run` returns, or more than one.
pub fn infer(
    inputs: Vec<Tensor>,
    wanted: Vec<Wanted>,
    run: impl FnOnce(Batch),
) -> Result<Recycled<InferResponse>, Status> {
    let seen = Arc::new(Mutex::new(None));
    let into = Arc::clone(&seen);
    let mut one = ExactlyOne::default();
    let sink = move |response| *into.lock().unwrap_or_else(PoisonError::into_inner) = one.take(response);
    run(batch_of_one(inputs, wanted, Cancel::new(), Reply::new(sink)));
    let answer = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
    let only = answer.expect("an instance answers before it returns");
    only.unwrap_or_else(|not_one| panic!("one response, not {}", not_one.count))
}

/// Runs a request of one row that can be cancelled. Returns the outputs of its first response if it is the last one, or its error. `None` for any
/// other response, or if there is none within ten seconds after the run.
pub fn infer_cancellable(
    instance: &mut dyn Instance,
    inputs: Vec<Tensor>,
    wanted: Vec<Wanted>,
    cancel: &Cancel,
) -> Option<Result<Recycled<InferResponse>, Status>> {
    let (sender, receiver) = channel();
    let reply = Reply::new(move |response| drop(sender.send(response)));
    instance.run(batch_of_one(inputs, wanted, cancel.clone(), reply));
    match receiver.recv_timeout(Duration::from_secs(10)).ok()? {
        Response::Final(answer) => Some(Ok(answer)),
        Response::Failed { error, .. } => Some(Err(error)),
        _ => None,
    }
}

/// A batch of one request of one row. Its meters record nothing.
fn batch_of_one(inputs: Vec<Tensor>, wanted: Vec<Wanted>, cancel: Cancel, reply: Reply) -> Batch {
    let request = AdmittedRequest {
        inputs: inputs.into(),
        wanted: wanted.into(),
        ..AdmittedRequest::cancelled_by(cancel, reply)
    };
    let job = Job::new(request, ModelVersion::unmetered("m").begin(), 1);
    Batch { jobs: vec![job].into(), meter: Arc::new(NoMeter) }
}
