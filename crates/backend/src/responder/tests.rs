//! Do all responses of a request arrive from any thread, and is its memory released before the last?
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nerite_memory::Extent;
use nerite_request::limits::SHARED_BYTES_MIN;
use nerite_request::{AdmittedRequest, Deliver, PlaceQuery};
use nerite_shm::{LeaseLimits, OwnedRegion, Pools, Registry};

use super::*;
use crate::{Job, Meter, ModelVersion, Reschedule, ResponseDurations};

/// A log with a text for each response, and for each call that requests memory for an output.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn check(&self, expected: &[&str]) {
        assert_eq!(*self.0.lock().unwrap(), expected);
    }
}

fn numbers(tensors: &InferResponse) -> String {
    let show = |output: &Output| format!("{:?}", output.data.cells::<i32>().unwrap().to_vec());
    tensors.outputs.iter().map(show).collect::<Vec<_>>().join(" ")
}

impl Deliver for Seen {
    fn deliver(&mut self, response: Response) {
        self.note(match &response {
            Response::Part(tensors) => format!("part {}", numbers(tensors)),
            Response::Final(tensors) => format!("final {}", numbers(tensors)),
            Response::End => "end".to_owned(),
            Response::Failed { error, more, .. } => format!("{} {error}", if *more { "error" } else { "failed" }),
        });
    }

    fn refuse(&mut self, why: Status) {
        self.note(format!("refused {why}"));
    }

    fn offers_places(&self) -> bool {
        true
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        self.note(format!("{} {} {:?}", query.output, query.bytes, query.preferred));
        Ok(None)
    }
}

fn job(seen: &Seen, version: &Arc<ModelVersion>, data: Buffer, slot: Option<Slot>) -> Job {
    let shape = Shape::from_slice(&[data.len() as i64 / 4]);
    let request = AdmittedRequest {
        inputs: vec![Tensor { name: "X".into(), datatype: DataType::Int32, shape, data }].into(),
        wanted: vec![Wanted { name: "Y".into(), slot }].into(),
        ..AdmittedRequest::new(Reply::through(seen.clone()))
    };
    Job::new(request, version.begin(), 0)
}

fn put(responder: &mut Responder, numbers: &[i32]) {
    let shape = [numbers.len() as i64];
    let mut slot = responder.output("Y", DataType::Int32, &shape).unwrap();
    slot.cells_mut::<i32>().unwrap().copy_from(0, numbers);
    responder.put("Y", DataType::Int32, Shape::from_slice(&shape), slot.filled());
}

#[test]
fn a_responder_outlives_its_job_and_answers_from_any_thread_as_often_as_it_likes() {
    let (seen, version) = (Seen::default(), ModelVersion::unmetered("m"));
    let (inputs, mut responder) = job(&seen, &version, Buffer::from_numbers(vec![1, 2]), None).divide();
    drop(inputs);
    let elsewhere = std::thread::Builder::new().spawn(move || {
        for number in 1..3 {
            put(&mut responder, &[number]);
            responder.send().unwrap();
        }
        responder.send_error(Status::invalid("no"));
        responder.end(Times::begin());
    });
    elsewhere.unwrap().join().unwrap();
    seen.check(&["Y 4 Host", "part [1]", "Y 4 Host", "part [2]", "error no", "end"]);
    assert_eq!(version.in_flight(), 0);
}

#[test]
fn a_request_is_in_flight_until_its_responder_is_gone() {
    let (seen, version) = (Seen::default(), ModelVersion::unmetered("m"));
    let (_inputs, mut responder) = job(&seen, &version, Buffer::empty(), None).divide();
    put(&mut responder, &[7]);
    responder.send().unwrap();
    assert_eq!(version.in_flight(), 1);
    drop(responder);
    assert_eq!(version.in_flight(), 0);
    seen.check(&["Y 4 Host", "part [7]", "failed the model ended its work on this request without a final response"]);
}

/// Counts the requests that are reported.
#[derive(Default)]
struct Counts(AtomicUsize);

impl Meter for Counts {
    fn request(&self, _: &RequestTimes, _: Outcome) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn batch(&self, _: u64, _: &Times) {}
}

