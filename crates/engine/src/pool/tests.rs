//! Does every job get its answer, whichever thread runs it?
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nerite_backend::{Batch, Compute, InFlight, InOrder, Times, now_ns};
use nerite_memory::Buffer;
use nerite_request::{AdmittedRequest, Cancel, Code, Reply, Response, Sequence, Status, Wanted};
use nerite_schedule::{Batch as Planned, Context, Event, Fifo, Scheduler};
use nerite_tensor::{DataType, Shape, Tensor};

use super::*;

mod answers;
mod awaited;
mod clock;
mod down;
mod limited;
mod resize;
mod resized_sequences;
mod sequences;
mod several;
mod stalls;
mod waiting;

thread_local! {
    /// Whether the system refuses the threads that this thread starts.
    static REFUSES_THREADS: Cell<bool> = const { Cell::new(false) };
}

/// Fails if the system refuses the threads that this thread starts.
pub(super) fn check_threads() -> std::io::Result<()> {
    if REFUSES_THREADS.get() { Err(std::io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
}

struct Act(fn(&Job) -> Result<(), Status>);

impl Compute for Act {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        (self.0)(job)
    }
}

fn pool(instances: usize, act: fn(&Job) -> Result<(), Status>) -> Pool {
    let all = (0..instances).map(|_| Box::new(InOrder(Act(act))) as Box<dyn Instance>).collect();
    pool_of(all, CostBound::InputSizes, Box::new(Fifo::new()))
}

fn pool_of(instances: Vec<Box<dyn Instance>>, bound: CostBound, scheduler: Box<dyn Scheduler + Send>) -> Pool {
    let arrivals = if scheduler.binds() { Arrivals::default().of_sequences(false) } else { Arrivals::default() };
    let reject = |job: Job, rejection: Rejection| {
        let code = if rejection == Rejection::Cancelled { Code::Cancelled } else { Code::Unavailable };
        job.refuse(Status::new(code, rejection.sentence()));
    };
    let scheduling = Scheduling {
        scheduler,
        arrivals,
        preserve_ordering: false,
        requests_max: usize::MAX,
        claims: None,
        cores: None,
    };
    Pool::new("test", instances, bound, scheduling, None, ModelVersion::unmetered("m"), Box::new(reject))
}

/// The answer to a job, with the job's id.
struct Answer {
    id: String,
    error: Option<Status>,
}

fn job(id: usize, answers: &mpsc::Sender<Answer>) -> (Job, Cancel) {
    let answers = answers.clone();
    job_to(id, move |response| {
        let error = response.into_content().and_then(Result::err);
        drop(answers.send(Answer { id: id.to_string(), error }));
    })
}

/// A job that the pool counts as its own.
fn job_in(pool: &Pool, id: usize, answers: &mpsc::Sender<Answer>) -> Job {
    let answers = answers.clone();
    let sink = move |_| drop(answers.send(Answer { id: id.to_string(), error: None }));
    job_of(id, pool.0.requests.begin(), sink).0
}

fn job_to(id: usize, sink: impl FnMut(Response) + Send + 'static) -> (Job, Cancel) {
    job_of(id, ModelVersion::unmetered("m").begin(), sink)
}

fn job_of(id: usize, in_flight: InFlight, sink: impl FnMut(Response) + Send + 'static) -> (Job, Cancel) {
    job_with(id, in_flight, Reply::new(sink))
}

fn job_with(id: usize, in_flight: InFlight, reply: Reply) -> (Job, Cancel) {
    let cancel = Cancel::new();
    let data = Buffer::from(vec![0; 4]);
    let request = AdmittedRequest {
        id: id.to_string().into(),
        inputs: vec![Tensor { name: "I".into(), datatype: DataType::Fp32, shape: Shape::new(), data }].into(),
        wanted: vec![Wanted { name: "O".into(), slot: None }].into(),
        ..AdmittedRequest::cancelled_by(cancel.clone(), reply)
    };
    (Job::new(request, in_flight, now_ns()), cancel)
}

#[track_caller]
fn check(instances: usize, jobs: usize, act: fn(&Job) -> Result<(), Status>) -> Vec<Answer> {
    let pool = pool(instances, act);
    let (to, answers) = mpsc::channel();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (pool, to) = (&pool, to.clone());
            scope.spawn(move || {
                for id in (part..jobs).step_by(4) {
                    pool.submit(job(id, &to).0, None);
                }
            });
        }
    });
    pool.close();
    drop(to);
    let mut all: Vec<_> = answers.iter().collect();
    all.sort_by_key(|response| response.id.parse::<usize>().unwrap());
    assert_eq!(all.len(), jobs, "each job is answered once");
    all
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the model of the test is slow")]
fn every_job_is_answered_once_and_closing_waits_for_the_last() {
    assert!(check(1, 1000, |_| Ok(())).iter().all(|r| r.error.is_none()));
    assert!(
        check(3, 200, |_| {
            std::thread::sleep(Duration::from_micros(300));
            Ok(())
        })
        .iter()
        .all(|r| r.error.is_none())
    );
}

