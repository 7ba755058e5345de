//! Do instances that share resources run one after the other, and does every job end?

use std::sync::atomic::{AtomicUsize, Ordering};

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
    let config = nerite_config::parse_text("", text.as_bytes()).unwrap();
    let claims = Claims::of(limits, &config).unwrap();
    let instances = (0..3).map(|_| Box::new(InOrder(Act(alone))) as Box<dyn Instance>).collect();
    let scheduling = Scheduling {
        scheduler: Box::new(Fifo::new()),
        arrivals: Arrivals::default(),
        preserve_ordering: false,
        requests_max: usize::MAX,
        claims,
        cores: None,
    };
    let reject = |job: Job, _: Rejection| job.refuse(Status::unavailable(""));
    let version = ModelVersion::unmetered("m");
    Pool::new("test", instances, CostBound::InputSizes, scheduling, None, version, Box::new(reject))
}

#[test]
fn pools_take_turns_and_end_whoever_is_closed_first() {
    let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 4)]));
    let pools: Vec<Pool> = [4, 2, 3, 2].iter().map(|count| sharing(&limits, *count)).collect();
    let (to, answers) = mpsc::channel();
    std::thread::scope(|scope| {
        for (at, pool) in pools.iter().enumerate() {
            let to = to.clone();
            scope.spawn(move || {
                for id in 0..300 {
                    pool.submit(job(1000 * at + id, &to).0);
                }
                // Some of its runs wait for what the others have.
                pool.close();
            });
        }
    });
    drop(to);
    let ends: Vec<_> = answers.iter().collect();
    assert_eq!((ends.len(), ends.iter().filter(|end| end.error.is_some()).count()), (1200, 0));
    assert!(MOST.load(Ordering::SeqCst) <= 2, "{} ran together", MOST.load(Ordering::SeqCst));
}
