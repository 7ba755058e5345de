//! If the model's author asks for it, does a request's timeout end the request in the queue and in its run?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nerite_backend::{Compute, Job, Times};
use nerite_engine::Engine;
use nerite_memory::Buffer;
use nerite_request::{Code, Request, Status};
use tempfile::TempDir;
use test_engine::{Answer, Computing, Setup, bytes_model, input, one_reply};

/// Longer than any test waits.
const LONG_US: u64 = 600_000_000;

/// A model that computes until its request is cancelled, or until the test says so. A request of no elements is
/// answered at once.
#[derive(Clone, Default)]
struct Steps {
    running: Arc<AtomicUsize>,
    goes_on: Arc<AtomicBool>,
}

impl Compute for Steps {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        self.running.fetch_add(1, Ordering::SeqCst);
        while !job.inputs()[0].data.is_empty() && !job.is_cancelled() && !self.goes_on.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        if job.is_cancelled() { Err(Status::internal("this step was the last")) } else { Ok(()) }
    }
}

struct Server {
    engine: Arc<Engine>,
    steps: Steps,
    _folder: TempDir,
}

fn server(parameters: &str) -> Server {
    let steps = Steps::default();
    let of_instance = steps.clone();
    let runtime = Arc::new(Computing("steps", move || of_instance.clone()));
    let config = bytes_model("steps", &format!("instance_group [{{ count: 1 kind: KIND_CPU }}] {parameters}"));
    let (engine, folder) = Setup::new([runtime as _]).with_model(&config).start();
    Server { engine, steps, _folder: folder }
}

const OPTED_IN: &str = "parameters { key: 'nerite.timeout_ends_runs' value { string_value: 'true' } }";

impl Server {
    fn begin(&self, elements: usize, timeout_us: u64) -> mpsc::Receiver<Answer> {
        let (reply, from) = one_reply();
        let inputs = vec![input(Buffer::from_numbers(vec![7_u8; elements]))];
        let request = Request { timeout_us, ..Request::new(inputs, Vec::new(), reply) };
        self.engine.admit("m", None).unwrap().check_and_submit(request);
        from
    }

    fn until_running(&self) {
        while self.steps.running.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

#[track_caller]
fn check_late(answer: &mpsc::Receiver<Answer>) {
    let error = answer.recv_timeout(Duration::from_mins(1)).unwrap().unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (Code::Unavailable, "Request timeout expired"));
}

#[test]
fn a_run_ends_at_its_requests_time_and_the_instance_serves_the_next() {
    // On a busy machine the time may be over before the run begins. Then no queue took the request.
    let counted_at = |timeout_ms: u64| {
        let server = server(OPTED_IN);
        let begun = Instant::now();
        check_late(&server.begin(1, timeout_ms * 1000));
        assert!(begun.elapsed() >= Duration::from_millis(timeout_ms));
        assert!(server.begin(0, LONG_US).recv().unwrap().is_ok());
        server.engine.find("m", None).unwrap().statistics().failures
    };
    let has_begun = |counted: &[u64; 4]| *counted != [1, 0, 0, 0];
    let counted = [30, 300, 3000, 20_000].into_iter().map(counted_at).find(has_begun);
    // It counts as cancelled, and not as a failure of the backend.
    assert_eq!(counted, Some([0, 1, 0, 0]));
}

#[test]
fn a_request_that_waits_is_refused_at_its_time_while_another_runs() {
    let server = server(OPTED_IN);
    let runs = server.begin(1, LONG_US);
    server.until_running();
    let (late, later) = (server.begin(0, 20_000), server.begin(0, 0));
    check_late(&late);
    assert!(runs.try_recv().is_err() && later.try_recv().is_err());
    server.steps.goes_on.store(true, Ordering::SeqCst);
    assert!(runs.recv().unwrap().is_ok() && later.recv().unwrap().is_ok());
}

#[test]
fn unless_the_author_asks_for_it_a_timeout_ends_no_run() {
    let server = server("");
    let runs = server.begin(1, 1000);
    assert!(runs.recv_timeout(Duration::from_millis(100)).is_err());
    server.steps.goes_on.store(true, Ordering::SeqCst);
    assert!(runs.recv().unwrap().is_ok());
}

#[test]
fn requests_that_end_in_time_are_not_touched() {
    let server = server(OPTED_IN);
    server.steps.goes_on.store(true, Ordering::SeqCst);
    for number in 0..1000 {
        assert!(server.begin(1, LONG_US - number).recv().unwrap().is_ok());
    }
}
