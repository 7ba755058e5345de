//! What does an instance answer to one request?

use std::sync::{Arc, Mutex, PoisonError};

use nerite_request::{Cancel, Parameters, Reply, Request, Response, Sequence, Wanted};
use nerite_tensor::{Name, Tensor};

use crate::{Batch, Job, NoMeter};

/// Makes a request of one row with these inputs and outputs, has `run` give it to an instance, and tells what came back.
///
/// # Panics
/// If there is no answer by the time `run` returns.
pub fn ask(inputs: Vec<Tensor>, wanted: Vec<Wanted>, run: impl FnOnce(Batch)) -> Response {
    let seen = Arc::new(Mutex::new(None));
    let into = Arc::clone(&seen);
    let sink = move |response| *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
    let request = Request {
        id: Name::default(),
        rows: 1,
        inputs,
        wanted,
        priority: 0,
        timeout_us: 0,
        sequence: Sequence::default(),
        parameters: Parameters::new(),
        cancel: Cancel::new(),
        reply: Reply::new("", sink),
    };
    let job = Job::new(request, "m".into(), "1".into(), 1);
    run(Batch { jobs: vec![job], meter: Arc::new(NoMeter) });
    let answer = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
    answer.expect("an instance answers before it returns")
}
