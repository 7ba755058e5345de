//! Do instances that share resources run one after the other, and does every job end?

use std::sync::atomic::{AtomicUsize, Ordering};

use std::time::Duration;

use nerite_schedule::{BatchPolicy, Batcher, PriorityLevels, QueuePolicy};

use super::*;
use crate::rates::{Claims, RateLimits};

static RUNNING: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[expect(clippy::unnecessary_wraps, reason = "other acts of tests fail")]
fn alone(_: &Job) -> Result<(), Status> {
    MOST.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    std::thread::yield_now();
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    Ok(())
}

/// A pool of three instances each of which needs `count` of R.
fn sharing(limits: &Arc<RateLimits>, count: u32) -> Pool {
    let text = format!(
        "instance_group {{ count: 3 kind: KIND_CPU rate_limiter {{ resources {{ name: 'R' count: {count} global: true }} }} }}"
    );
    limited(limits, &text, (0..3).map(|_| Box::new(InOrder(Act(alone))) as Box<dyn Instance>).collect())
}

fn limited(limits: &Arc<RateLimits>, text: &str, instances: Vec<Box<dyn Instance>>) -> Pool {
    scheduled(limits, text, instances, Box::new(Fifo::new()), Arrivals::default())
}

pub(super) fn scheduled(
    limits: &Arc<RateLimits>,
    text: &str,
    instances: Vec<Box<dyn Instance>>,
    scheduler: Box<dyn Scheduler + Send>,
    arrivals: Arrivals,
) -> Pool {
    let config = nerite_config::parse_text("", text.as_bytes()).unwrap();
    let claims = Claims::of(limits, &config).unwrap();
    let scheduling =
        Scheduling { scheduler, arrivals, preserve_ordering: false, requests_max: usize::MAX, claims, cores: None };
    let reject = |job: Job, rejection: Rejection| job.refuse(Status::unavailable(rejection.sentence()));
    let version = ModelVersion::unmetered("m");
    Pool::new("test", instances, CostBound::InputSizes, scheduling, None, version, Box::new(reject))
}

/// Sends the name of its model and the ids of its jobs at the start of each run.
struct Recorded {
    name: &'static str,
    runs: mpsc::Sender<String>,
}

impl Instance for Recorded {
    fn run(&mut self, batch: Batch) {
        let ids: Vec<&str> = batch.jobs.iter().map(Job::id).collect();
        // The test may be over.
        let _ = self.runs.send(format!("{} {}", self.name, ids.join(" ")));
        InOrder(Act(|_| Ok(()))).run(batch);
    }
}

/// The group of one instance that needs one R of all, with this priority.
fn one_r(priority: u32) -> String {
    format!(
        "instance_group {{ kind: KIND_CPU rate_limiter {{ priority: {priority} resources {{ name: 'R' count: 1 global: true }} }} }}"
    )
}

/// A model that holds the only R from the start of its only run until it is told to go on.
struct Holder {
    pool: Pool,
    go_on: mpsc::Sender<()>,
    _wanted: Cancel,
}

impl Holder {
    fn of(limits: &Arc<RateLimits>, to: &mpsc::Sender<Answer>) -> Holder {
        let ((begun, runs), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
        let pool = limited(limits, &one_r(1), vec![Box::new(InOrder(Waits(begun, goes_on)))]);
        let (first, wanted) = job(0, to);
        pool.submit(first, None);
        runs.recv_timeout(PATIENCE).unwrap();
        Holder { pool, go_on, _wanted: wanted }
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

/// Both models always have requests. The next run is chosen when one ends, and not before the model that ended one can run again.
#[test]
fn a_model_of_priority_two_runs_half_as_often() {
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 1)]));
    let ((to, _answers), (runs_to, runs)) = (mpsc::channel(), mpsc::channel());
    let holder = Holder::of(&limits, &to);
    let pools: Vec<Pool> = [("one", 1), ("two", 2)]
        .map(|(name, priority)| {
            let instance = Box::new(Recorded { name, runs: runs_to.clone() });
            limited(&limits, &one_r(priority), vec![instance])
        })
        .into();
    let kept: Vec<Cancel> = (0..40)
        .flat_map(|id| pools.iter().map(move |pool| (id, pool)))
        .map(|(id, pool)| {
            let (job, cancel) = job(id, &to);
            pool.submit(job, None);
            cancel
        })
        .collect();
    holder.go_on.send(()).unwrap();
    let first: Vec<String> = (0..30).map(|_| runs.recv_timeout(PATIENCE).unwrap()).collect();
    let ones = first.iter().filter(|run| run.starts_with("one")).count();
    assert!((19..=21).contains(&ones), "{first:?}");
    pools.iter().for_each(Pool::close);
    holder.pool.close();
    drop(kept);
}

