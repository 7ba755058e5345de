//! Does a run of a sequence go on when its client has gone, and what happens to the sequence if a run is cut short?

use std::path::Path;

use nerite_request::SequenceId;
use nerite_schedule::{Direct, DirectPolicy};

use super::*;

const RUNS_ON: &str = "60000000";
const RUNS_ON_BRIEFLY: &str = "20000";

/// Sends a message when a run begins. The run ends when the test says so, or early if it was stopped.
struct Steps {
    begun: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
    /// Whether a run ends early if it was stopped.
    may_end_early: bool,
}

impl Compute for Steps {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        // The test may be over.
        let _ = self.begun.send(());
        loop {
            match self.go_on.recv_timeout(Duration::from_millis(1)) {
                Err(mpsc::RecvTimeoutError::Timeout) if self.may_end_early && job.is_stopped() => {
                    return Err(Status::new(Code::Cancelled, "it was told to end"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

struct Stepping {
    pool: Pool,
    begun: mpsc::Receiver<()>,
    go_on: mpsc::Sender<()>,
    to: mpsc::Sender<Answer>,
    answers: mpsc::Receiver<Answer>,
}

impl Stepping {
    /// A model whose sequences may be idle for `idle_us`.
    fn new(idle_us: &str, may_end_early: bool) -> Stepping {
        let text = format!("name: 'm' sequence_batching {{ max_sequence_idle_microseconds: {idle_us} }}");
        let config = nerite_config::parse_text("", text.as_bytes()).unwrap();
        let sequences = Sequences::load(&config, Path::new("/no/such/folder"), None).unwrap().map(Arc::new);
        let ((begun_to, begun), (go_on, goes_on), (to, answers)) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let instance = InOrder(Steps { begun: begun_to, go_on: goes_on, may_end_early });
        let policy = DirectPolicy {
            instances: 1,
            rows_max: 1,
            // So long that no sequence of the tests ends because it is idle.
            idle_us: 600_000_000,
            ..DirectPolicy::default()
        };
        let scheduling = Scheduling {
            scheduler: Box::new(Direct::new(policy)),
            arrivals: Arrivals::default().of_sequences(false),
            preserve_ordering: false,
            requests_max: 100,
            claims: None,
            cores: None,
        };
        let reject = |job: Job, rejection: Rejection| {
            let code = if rejection == Rejection::Cancelled { Code::Cancelled } else { Code::InvalidArg };
            job.refuse(Status::new(code, rejection.sentence()));
        };
        let pool = Pool::new(
            "test",
            vec![Box::new(instance)],
            CostBound::Unknown,
            scheduling,
            sequences,
            ModelVersion::unmetered("m"),
            Box::new(reject),
        );
        Stepping { pool, begun, go_on, to, answers }
    }

    /// Sends the next request of a sequence. Returns its client's flag.
    fn send(&self, id: usize, sequence: u64, start: bool) -> Cancel {
        let (cancel, to) = (Cancel::new(), self.to.clone());
        let reply = Reply::new(move |response: Response| {
            let error = response.into_content().and_then(Result::err);
            to.send(Answer { id: id.to_string(), error }).unwrap();
        });
        let request = AdmittedRequest {
            sequence: Sequence { id: SequenceId::Number(sequence), start, end: false },
            ..AdmittedRequest::cancelled_by(cancel.clone(), reply)
        };
        self.pool.submit(Job::new(request, ModelVersion::unmetered("m").begin(), now_ns()), None);
        cancel
    }

    /// Waits for `count` answers. Returns their ids and errors in the order of the ids.
    fn answers(&self, count: usize) -> Vec<(String, Option<Code>)> {
        let answer = |Answer { id, error }: Answer| (id, error.map(|error| error.code));
        let mut all: Vec<_> = self.answers.iter().take(count).map(answer).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }
}

/// The first request of a sequence runs and a second one waits. Then the client of the first goes, as `leave` says. Checks both answers, and the
/// answer to a third request.
#[track_caller]
fn check(model: Stepping, leave: fn(&Cancel), ends: bool, expect: [Option<Code>; 3]) {
    let cancel = model.send(0, 7, true);
    model.begun.recv().unwrap();
    model.send(1, 7, false);
    leave(&cancel);
    if ends {
        model.go_on.send(()).unwrap();
    }
    let mut found = Vec::new();
    if expect[1].is_none() {
        found = model.answers(1);
        model.begun.recv().unwrap();
        model.go_on.send(()).unwrap();
    }
    found.append(&mut model.answers(2 - found.len()));
    model.send(2, 7, false);
    if expect[2].is_none() {
        model.begun.recv().unwrap();
        model.go_on.send(()).unwrap();
    }
    found.append(&mut model.answers(1));
    assert_eq!(found, [0, 1, 2].map(|id| (id.to_string(), expect[id])));
    if expect[2].is_some() {
        // Another sequence gets the slot.
        model.send(3, 8, true);
        model.begun.recv().unwrap();
        model.go_on.send(()).unwrap();
        assert_eq!(model.answers(1), [("3".to_owned(), None)]);
    }
}

#[test]
fn a_run_of_a_sequence_goes_on_without_its_client() {
    check(Stepping::new(RUNS_ON, true), Cancel::cancel, true, [None; 3]);
}

#[test]
fn a_sequence_is_over_if_its_run_was_cut_short() {
    let (cancelled, no_start) = (Some(Code::Cancelled), Some(Code::InvalidArg));
    check(Stepping::new(RUNS_ON_BRIEFLY, true), Cancel::cancel, false, [cancelled, cancelled, no_start]);
    let timed_out = Some(Status::timed_out().code);
    check(Stepping::new(RUNS_ON, true), Cancel::time_out, false, [timed_out, cancelled, no_start]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the time until the run is told to end passes")]
fn a_sequence_goes_on_if_its_run_could_not_be_cut_short() {
    let wait = |cancel: &Cancel| {
        cancel.cancel();
        std::thread::sleep(Duration::from_millis(40));
    };
    check(Stepping::new(RUNS_ON_BRIEFLY, false), wait, true, [None; 3]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the time until a run is told to end passes")]
fn a_request_that_was_taken_and_never_began_ends_its_sequence() {
    let model = Stepping::new(RUNS_ON_BRIEFLY, true);
    let sequences = model.pool.0.lock().sequences.clone().unwrap();
    let mut job = job(0, &model.to).0;
    let id = nerite_schedule::SequenceId::Number(1);
    sequences.set_controls(&mut job, &nerite_schedule::Controls { start: true, end: false, id, state: 5 });
    sequences.let_run_on(&mut job, None);
    // As if its instance waited for resources.
    job.cancel().cancel();
    while !job.is_stopped() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(sequences.take_cut_short().is_empty());
    job.refuse(Status::new(Code::Cancelled, ""));
    assert_eq!([sequences.take_cut_short(), sequences.take_cut_short()], [vec![5], vec![]]);
}
