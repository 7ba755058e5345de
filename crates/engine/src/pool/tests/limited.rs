//! Do instances that share resources run one after the other, and does every job end?

use std::sync::atomic::{AtomicUsize, Ordering};

use std::time::Duration;

use nerite_schedule::{PriorityLevels, QueuePolicy};

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
    patient(limits, text, instances, Arrivals::default())
}

fn patient(limits: &Arc<RateLimits>, text: &str, instances: Vec<Box<dyn Instance>>, arrivals: Arrivals) -> Pool {
    let config = nerite_config::parse_text("", text.as_bytes()).unwrap();
    let claims = Claims::of(limits, &config).unwrap();
    let scheduling = Scheduling {
        scheduler: Box::new(Fifo::new()),
        arrivals,
        preserve_ordering: false,
        requests_max: usize::MAX,
        claims,
        cores: None,
    };
    let reject = |job: Job, rejection: Rejection| job.refuse(Status::unavailable(rejection.sentence()));
    let version = ModelVersion::unmetered("m");
    Pool::new("test", instances, CostBound::InputSizes, scheduling, None, version, Box::new(reject))
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
    const PATIENCE: Duration = Duration::from_secs(20);
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

/// A run that waits for resources was taken from the queue. The timeout of the queue still applies to it.
#[test]
fn the_timeout_of_the_queue_holds_for_jobs_that_wait_for_resources() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 1)]));
    let text = "instance_group { kind: KIND_CPU rate_limiter { resources { name: 'R' count: 1 global: true } } }";
    let ((begun, runs), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let holds = limited(&limits, text, vec![Box::new(InOrder(Waits(begun, goes_on)))]);
    let policy = QueuePolicy { timeout_us: 50_000, ..QueuePolicy::default() };
    let levels = PriorityLevels { default_policy: policy, ..PriorityLevels::default() };
    let arrivals = Arrivals::new(levels, &[], nerite_schedule::Wants::default());
    let act = Box::new(InOrder(Act(|_| Ok(())))) as Box<dyn Instance>;
    let waits = patient(&limits, text, vec![act], arrivals);
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

/// While a run waits for resources, the requests behind it wait in the queue, however many instances are idle.
#[test]
fn clients_take_turns_while_runs_wait_for_resources() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 1)]));
    let one = "instance_group { kind: KIND_CPU rate_limiter { resources { name: 'R' count: 1 global: true } } }";
    let ((begun, runs), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let holds = limited(&limits, one, vec![Box::new(InOrder(Waits(begun, goes_on)))]);
    let shares = sharing(&limits, 1);
    let (to, answers) = mpsc::channel();
    let (first, _wanted) = job(0, &to);
    holds.submit(first, None);
    runs.recv_timeout(PATIENCE).unwrap();
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
    go_on.send(()).unwrap();
    let ids: Vec<String> = (0..6).map(|_| answers.recv_timeout(PATIENCE).unwrap().id).collect();
    assert_eq!(ids[1..], ["1", "2", "5", "3", "4"].map(str::to_owned), "{ids:?}");
    drop(cancels);
    shares.close();
    holds.close();
}

/// A run that waits for a resource holds up only instances that need it.
#[test]
fn an_instance_that_needs_another_resource_runs_meanwhile() {
    const PATIENCE: Duration = Duration::from_secs(20);
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
        client: nerite_request::Client { peer, ..Default::default() },
        ..AdmittedRequest::cancelled_by(cancel.clone(), reply)
    };
    (Job::new(request, ModelVersion::unmetered("m").begin(), now_ns()), cancel)
}