#[track_caller]
fn check_noted_once(act: impl FnOnce(DeferredReport, Responder)) {
    let (seen, counts) = (Seen::default(), Arc::new(Counts::default()));
    let version = ModelVersion::new("m", "1", Arc::<Counts>::clone(&counts));
    let (_inputs, mut responder) = job(&seen, &version, Buffer::empty(), None).divide();
    let note = responder.note_apart().unwrap();
    act(note, responder);
    assert_eq!(counts.0.load(Ordering::SeqCst), 1);
}

#[test]
fn a_request_that_is_noted_apart_is_counted_once() {
    let failed = || Err(Status::internal("no"));
    check_noted_once(|note, responder| {
        note.note(Times::begin(), Outcome::Success);
        responder.finish(failed(), Times::begin());
    });
    check_noted_once(|note, responder| {
        responder.finish(failed(), Times::begin());
        note.note(Times::begin(), Outcome::Failed);
    });
    check_noted_once(|note, responder| {
        responder.end(Times::begin());
        note.note(Times::begin(), Outcome::Success);
    });
}

#[test]
fn who_watches_the_report_of_a_request_sees_what_was_reported_first() {
    let version = ModelVersion::new("m", "1", Arc::<Counts>::default());
    let (_inputs, mut responder) = job(&Seen::default(), &version, Buffer::empty(), None).divide();
    let noted = responder.watch_note();
    let note = responder.note_apart().unwrap();
    assert!(responder.note_apart().is_none() && !noted.is_success());
    note.note(Times::begin(), Outcome::Success);
    responder.finish(Err(Status::internal("no")), Times::begin());
    assert!(noted.is_success());

    let (_inputs, mut responder) = job(&Seen::default(), &version, Buffer::empty(), None).divide();
    let noted = responder.watch_note();
    responder.finish(Ok(()), Times::begin());
    // The responder reported the success itself, so nothing was recorded.
    assert!(!noted.is_success());
}

#[test]
fn every_response_is_written_to_the_place_that_the_client_named() {
    let (seen, version) = (Seen::default(), ModelVersion::unmetered("m"));
    let lease = Pools::new(LeaseLimits::default()).open().take(4096).unwrap();
    let place = Extent::new(64, 8, 4096).unwrap();
    let in_place = || lease.buffer(place).cells::<i32>().unwrap().to_vec();
    let (_inputs, mut responder) = job(&seen, &version, Buffer::empty(), Some(lease.slot(place))).divide();
    put(&mut responder, &[1, 2]);
    responder.send().unwrap();
    assert_eq!(in_place(), [1, 2]);
    // A shorter response leaves the bytes after its end unchanged.
    put(&mut responder, &[3]);
    responder.send().unwrap();
    assert_eq!(in_place(), [3, 2]);
    assert!(responder.output("Y", DataType::Int32, &[3]).is_err_and(|error| error.message.contains("(8 bytes)")));
    responder.send_error(Status::invalid("too long"));
    put(&mut responder, &[5, 6]);
    responder.finish(Ok(()), Times::begin());
    assert_eq!(in_place(), [5, 6]);
    seen.check(&["part [1, 2]", "part [3]", "error too long", "final [5, 6]"]);
}

#[test]
fn memory_that_was_lost_after_the_inputs_were_taken_fails_the_request() {
    let (seen, version) = (Seen::default(), ModelVersion::unmetered("m"));
    let key = format!("/nerite-test-responder-{}", std::process::id());
    let _mine = OwnedRegion::create(&key, 8192).unwrap();
    let registry = Registry::new(nerite_shm::Options::default());
    registry.register_system("a", &key, 0, 8192).unwrap();
    let data = registry.locate("a", 0, 8).unwrap().into_buffer();
    let lost = data.clone();
    let (inputs, mut responder) = job(&seen, &version, data, None).divide();
    drop(inputs);
    put(&mut responder, &[1]);
    responder.send().unwrap();
    lost.share().unwrap().share.lose(0);
    put(&mut responder, &[2]);
    let error = responder.send().unwrap_err();
    assert!(error.message.contains("shared memory region 'a'"), "{error}");
    responder.finish(Ok(()), Times::begin());
    seen.check(&["Y 4 Host", "part [1]", "Y 4 Host", &format!("failed {error}")]);
}

#[test]
fn who_places_an_output_hears_where_the_runtime_would_like_it() {
    let (seen, version) = (Seen::default(), ModelVersion::unmetered("m"));
    let mut job = job(&seen, &version, Buffer::empty(), None);
    for preferred in [Place::Device(3), Place::Pinned] {
        assert_eq!(job.output_near("Y", 4, preferred).unwrap().place(), Place::Host);
    }
    job.reject_unqueued(Status::unavailable("later"));
    seen.check(&["Y 4 Device(3)", "Y 4 Pinned", "refused later"]);
}

