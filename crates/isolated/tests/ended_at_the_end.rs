//! What if a run ends at the moment when its process is ended, because no client waits for the run any more?
//!
//! The processes are this test program itself. An environment variable makes it a child.
#![allow(clippy::unwrap_used)]
#![expect(clippy::disallowed_methods, reason = "clients go at moments that are chosen")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nerite_backend::conformance::context;
use nerite_backend::identity::Identity;
use nerite_backend::{Batch, Instance, InstanceSpec, Job, Meter, ModelVersion, Outcome, RequestTimes, Runtime, Times};
use nerite_isolated::{Isolated, Starter, work};
use nerite_memory::Buffer;
use nerite_request::{AdmittedRequest, Cancel, Code, ExactlyOne, InferResponse, Recycled, Reply};
use nerite_request::{Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

/// A process without this variable is no child.
const CHILD: &str = "NERITE_TEST_GONE_CHILD";
/// How long a process lets its run continue after the last client has gone.
const PATIENCE_MS: u64 = 5000;
/// When the client goes this late, its run ends at the same time as the timeout.
const GOES_MS: u64 = 1200;
/// Clients go at each of this many milliseconds before and after, and one each much earlier and later.
const AROUND_MS: u64 = 10;
const MUCH_MS: u64 = 1000;

type Answers = Arc<Mutex<Vec<Result<Recycled<InferResponse>, Status>>>>;

struct NoMeter;

impl Meter for NoMeter {
    fn request(&self, _: &RequestTimes, _: Outcome) {}

    fn batch(&self, _: u64, _: &Times) {}
}

/// Not a test of its own: a child runs it.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let ended = work(|_| Ok(Arc::new(Identity)));
    assert_eq!(format!("{ended:?}"), format!("{:?}", ExitCode::SUCCESS));
}

fn instance() -> Box<dyn Instance> {
    let start: Starter = Arc::new(|_| {
        let mut command = Command::new("/proc/self/exe");
        command.args(["--exact", "child", "--nocapture"]).env(CHILD, "yes").stdout(Stdio::null());
        command
    });
    let text = format!(
        "name: 'm' input {{ name: 'x' data_type: TYPE_INT32 dims: [ -1 ] }} output {{ name: 'y' data_type: TYPE_INT32 dims: [ -1 ] }}
         parameters {{ key: 'isolated' value {{ string_value: 'true' }} }}
         parameters {{ key: 'execute_delay_ms' value {{ string_value: '{}' }} }}",
        PATIENCE_MS + GOES_MS
    );
    let context = context(Path::new("m"), nerite_config::parse_text("c", text.as_bytes()).unwrap());
    let spec = InstanceSpec { name: "m_0".into(), ..InstanceSpec::default() };
    Isolated::over(Arc::new(Identity), start).load(&context).unwrap().instance(&spec).unwrap()
}

/// Runs a request of this number. The list gets each answer, at any time.
fn infer(instance: &mut dyn Instance, number: i32, cancel: Cancel) -> Answers {
    let answers = Answers::default();
    let into = Arc::clone(&answers);
    let mut one = ExactlyOne::default();
    let sink = move |response| {
        let taken = one.take(response).map(|outcome| outcome.expect("one response"));
        into.lock().unwrap().extend(taken);
    };
    let data = Buffer::from_numbers(vec![number]);
    let request = AdmittedRequest {
        inputs: [Tensor { name: "x".into(), datatype: DataType::Int32, shape: Shape::from_slice(&[1]), data }]
            .into_iter()
            .collect(),
        wanted: vec![Wanted { name: "y".into(), slot: None }].into(),
        ..AdmittedRequest::cancelled_by(cancel, Reply::new(sink))
    };
    let job = Job::new(request, ModelVersion::unmetered("m").begin(), 1);
    instance.run(Batch { jobs: vec![job].into(), meter: Arc::new(NoMeter) });
    answers
}

/// The living processes that this one has started.
fn children() -> BTreeSet<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks.flat_map(|task| of(task).split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Lets the only client of a run go after this time. Returns whether the process continued, and the answer of the next
/// request.
fn goes_after(instance: &mut dyn Instance, goes_ms: u64) -> bool {
    let cancel = Cancel::new();
    let goes = cancel.clone();
    let client = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(goes_ms));
        goes.cancel();
    });
    let answers = infer(instance, 7, cancel);
    client.join().unwrap();
    let next = infer(instance, 8, Cancel::new());
    let next = next.lock().unwrap();
    assert_eq!(next.len(), 1, "the next request, {goes_ms} ms");
    let next = next[0].as_ref().unwrap_or_else(|error| panic!("the next request, {goes_ms} ms: {error}"));
    assert_eq!(next.outputs[0].data.numbers::<i32>().unwrap_or_default(), [8], "{goes_ms} ms");
    // Looked at only now: a second answer would have come before that of the next request.
    let answers = answers.lock().unwrap();
    assert_eq!(answers.len(), 1, "{goes_ms} ms");
    match &answers[0] {
        Ok(response) => {
            assert_eq!(response.outputs[0].data.numbers::<i32>().unwrap_or_default(), [7], "{goes_ms} ms");
            true
        }
        Err(error) => {
            assert!(error.code == Code::Internal && error.message.contains("its process"), "{goes_ms} ms: {error:?}");
            false
        }
    }
}

#[test]
#[ignore = "alone: ends of processes must fall on milliseconds; 23 processes"]
fn a_run_that_ends_as_its_process_would_is_answered_once_and_the_next_one_too() {
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    let mut moments: Vec<u64> = (GOES_MS - AROUND_MS..=GOES_MS + AROUND_MS).collect();
    moments.extend([GOES_MS - MUCH_MS, GOES_MS + MUCH_MS]);
    let mut instances: Vec<_> = moments.iter().map(|_| instance()).collect();
    let before = children();
    assert_eq!(before.len(), moments.len());
    let went_on: Vec<bool> = std::thread::scope(|scope| {
        let running: Vec<_> = instances
            .iter_mut()
            .zip(&moments)
            .map(|(instance, &moment)| scope.spawn(move || goes_after(&mut **instance, moment)))
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    // A process whose run was answered serves the next request, and one that ended was replaced.
    let after = children();
    assert_eq!(after.len(), moments.len(), "one process for each instance");
    assert_eq!(before.intersection(&after).count(), went_on.iter().filter(|went_on| **went_on).count(), "{went_on:?}");
    let [.., early, late] = went_on[..] else { panic!("two moments at least") };
    assert!(!early && late, "the first client of all goes early enough, and the last one too late, to end its process");
}
