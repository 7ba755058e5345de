//! Is an instance removed whatever it was about to do, and does every job end?

use super::*;
use crate::limits::ORDERED_RESPONSES_MAX;

const PATIENCE: Duration = Duration::from_secs(20);

/// A pool of two instances whose responses keep their order. The job called "0" ends when `goes_on` gets a message.
fn ordered(goes_on: mpsc::Receiver<()>) -> Pool {
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
    Pool::new("test", all, CostBound::Unknown, scheduling, None, version, Box::new(reject))
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
    (0..jobs).for_each(|id| pool.submit(job(id, &to).0, None));
    let begun = Instant::now();
    while !pool.0.lock().order.as_ref().unwrap().is_full() || pool.0.lock().instances.iter().flatten().count() != 1 {
        assert!(begun.elapsed() < PATIENCE, "the order is never full");
        std::thread::yield_now();
    }
    let about_to_run = pool.0.lock().instances.iter().position(Option::is_some).unwrap();
    pool.remove(&[about_to_run]);
    assert_eq!(pool.leaving(), 1);
    go_on.send(()).unwrap();
    for id in 0..jobs {
        let answer = answers.recv_timeout(PATIENCE).unwrap();
        assert_eq!((answer.id, answer.error.is_none()), (id.to_string(), true));
    }
    pool.close();
    // The other instance was dropped with the pool.
    assert_eq!((pool.leaving(), pool.0.lock().instances.iter().flatten().count()), (0, 0));
}

/// Sends a message when it is dropped.
struct ReportsDrop(Waits, mpsc::Sender<()>);

impl Compute for ReportsDrop {
    fn compute(&mut self, job: &mut Job, times: &mut Times) -> Result<(), Status> {
        self.0.compute(job, times)
    }
}

impl Drop for ReportsDrop {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

/// A run may itself request a load of its model. If the load waited for the run, both would wait for ever.
#[test]
fn removing_an_instance_does_not_wait_for_its_run() {
    let ((begun, runs), (go_on, goes_on), (gone, is_gone)) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
    let instance = Box::new(InOrder(ReportsDrop(Waits(begun, goes_on), gone)));
    let pool = pool_of(vec![instance], CostBound::Unknown, Box::new(Fifo::new()));
    let (to, answers) = mpsc::channel();
    pool.submit(job(0, &to).0, None);
    runs.recv().unwrap();
    for _ in 0..3 {
        let come = pool.add(vec![Box::new(InOrder(Act(|_| Ok(())))) as Box<dyn Instance>], vec![None], Vec::new());
        pool.submit(job(1, &to).0, None);
        assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "1");
        // The first added instance is removed together with the old one. When later ones are added, the old one still has its number.
        pool.remove(&[&come[..], &[0]].concat());
        assert!(!come.contains(&0) && pool.leaving() >= 1);
    }
    assert!(is_gone.try_recv().is_err() && answers.try_recv().is_err(), "it runs");
    go_on.send(()).unwrap();
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "0");
    pool.wait_for_removed();
    is_gone.try_recv().unwrap();
    pool.close();
}