#[test]
fn another_way_of_the_responses_may_be_put_before_the_first() {
    let (seen, version) = (Seen::default(), ModelVersion::unmetered("m"));
    let mut job = job(&seen, &version, Buffer::empty(), None);
    let beside = seen.clone();
    job.answer_by(|mut reply| {
        Reply::new(move |response| {
            beside.note("passes".to_owned());
            reply.send(response);
        })
    });
    job.finish(Ok(()), Times::begin());
    seen.check(&["passes", "final "]);
    assert_eq!(version.in_flight(), 0);
}

/// Keeps the jobs that are to run again, each with the number of its sequence's state.
#[derive(Default)]
struct Kept(Mutex<Vec<(Job, u64)>>);

impl Reschedule for Kept {
    fn again(self: Arc<Self>, job: Job, sequence: u64) {
        self.0.lock().unwrap().push((job, sequence));
    }
}

#[test]
fn a_request_that_runs_again_is_as_it_was_but_that_its_sequence_has_begun() {
    let (seen, version, kept) = (Seen::default(), ModelVersion::unmetered("m"), Arc::new(Kept::default()));
    let whom: std::sync::Weak<dyn Reschedule> = Arc::<Kept>::downgrade(&kept);
    let mut run = job(&seen, &version, Buffer::from_numbers(vec![1, 2]), None);
    run.begin_own_sequence(7);
    let ended = Arc::new(Mutex::new(Vec::new()));
    for number in 0..3 {
        assert_eq!((run.inputs().len(), run.wanted().count(), run.has_own_sequence()), (1, 1, true));
        assert_eq!((run.sequence().start, run.sequence().end), (number == 0, false));
        assert_eq!(run.responder().has_run_before(), number > 0);
        // These are added by the server for one run only.
        run.add_input(run.inputs()[0].clone());
        run.want(1, &"STATE".into());
        let seen = Arc::clone(&ended);
        run.on_end(move |ended| {
            seen.lock().unwrap().push(ended.outputs.is_some());
            Ok(())
        });
        run.may_run_again(std::sync::Weak::clone(&whom), 40 + number);
        let (inputs, mut responder) = run.divide();
        put(&mut responder, &[i32::try_from(number).unwrap()]);
        responder.send().unwrap();
        put(&mut responder, &[99]);
        responder.reschedule(inputs, Times::begin());
        let (again, sequence) = kept.0.lock().unwrap().pop().unwrap();
        assert_eq!((sequence, version.in_flight()), (40 + number, 1));
        run = again;
    }
    run.finish(Ok(()), Times::begin());
    let place = "Y 4 Host";
    seen.check(&[place, "part [0]", place, place, "part [1]", place, place, "part [2]", place, "final "]);
    assert_eq!((ended.lock().unwrap().as_slice(), version.in_flight()), (&[false; 3][..], 0));
}

#[test]
fn a_request_of_a_model_that_is_not_iterative_fails_instead_of_running_again() {
    let (seen, version) = (Seen::default(), ModelVersion::unmetered("m"));
    job(&seen, &version, Buffer::empty(), None).reschedule(Times::begin());
    let mut unloaded = job(&seen, &version, Buffer::empty(), None);
    let whom: std::sync::Weak<dyn Reschedule> = std::sync::Weak::<Kept>::new();
    unloaded.may_run_again(whom, 1);
    unloaded.reschedule(Times::begin());
    seen.check(&[
        "failed Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a flag.",
        "failed the model was unloaded",
    ]);
    assert_eq!(version.in_flight(), 0);
}