/// The batch is made when its resources are there.
#[test]
fn later_requests_join_a_batch_that_waits_for_resources() {
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 1)]));
    let ((to, _answers), (runs_to, runs)) = (mpsc::channel(), mpsc::channel());
    let holder = Holder::of(&limits, &to);
    let policy = BatchPolicy { rows_max: 4, preferred: vec![1, 2, 3, 4], ..BatchPolicy::default() };
    let instances = (0..2).map(|_| Box::new(Recorded { name: "m", runs: runs_to.clone() }) as Box<dyn Instance>);
    let batching = scheduled(
        &limits,
        &(one_r(1) + &one_r(2)),
        instances.collect(),
        Box::new(Batcher::new(policy)),
        Arrivals::default(),
    );
    let kept: Vec<Cancel> = (1..=6)
        .map(|id| {
            let (job, cancel) = job(id, &to);
            batching.submit(job, None);
            cancel
        })
        .collect();
    assert_eq!(batching.waiting(), 6);
    holder.go_on.send(()).unwrap();
    let first: Vec<String> = (0..2).map(|_| runs.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(first, ["m 1 2 3 4", "m 5 6"]);
    batching.close();
    holder.pool.close();
    drop(kept);
}

#[test]
fn pools_take_turns_and_end_in_any_order() {
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 4)]));
    let pools: Vec<Pool> = [4, 2, 3, 2].iter().map(|count| sharing(&limits, *count)).collect();
    let (to, answers) = mpsc::channel();
    std::thread::scope(|scope| {
        for (at, pool) in pools.iter().enumerate() {
            let to = to.clone();
            scope.spawn(move || {
                for id in 0..300 {
                    pool.submit(job(1000 * at + id, &to).0, None);
                }
                // Some runs of this pool still wait for resources that other pools hold.
                pool.close();
            });
        }
    });
    drop(to);
    let ends: Vec<_> = answers.iter().collect();
    assert_eq!((ends.len(), ends.iter().filter(|end| end.error.is_some()).count()), (1200, 0));
    assert!(MOST.load(Ordering::SeqCst) <= 2, "{} ran together", MOST.load(Ordering::SeqCst));
}

/// A model that holds a resource may wait for another model that needs it. The client of both can end that.
#[test]
fn a_job_that_waits_for_resources_is_answered_when_its_client_goes() {
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 1)]));
    let text =
        "instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: 'R' count: 1 global: true } } }";
    let ((begun, runs), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let idle = Box::new(InOrder(Act(|_| panic!("the first is granted first")))) as Box<dyn Instance>;
    let holds = limited(&limits, text, vec![Box::new(InOrder(Waits(begun, goes_on))), idle]);
    let act = || Box::new(InOrder(Act(|_| Ok(())))) as Box<dyn Instance>;
    let waits = limited(&limits, text, vec![act(), act()]);
    let (to, answers) = mpsc::channel();
    holds.submit(job(0, &to).0, None);
    runs.recv_timeout(PATIENCE).unwrap();
    for round in 0..3 {
        let ((first, cancel), (second, kept)) = (job(1, &to), job(2, &to));
        waits.submit(first, None);
        waits.submit(second, None);
        assert_eq!(waits.waiting(), 2);
        cancel.cancel();
        let answer = answers.try_recv().unwrap();
        assert_eq!(
            (answer.id.as_str(), answer.error.unwrap().message.as_str()),
            ("1", Rejection::Cancelled.sentence())
        );
        assert_eq!(waits.waiting(), 1, "the other one waits on, round {round}");
        kept.cancel();
        assert_eq!((answers.try_recv().unwrap().id.as_str(), waits.waiting()), ("2", 0));
    }
    let (last, _wanted) = job(3, &to);
    waits.submit(last, None);
    go_on.send(()).unwrap();
    let mut ends: Vec<_> = (0..2).map(|_| answers.recv_timeout(PATIENCE).unwrap()).collect();
    ends.sort_by(|one, next| one.id.cmp(&next.id));
    assert!(ends.iter().map(|end| end.id.as_str()).eq(["0", "3"]) && ends.iter().all(|end| end.error.is_none()));
    waits.close();
    holds.close();
}