#[test]
fn a_panicking_model_answers_with_an_error_and_runs_on() {
    let all = check(1, 40, |job| {
        assert!(!job.id().ends_with('7'), "thrown on purpose");
        Ok(())
    });
    for response in all {
        assert_eq!(response.error.is_some(), response.id.ends_with('7'), "{}", response.id);
    }
}

#[test]
fn a_cancelled_job_does_not_run_and_a_closed_pool_rejects_jobs() {
    let pool = pool(1, |_| panic!("must not run"));
    let (to, answers) = mpsc::channel();
    let (first, cancel) = job(1, &to);
    cancel.cancel();
    pool.submit(first, None);
    assert_eq!(answers.recv().unwrap().error.unwrap().code, Code::Cancelled);
    pool.close();
    pool.submit(job(2, &to).0, None);
    assert_eq!(answers.recv().unwrap().error.unwrap().message, Rejection::Stopping.sentence());
}

#[test]
fn a_waiting_job_whose_client_goes_is_answered_at_once() {
    let (begun, runs) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let instance = Box::new(InOrder(Waits(begun, goes_on))) as Box<dyn Instance>;
    let pool = pool_of(vec![instance], CostBound::Unknown, Box::new(Fifo::new()));
    let (to, answers) = mpsc::channel();
    let ((first, _running), (second, cancel)) = (job(1, &to), job(2, &to));
    pool.submit(first, None);
    runs.recv().unwrap();
    pool.submit(second, None);
    assert_eq!(pool.waiting(), 1);
    cancel.cancel();
    let answer = answers.recv().unwrap();
    assert_eq!((answer.id.as_str(), answer.error.unwrap().code, pool.waiting()), ("2", Code::Cancelled, 0));
    go_on.send(()).unwrap();
    assert!(answers.recv().unwrap().error.is_none());
    pool.close();
}