#[test]
fn a_request_whose_time_is_over_is_told_so_whatever_went_wrong_and_its_result_counts_if_it_is_there() {
    type End = fn(Job);
    let failed = || Status::internal("its process was ended");
    let ends: [(&str, End, Option<Outcome>); 5] = [
        ("failed", |job| job.finish(Err(Status::internal("stopped")), Times::begin()), Some(Outcome::Cancelled)),
        (
            "failed",
            |job| job.answer_error(Status::internal("the model noticed"), Times::begin()),
            Some(Outcome::Cancelled),
        ),
        ("failed", |job| job.refuse(Status::new(Code::Cancelled, "")), Some(Outcome::Rejected)),
        ("failed", drop, None),
        ("final ", |job| job.finish(Ok(()), Times::begin()), Some(Outcome::Success)),
    ];
    for (said, end, outcome) in ends {
        let (seen, meter) = (Seen::default(), Arc::new(Outcomes::default()));
        let version = ModelVersion::new("m", "1", Arc::clone(&meter) as _);
        let late = job(&seen, &version, Buffer::from_numbers(vec![1, 2]), None);
        late.cancel().time_out();
        end(late);
        let text = if said == "failed" { "failed Request timeout expired" } else { said };
        seen.check(&[text]);
        let outcomes = meter.0.lock().unwrap();
        assert_eq!(outcomes.as_slice(), outcome.as_slice());
    }
    // If the client has gone, an error is still reported.
    let (seen, version) = (Seen::default(), ModelVersion::unmetered("m"));
    let gone = job(&seen, &version, Buffer::from_numbers(vec![1, 2]), None);
    gone.cancel().cancel();
    gone.finish(Err(failed()), Times::begin());
    seen.check(&["failed its process was ended"]);
}

#[test]
fn a_request_that_fails_by_who_is_told_of_its_end_counts_as_failed() {
    type End = fn(Responder);
    let ends: [(End, Option<usize>); 3] = [
        (|mut responder| (put(&mut responder, &[7]), responder.finish(Ok(()), Times::begin())).1, Some(1)),
        (|responder| responder.end(Times::begin()), None),
        (|responder| responder.finish(Err(Status::internal("too much")), Times::begin()), None),
    ];
    for (end, outputs) in ends {
        let (seen, meter) = (Seen::default(), Arc::new(Outcomes::default()));
        let version = ModelVersion::new("m", "1", Arc::clone(&meter) as _);
        let mut job = job(&seen, &version, Buffer::empty(), None);
        job.on_end(move |ended| {
            assert_eq!(ended.outputs.map(|outputs| outputs.len()), outputs);
            Err(Status::internal("too much"))
        });
        end(job.divide().1);
        assert_eq!(seen.0.lock().unwrap().last().map(String::as_str), Some("failed too much"));
        assert_eq!(meter.0.lock().unwrap().as_slice(), &[Outcome::Failed]);
    }
}

/// Keeps the outcomes of requests.
#[derive(Default)]
struct Outcomes(Mutex<Vec<Outcome>>);

impl Meter for Outcomes {
    fn request(&self, _: &RequestTimes, outcome: Outcome) {
        self.0.lock().unwrap().push(outcome);
    }

    fn batch(&self, _: u64, _: &Times) {}
}

/// Keeps the index and the outcome of each response that is reported.
#[derive(Default)]
struct EachResponse(Mutex<Vec<(u64, ResponseOutcome)>>);

impl Meter for EachResponse {
    fn request(&self, _: &RequestTimes, _: Outcome) {}

    fn batch(&self, _: u64, _: &Times) {}

    fn response(&self, index: u64, durations: &ResponseDurations) {
        assert!(durations.infer_ns.unwrap_or(0) + durations.output_ns.unwrap_or(0) <= durations.total_ns);
        self.0.lock().unwrap().push((index, durations.outcome));
    }
}

