//! What did a runtime do with its jobs?

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use nerite_memory::{Buffer, Reason};
use nerite_request::{
    AdmittedRequest, Cancel, InferResponse, Recycled, Reply, Response, Status, Wanted, WantedOutputs,
};
use nerite_tensor::Tensor;

use super::Case;
use crate::{Batch, Instance, Job, Meter, ModelVersion, NoMeter, Outcome, RequestTimes, Times, now_ns};

/// A request for a job.
pub(super) struct TestRequest {
    pub inputs: Vec<Tensor>,
    pub wanted: WantedOutputs,
    pub cancelled: bool,
}

impl TestRequest {
    /// The request of a case. All outputs are to be sent in the response.
    pub fn of(case: &Case) -> TestRequest {
        let wanted = case.outputs.iter().map(|output| Wanted { name: output.name.clone(), slot: None });
        TestRequest { inputs: case.inputs.clone(), wanted: wanted.collect(), cancelled: false }
    }
}

/// The results of a batch.
pub(super) struct BatchResults {
    pub responses: Vec<Result<Recycled<InferResponse>, Status>>,
}

/// The id of the job at this position of a batch.
pub(super) fn id(index: usize) -> String {
    format!("job {index}")
}

/// Receives the answers of a job.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<Response>>>);

impl Seen {
    pub fn take(&self) -> Vec<Response> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl BatchResults {
    /// Runs a batch of these requests and checks what holds for every batch: each job is answered once, its inputs are
    /// released before that, and the times are in order.
    pub fn run(instance: &mut dyn Instance, requests: Vec<TestRequest>) -> BatchResults {
        let count = requests.len();
        let answers = Seen::default();
        let times = Arc::new(RecordingMeter::default());
        let version = ModelVersion::new("fixture", "1", Arc::<RecordingMeter>::clone(&times));
        let job = |(index, request)| job_to(&answers, &version, index, request);
        let jobs = requests.into_iter().enumerate().map(job).collect();
        instance.run(Batch { jobs, meter: Arc::<RecordingMeter>::clone(&times) });
        assert_eq!(version.in_flight(), 0, "nothing is in flight once all is answered");
        let only = |response: Response| {
            assert!(response.is_last(), "the one answer is the last");
            response.into_content().unwrap_or_else(|| panic!("the one answer has tensors or an error"))
        };
        let responses: Vec<_> = answers.take().into_iter().map(only).collect();
        assert_eq!(responses.len(), count, "as many answers as jobs");
        times.check(&responses);
        BatchResults { responses }
    }

    /// The answer of a batch of one.
    pub fn only(mut self) -> Result<Recycled<InferResponse>, Status> {
        assert_eq!(self.responses.len(), 1, "one answer");
        self.responses.remove(0)
    }
}

/// A job, and the receiver of its answers.
pub(super) fn job(index: usize, request: TestRequest) -> (Job, Seen) {
    let seen = Seen::default();
    (job_to(&seen, &ModelVersion::new("fixture", "1", Arc::new(NoMeter)), index, request), seen)
}

fn job_to(seen: &Seen, version: &Arc<ModelVersion>, index: usize, request: TestRequest) -> Job {
    let (into, held) = (seen.clone(), Arc::new(AtomicUsize::new(0)));
    let inputs: Vec<Tensor> =
        request.inputs.into_iter().map(|input| Tensor { data: watched(&input.data, &held), ..input }).collect();
    let cancel = Cancel::new();
    if request.cancelled {
        cancel.cancel();
    }
    let rows = inputs.first().and_then(|input| input.shape.first().copied()).unwrap_or(1);
    let request = AdmittedRequest {
        id: id(index).into(),
        rows: u32::try_from(rows).unwrap_or(1),
        inputs: inputs.into(),
        wanted: request.wanted,
        ..AdmittedRequest::cancelled_by(
            cancel,
            Reply::new(move |response| {
                assert_eq!(held.load(Ordering::SeqCst), 0, "inputs are released before the answer goes out");
                into.0.lock().unwrap_or_else(PoisonError::into_inner).push(response);
            }),
        )
    };
    Job::new(request, version.begin(), now_ns())
}

/// A copy of a buffer. `held` counts such copies until they are dropped.
fn watched(data: &Buffer, held: &Arc<AtomicUsize>) -> Buffer {
    if data.is_empty() {
        return Buffer::empty();
    }
    held.fetch_add(1, Ordering::SeqCst);
    Buffer::from(Bytes::from_owner(Watched { data: data.to_private(Reason::Model), held: Arc::clone(held) }))
}

struct Watched {
    data: Buffer,
    held: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        self.data.private_bytes().unwrap_or_default()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Records what a runtime reports.
#[derive(Default)]
struct RecordingMeter {
    requests: Mutex<Vec<(RequestTimes, Outcome)>>,
    batches: Mutex<Vec<(u64, Times)>>,
}

impl Meter for RecordingMeter {
    fn request(&self, times: &RequestTimes, outcome: Outcome) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push((*times, outcome));
    }

    fn batch(&self, rows: u64, times: &Times) {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).push((rows, *times));
    }
}

impl RecordingMeter {
    fn check(&self, responses: &[Result<Recycled<InferResponse>, Status>]) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(requests.len(), responses.len(), "each request is reported once");
        for ((times, outcome), response) in requests.iter().zip(responses) {
            assert!(
                0 < times.arrived && times.arrived <= times.times.start,
                "work starts after the arrival: {times:?}"
            );
            check_order(&times.times);
            // A request that ended with an error may count as a success, because the error may be the model's own answer.
            assert!(response.is_err() || *outcome == Outcome::Success, "a result is a success");
        }
        for (rows, times) in self.batches.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            assert!(*rows > 0, "an execution has rows");
            check_order(times);
        }
    }
}

fn check_order(times: &Times) {
    let moments = [times.start, times.input_end, times.infer_end, times.end];
    assert!(moments.is_sorted() && moments[0] > 0, "times go forward: {times:?}");
}