/// Sends a message when it runs, and waits for a message before it ends.
struct Waits(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Compute for Waits {
    fn compute(&mut self, _: &mut Job, _: &mut Times) -> Result<(), Status> {
        self.0.send(()).unwrap();
        self.1.recv().unwrap();
        Ok(())
    }
}

const DELAY_US: u64 = 20_000;

/// Starts all waiting jobs, each one alone, when the first of them has waited for [`DELAY_US`].
#[derive(Default)]
struct Late {
    waiting: VecDeque<(Ticket, u64)>,
    granted: Vec<InstanceId>,
    stopped: bool,
}

impl Scheduler for Late {
    fn handle(&mut self, event: Event, context: &mut Context<'_>) {
        match event {
            Event::Arrived(arrival) => self.waiting.push_back((arrival.ticket, context.now_us + DELAY_US)),
            Event::Granted(instance) => self.granted.push(instance),
            Event::Stop => self.stopped = true,
            _ => {}
        }
        let Some((_, due_us)) = self.waiting.front() else { return };
        if *due_us > context.now_us && !self.stopped {
            return context.wake_at(*due_us);
        }
        while !self.waiting.is_empty()
            && let Some(instance) = self.granted.pop()
        {
            let (ticket, _) = self.waiting.pop_front().unwrap();
            context.run(Planned::of_one(instance, ticket));
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[test]
fn a_scheduler_that_waits_is_woken_and_all_instances_start_at_once() {
    let both = Arc::new(std::sync::Barrier::new(2));
    let meets = || Box::new(InOrder(Meets(Arc::clone(&both)))) as Box<dyn Instance>;
    let pool = pool_of(vec![meets(), meets()], CostBound::InputSizes, Box::<Late>::default());
    let (to, answers) = mpsc::channel();
    for round in 0..4 {
        let begun = Instant::now();
        pool.submit(job(2 * round, &to).0, None);
        pool.submit(job(2 * round + 1, &to).0, None);
        assert!((0..2).all(|_| answers.recv().unwrap().error.is_none()));
        assert!(begun.elapsed() >= Duration::from_micros(DELAY_US));
    }
    pool.submit(job(8, &to).0, None);
    pool.submit(job(9, &to).0, None);
    pool.close();
    assert_eq!(answers.try_iter().count(), 2);
}

/// A run ends only together with another run.
struct Meets(Arc<std::sync::Barrier>);

impl Compute for Meets {
    fn compute(&mut self, _: &mut Job, _: &mut Times) -> Result<(), Status> {
        self.0.wait();
        Ok(())
    }
}

/// Computes elsewhere: it is ready at once, or only when a thread waits for it.
struct Elsewhere {
    ready: bool,
    begun: Option<Batch>,
    finished: Arc<Mutex<Vec<std::thread::ThreadId>>>,
}

impl Instance for Elsewhere {
    fn run(&mut self, batch: Batch) {
        self.begun = Some(batch);
        self.finish();
    }

    fn begin(&mut self, batch: Batch, _: Duration) -> bool {
        self.begun = Some(batch);
        if self.ready {
            self.finish();
        }
        self.ready
    }

    fn finish(&mut self) {
        self.finished.lock().unwrap().push(std::thread::current().id());
        for job in self.begun.take().unwrap().jobs {
            job.finish(Ok(()), Times::begin());
        }
    }
}

#[test]
fn a_worker_waits_for_a_slow_run_and_it_is_answered_once() {
    for ready in [false, true] {
        let finished = Arc::default();
        let instance = Box::new(Elsewhere { ready, begun: None, finished: Arc::clone(&finished) }) as Box<dyn Instance>;
        let pool = pool_of(vec![instance], CostBound::Timeout, Box::new(Fifo::new()));
        let (to, answers) = mpsc::channel();
        for id in 0..20 {
            pool.submit(job(id, &to).0, None);
            assert_eq!(answers.recv().unwrap().id, id.to_string());
        }
        pool.close();
        let finished = finished.lock().unwrap();
        let here = finished.iter().filter(|thread| **thread == std::thread::current().id()).count();
        assert_eq!(finished.len(), 20);
        // On a busy machine it is possible that no run was quick.
        assert!(ready || here == 0, "{here} of 20 ended on the thread that brought them");
    }
}

/// Notes the thread of each job, and is slow for the job called "100".
struct Noting(Arc<Mutex<Vec<std::thread::ThreadId>>>);

impl Compute for Noting {
    #[expect(clippy::disallowed_methods, reason = "the model of the test is slow")]
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        self.0.lock().unwrap().push(std::thread::current().id());
        if job.id() == "100" {
            std::thread::sleep(Duration::from_nanos(crate::limits::SLOW_NS));
        }
        Ok(())
    }
}

/// Whether each of 300 jobs of one size, run one after the other, ran on the thread that submitted it.
#[expect(clippy::disallowed_methods, reason = "the model of the test is slow")]
fn ran_here(bound: CostBound) -> Vec<bool> {
    let threads = Arc::default();
    let instance = Box::new(InOrder(Noting(Arc::clone(&threads)))) as Box<dyn Instance>;
    let pool = pool_of(vec![instance], bound, Box::new(Fifo::new()));
    let (to, answers) = mpsc::channel();
    for id in 0..300 {
        // A worker puts the instance back only after it has answered. This gives it time for that.
        std::thread::sleep(Duration::from_millis(1));
        pool.submit(job(id, &to).0, None);
        assert_eq!(answers.recv().unwrap().id, id.to_string());
    }
    pool.close();
    let threads = threads.lock().unwrap();
    threads.iter().map(|thread| *thread == std::thread::current().id()).collect()
}

/// A reply that may wait.
struct Waiting(mpsc::Sender<std::thread::ThreadId>);

impl nerite_request::Deliver for Waiting {
    fn deliver(&mut self, _: Response) {
        self.0.send(std::thread::current().id()).unwrap();
    }

    fn may_wait(&self) -> bool {
        true
    }
}

/// When it runs the job called "100", another thread submits a job whose answer may wait.
struct Brings {
    pool: Arc<std::sync::OnceLock<Weak<Shared>>>,
    to: mpsc::Sender<std::thread::ThreadId>,
    ran: mpsc::Sender<std::thread::ThreadId>,
}

impl Compute for Brings {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        if job.id() == "100" {
            let pool = Pool(self.pool.get().unwrap().upgrade().unwrap());
            let reply = Reply::through(Waiting(self.to.clone()));
            let brought = job_with(7, ModelVersion::unmetered("m").begin(), reply).0;
            std::thread::scope(|scope| scope.spawn(|| pool.submit(brought, None)).join()).unwrap();
            // If this were dropped, the pool would stop.
            std::mem::forget(pool);
            self.ran.send(std::thread::current().id()).unwrap();
        }
        Ok(())
    }
}

#[test]
fn a_job_whose_answer_may_wait_runs_on_a_worker_whoever_has_time_for_it() {
    let here = std::thread::current().id();
    let ((own, answered), (ran, runs), known) = (mpsc::channel(), mpsc::channel(), Arc::default());
    let brings = Brings { pool: Arc::clone(&known), to: own, ran };
    let pool = pool_of(vec![Box::new(InOrder(brings))], CostBound::InputSizes, Box::new(Fifo::new()));
    known.set(Arc::downgrade(&pool.0)).unwrap();
    let (to, answers) = mpsc::channel();
    let submit = |id: usize| {
        pool.submit(job(id, &to).0, None);
        assert_eq!(answers.recv().unwrap().id, id.to_string());
    };
    // On a busy machine it is possible that no run was quick.
    let was_here = (0..300).any(|_| {
        (0..5).for_each(submit);
        submit(100);
        assert_ne!(answered.recv().unwrap(), here);
        runs.recv().unwrap() == here
    });
    assert!(was_here, "a worker did all runs");
    pool.close();
}

#[test]
fn without_a_bound_no_job_runs_on_the_thread_that_submits_it() {
    assert_eq!(ran_here(CostBound::Unknown), vec![false; 300]);
}

#[test]
#[ignore = "alone: runs must be measured quicker than 50 ms"]
fn quick_jobs_run_on_the_thread_that_submits_them_until_one_was_slow() {
    let here = ran_here(CostBound::InputSizes);
    assert_eq!(here[..3], [false; 3], "a size that never ran");
    // A busy machine may make some runs slow, but not all.
    assert!(here[3..100].contains(&true));
    assert_eq!(here[101..], [false; 199], "a size that was slow");
}