#[test]
fn responses_are_counted_one_by_one_where_that_is_asked_for() {
    use ResponseOutcome::{Cancelled, Empty, Failed, Success};
    type Ways = [(fn(Responder), &'static [ResponseOutcome]); 6];
    let ways: Ways = [
        (|responder| responder.end(Times::begin()), &[Success, Failed, Empty, Empty]),
        (|responder| responder.finish(Ok(()), Times::begin()), &[Success, Failed, Empty, Empty]),
        (|responder| responder.finish(Err(Status::internal("no")), Times::begin()), &[Success, Failed, Empty, Failed]),
        (
            |responder| responder.finish(Err(Status::new(Code::Cancelled, "")), Times::begin()),
            &[Success, Failed, Empty, Cancelled],
        ),
        (|responder| responder.answer_error(Status::internal("no"), Times::begin()), &[Success, Failed, Empty, Failed]),
        (
            |mut responder| {
                put(&mut responder, &[8]);
                responder.finish(Ok(()), Times::begin());
            },
            &[Success, Failed, Empty, Success],
        ),
    ];
    for (is_counted, (end, expect)) in ways.into_iter().flat_map(|way| [(true, way), (false, way)]) {
        let (seen, meter) = (Seen::default(), Arc::new(EachResponse::default()));
        let version = ModelVersion::new("m", "1", Arc::clone(&meter) as _);
        let (_inputs, mut responder) = job(&seen, &version, Buffer::empty(), None).divide();
        if is_counted {
            responder.count_responses(0);
        }
        put(&mut responder, &[7]);
        responder.output_starts();
        responder.send().unwrap();
        responder.send_error(Status::internal("no"));
        responder.send().unwrap();
        end(responder);
        let expect: Vec<_> = (0..).zip(expect.iter().copied()).filter(|_| is_counted).collect();
        assert_eq!(*meter.0.lock().unwrap(), expect);
    }
}

#[test]
fn an_output_that_the_request_placed_in_memory_must_be_in_a_response() {
    type Ends = [(fn(Responder), bool); 6];
    fn once(mut responder: Responder) -> Responder {
        put(&mut responder, &[7]);
        responder.send().unwrap();
        responder
    }
    let ends: Ends = [
        (|responder| responder.finish(Ok(()), Times::begin()), true),
        (|responder| responder.end(Times::begin()), true),
        (
            |mut responder| {
                responder.send().unwrap();
                responder.end(Times::begin());
            },
            true,
        ),
        (|mut responder| (put(&mut responder, &[7]), responder.finish(Ok(()), Times::begin())).1, false),
        (|responder| once(responder).end(Times::begin()), false),
        (|responder| once(responder).finish(Ok(()), Times::begin()), false),
    ];
    for ((end, is_left), is_placed, is_required) in
        ends.into_iter().flat_map(|end| [(end, true, true), (end, true, false), (end, false, true)])
    {
        let (seen, meter) = (Seen::default(), Arc::new(Outcomes::default()));
        let version = ModelVersion::new("m", "1", Arc::clone(&meter) as _);
        let mut job = job(&seen, &version, Buffer::empty(), is_placed.then(|| Slot::heap(4)));
        if is_required {
            job.require_placed();
        }
        end(job.divide().1);
        let fails = is_left && is_placed && is_required;
        let last = seen.0.lock().unwrap().pop().unwrap();
        let text = "failed model 'm' did not make output 'Y', which the request placed in memory";
        assert_eq!(last.starts_with(text), fails, "{last}");
        let outcome = if fails { Outcome::Failed } else { Outcome::Success };
        assert_eq!(meter.0.lock().unwrap().as_slice(), &[outcome]);
    }
}

/// A reply to an ensemble whose next step runs in a process of its own.
struct ToProcess(Arc<dyn InputMemory>);

impl Deliver for ToProcess {
    fn deliver(&mut self, _: Response) {}

    fn input_memory(&self, output: usize) -> Option<Arc<dyn InputMemory>> {
        (output == 0).then(|| Arc::clone(&self.0))
    }
}

/// Input memory that has this many bytes left.
struct Left(usize);

impl InputMemory for Left {
    fn slot(&self, bytes: usize) -> Option<Slot> {
        let lease = Pools::new(LeaseLimits::default()).open().take(bytes as u64).unwrap();
        (bytes <= self.0).then(|| lease.slot(Extent::new(0, bytes, lease.byte_size()).unwrap()))
    }

    fn can_read(&self, _: &Buffer) -> bool {
        true
    }
}

#[test]
fn a_large_output_is_written_where_the_next_model_reads_it() {
    let check = |name: &str, bytes: usize, slot: Option<Slot>, expected: Access| {
        let own = slot.is_some();
        let mut job = job(&Seen::default(), &ModelVersion::unmetered("m"), Buffer::empty(), slot);
        job.responder_mut().answer_by(|_| Reply::through(ToProcess(Arc::new(Left(2 * SHARED_BYTES_MIN)))));
        let data = job.output_bytes(name, bytes).unwrap().filled().into_buffer();
        assert_eq!((data.len(), data.access()), (bytes, expected), "{name}, own place: {own}");
    };
    check("Y", SHARED_BYTES_MIN, None, Access::Shared);
    check("Y", SHARED_BYTES_MIN - 1, None, Access::Private);
    check("Y", 2 * SHARED_BYTES_MIN + 1, None, Access::Private);
    check("Z", SHARED_BYTES_MIN, None, Access::Private);
    check("Y", SHARED_BYTES_MIN, Some(Slot::heap(SHARED_BYTES_MIN)), Access::Private);
}
