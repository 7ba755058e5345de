//! Does an instance leave whatever it was about to do, and does every job end?

use super::*;
use crate::limits::ORDERED_RESPONSES_MAX;

const PATIENCE: Duration = Duration::from_secs(20);

/// A pool of two instances whose responses keep their order. The job called "0" ends when it is told to.
fn ordered(goes_on: mpsc::Receiver<()>) -> Arc<Pool> {
    let goes_on = Arc::new(Mutex::new(goes_on));
    let instance = || Box::new(InOrder(FirstWaits(Arc::clone(&goes_on)))) as Box<dyn Instance>;
    let scheduling = Scheduling {
        scheduler: Box::new(Fifo::new()),
        arrivals: Arrivals::default(),
        preserve_ordering: true,
        requests_max: usize::MAX,
        claims: None,
        cores: None,
    };
    let reject = |job: Job, _: Rejection| job.refuse(Status::unavailable(""));
    let version = ModelVersion::unmetered("m");
    let all = vec![instance(), instance()];
    Arc::new(Pool::new("test", all, CostBound::Unknown, scheduling, None, version, Box::new(reject)))
}

struct FirstWaits(Arc<Mutex<mpsc::Receiver<()>>>);

impl Compute for FirstWaits {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        if job.id() == "0" {
            self.0.lock().unwrap().recv().unwrap();
        }
        Ok(())
    }
}

#[test]
fn an_instance_leaves_whose_run_waits_for_room_in_the_order() {
    let (go_on, goes_on) = mpsc::channel();
    let pool = ordered(goes_on);
    let (to, answers) = mpsc::channel();
    let jobs = ORDERED_RESPONSES_MAX + 4;
    (0..jobs).for_each(|id| pool.submit(job(id, &to).0));
    let begun = Instant::now();
    while !pool.0.lock().order.as_ref().unwrap().is_full() || pool.0.lock().instances.iter().flatten().count() != 1 {
        assert!(begun.elapsed() < PATIENCE, "the order is never full");
        std::thread::yield_now();
    }
    let about_to_run = pool.0.lock().instances.iter().position(Option::is_some).unwrap();
    let (left, has_left) = mpsc::channel();
    let removing = Arc::clone(&pool);
    let remove = move || {
        removing.remove(&[about_to_run]);
        left.send(()).unwrap();
    };
    // Joined by nobody: a test that fails must not wait for it.
    drop(std::thread::Builder::new().spawn(remove).unwrap());
    while !pool.0.lock().leaving.contains(&about_to_run) {
        assert!(begun.elapsed() < PATIENCE, "it does not leave");
        std::thread::yield_now();
    }
    go_on.send(()).unwrap();
    for id in 0..jobs {
        let answer = answers.recv_timeout(PATIENCE).unwrap();
        assert_eq!((answer.id, answer.error.is_none()), (id.to_string(), true));
    }
    has_left.recv_timeout(PATIENCE).unwrap();
    assert_eq!(pool.0.lock().instances.iter().flatten().count(), 1);
    pool.close();
}