/// Requests wait in the queue until there are resources, so its timeout applies.
#[test]
fn the_timeout_of_the_queue_holds_for_jobs_that_wait_for_resources() {
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 1)]));
    let text = "instance_group { kind: KIND_CPU rate_limiter { resources { name: 'R' count: 1 global: true } } }";
    let ((begun, runs), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let holds = limited(&limits, text, vec![Box::new(InOrder(Waits(begun, goes_on)))]);
    let policy = QueuePolicy { timeout_us: 50_000, ..QueuePolicy::default() };
    let levels = PriorityLevels { default_policy: policy, ..PriorityLevels::default() };
    let arrivals = Arrivals::new(levels.clone(), &[], nerite_schedule::Wants::default());
    let act = Box::new(InOrder(Act(|_| Ok(())))) as Box<dyn Instance>;
    let scheduler = Batcher::new(BatchPolicy { rows_max: 1, levels, ..BatchPolicy::default() });
    let waits = scheduled(&limits, text, vec![act], Box::new(scheduler), arrivals);
    let (to, answers) = mpsc::channel();
    let (first, _wanted) = job(0, &to);
    holds.submit(first, None);
    runs.recv_timeout(PATIENCE).unwrap();
    let (late, _kept) = job(1, &to);
    waits.submit(late, None);
    assert_eq!(waits.waiting(), 1);
    let answer = answers.recv_timeout(PATIENCE).unwrap();
    assert_eq!((answer.id.as_str(), answer.error.unwrap().message.as_str()), ("1", Rejection::TimedOut.sentence()));
    assert_eq!(waits.waiting(), 0);
    go_on.send(()).unwrap();
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "0");
    // The resource is free, and so is the instance.
    let (next, _kept) = job(2, &to);
    waits.submit(next, None);
    let answer = answers.recv_timeout(PATIENCE).unwrap();
    assert_eq!((answer.id.as_str(), answer.error.is_none()), ("2", true));
    waits.close();
    holds.close();
}

/// Until there are resources, requests wait in the queue, however many instances are idle.
#[test]
fn clients_take_turns_while_runs_wait_for_resources() {
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 1)]));
    let ((to, _answers), (runs_to, runs)) = (mpsc::channel(), mpsc::channel());
    let holder = Holder::of(&limits, &to);
    let instances = (0..3).map(|_| Box::new(Recorded { name: "m", runs: runs_to.clone() }) as Box<dyn Instance>);
    let shares = limited(&limits, &[one_r(1), one_r(1), one_r(1)].concat(), instances.collect());
    // Four requests of one peer, and then one of another.
    let cancels: Vec<Cancel> = [1, 1, 1, 1, 2]
        .into_iter()
        .zip(1..)
        .map(|(peer, id)| {
            let (job, cancel) = job_from(peer, id, &to);
            shares.submit(job, None);
            cancel
        })
        .collect();
    assert_eq!(shares.waiting(), 5);
    holder.go_on.send(()).unwrap();
    let order: Vec<String> = (0..5).map(|_| runs.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(order, ["m 1", "m 5", "m 2", "m 3", "m 4"]);
    drop(cancels);
    shares.close();
    holder.pool.close();
}

/// A run that waits for a resource holds up only instances that need it.
#[test]
fn an_instance_that_needs_another_resource_runs_meanwhile() {
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 1), ("S".to_owned(), None, 1)]));
    let group = |resource: &str| {
        format!(
            "instance_group {{ kind: KIND_CPU rate_limiter {{ resources {{ name: '{resource}' count: 1 global: true }} }} }}"
        )
    };
    let ((begun, runs), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let holds = limited(&limits, &group("R"), vec![Box::new(InOrder(Waits(begun, goes_on)))]);
    let instances = (0..2).map(|_| Box::new(InOrder(Act(alone))) as Box<dyn Instance>).collect();
    let either = limited(&limits, &(group("R") + &group("S")), instances);
    let (to, answers) = mpsc::channel();
    let (first, _wanted) = job(0, &to);
    holds.submit(first, None);
    runs.recv_timeout(PATIENCE).unwrap();
    // At most one of them waits for R. The others run on the instance that needs S.
    (1..6).for_each(|id| either.submit(job(id, &to).0, None));
    for _ in 0..4 {
        answers.recv_timeout(PATIENCE).unwrap();
    }
    go_on.send(()).unwrap();
    for _ in 0..2 {
        answers.recv_timeout(PATIENCE).unwrap();
    }
    either.close();
    holds.close();
}

fn job_from(peer: u64, id: usize, answers: &mpsc::Sender<Answer>) -> (Job, Cancel) {
    let (answers, cancel) = (answers.clone(), Cancel::new());
    let reply = Reply::new(move |response: Response| {
        let error = response.into_content().and_then(Result::err);
        drop(answers.send(Answer { id: id.to_string(), error }));
    });
    let request = AdmittedRequest {
        id: id.to_string().into(),
        client: nerite_request::Client { peer, ..Default::default() },
        ..AdmittedRequest::cancelled_by(cancel.clone(), reply)
    };
    (Job::new(request, ModelVersion::unmetered("m").begin(), now_ns()), cancel)
}
