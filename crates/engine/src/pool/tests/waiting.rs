//! Does code that hangs hold up its own requests only?

use nerite_schedule::{BatchPolicy, Batcher, PriorityLevels, QueuePolicy, Wants};

use super::*;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A pool whose jobs may wait for `timeout_us`.
fn pool_with(instances: usize, timeout_us: u64) -> Pool {
    let default_policy = QueuePolicy { timeout_us, ..QueuePolicy::default() };
    let levels = PriorityLevels { default_policy, ..PriorityLevels::default() };
    let policy = BatchPolicy { rows_max: 4, preferred: vec![4], levels: levels.clone(), ..BatchPolicy::default() };
    let scheduling = Scheduling {
        scheduler: Box::new(Batcher::new(policy)),
        arrivals: Arrivals::new(levels, &[], Wants::default()),
        preserve_ordering: false,
        requests_max: usize::MAX,
        claims: None,
        cores: None,
    };
    let all = (0..instances).map(|_| Box::new(InOrder(Act(|_| Ok(())))) as Box<dyn Instance>).collect();
    let reject = |job: Job, rejection: Rejection| job.refuse(Status::unavailable(rejection.sentence()));
    let version = ModelVersion::unmetered("m");
    Pool::new("test", all, CostBound::InputSizes, scheduling, None, version, Box::new(reject))
}

#[test]
fn work_that_a_refused_thread_was_to_do_wakes_one_that_sleeps() {
    let (to, answers) = mpsc::channel();
    let pool = pool_with(1, 0);
    pool.submit(job(0, &to).0, None);
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "0");
    let begun = Instant::now();
    while pool.0.lock().sleeping == 0 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let mut state = pool.0.lock();
    let queued = Queued { job: job(1, &to).0, number: 1, size: None, flow: None };
    state.driver.arrive(queued, |ticket| Arrival::new(ticket, 1), now_us());
    let run = state.next_run().unwrap();
    state.ready.push_back(run);
    // The worker whose thread is refused.
    state.workers += 1;
    drop(state);
    pool.0.without_worker(&std::io::ErrorKind::WouldBlock.into());
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "1");
    pool.close();
}

/// A reply that returns only when the test drops the other end of its channel.
struct Hangs(mpsc::Sender<()>, Arc<Mutex<mpsc::Receiver<()>>>);

impl nerite_request::Deliver for Hangs {
    fn deliver(&mut self, _: Response) {
        let _ = self.0.send(());
        let _ = self.1.lock().unwrap().recv();
    }

    fn may_wait(&self) -> bool {
        true
    }
}

#[test]
fn code_that_hangs_when_it_hears_of_a_timeout_stops_no_other_timeout() {
    let ((begun_sender, begun), (held, release)) = (mpsc::channel(), mpsc::channel::<()>());
    let release = Arc::new(Mutex::new(release));
    let (theirs, ours) = (pool_with(0, 10_000), pool_with(0, 10_000));
    let hanging = |id| {
        let reply = Reply::through(Hangs(begun_sender.clone(), Arc::clone(&release)));
        job_with(id, ModelVersion::unmetered("m").begin(), reply).0
    };
    theirs.submit(hanging(0), None);
    begun.recv_timeout(PATIENCE).unwrap();
    let (to, answers) = mpsc::channel();
    for (id, pool) in [&ours, &theirs].into_iter().enumerate() {
        pool.submit(job(id, &to).0, None);
        assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, id.to_string());
    }
    // It does not stop other answers that may wait, either.
    theirs.submit(job_with(1, ModelVersion::unmetered("m").begin(), Reply::through(Waits(to.clone()))).0, None);
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "may wait");
    drop(held);
    drop((ours, theirs));
}

/// A job whose answer hangs.
fn hanging(begun_sender: &mpsc::Sender<()>, release: &Arc<Mutex<mpsc::Receiver<()>>>) -> Job {
    let reply = Reply::through(Hangs(begun_sender.clone(), Arc::clone(release)));
    job_with(0, ModelVersion::unmetered("m").begin(), reply).0
}

fn waiting(to: &mpsc::Sender<Answer>) -> Job {
    job_with(1, ModelVersion::unmetered("m").begin(), Reply::through(Waits(to.clone()))).0
}

#[test]
fn an_answer_that_hangs_does_not_hold_up_one_that_is_due_at_the_same_time() {
    let ((begun_sender, begun), (held, release), (to, answers)) =
        (mpsc::channel(), mpsc::channel::<()>(), mpsc::channel());
    let release = Arc::new(Mutex::new(release));
    let pool = pool_with(0, 0);
    let late = |job| (job, Rejection::TimedOut);
    pool.0.reject_all(vec![late(hanging(&begun_sender, &release)), late(waiting(&to))], false);
    begun.recv_timeout(PATIENCE).unwrap();
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "may wait");
    drop(held);
}

#[test]
fn a_thread_that_the_system_refuses_is_replaced_by_this_one_only_if_there_is_no_other() {
    let ((begun_sender, begun), (held, release), (to, answers)) =
        (mpsc::channel(), mpsc::channel::<()>(), mpsc::channel());
    let release = Arc::new(Mutex::new(release));
    let pool = pool_with(0, 0);
    let reject = |job| pool.0.reject_all(vec![(job, Rejection::TimedOut)], false);
    REFUSES_THREADS.set(true);
    reject(waiting(&to));
    assert_eq!(answers.try_recv().unwrap().id, "may wait");
    REFUSES_THREADS.set(false);
    reject(hanging(&begun_sender, &release));
    begun.recv_timeout(PATIENCE).unwrap();
    REFUSES_THREADS.set(true);
    reject(waiting(&to));
    REFUSES_THREADS.set(false);
    // The other thread hangs.
    assert!(answers.try_recv().is_err());
    drop(held);
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "may wait");
}

#[test]
fn a_timeout_that_sends_the_held_answer_of_another_job_does_not_wait_for_it() {
    let (to, threads) = mpsc::channel();
    let (own, answers) = mpsc::channel();
    let order = ResponseOrder::new(ORDERED);
    let pool = pool_with(0, 0);
    let shared = &pool.0;
    let (mut first, _) = job(0, &own);
    first.answer_by(|reply| order.in_turn(reply));
    let mut second = job_with(1, ModelVersion::unmetered("m").begin(), Reply::through(Waiting(to))).0;
    second.answer_by(|reply| order.in_turn(reply));
    // The pool notes this when the second job arrives.
    let mut state = shared.lock();
    state.order = Some(order);
    state.answers_may_wait = true;
    second.refuse(Status::unavailable("held"));
    assert!(threads.try_recv().is_err());
    let mut work = shared.settle(&mut state, false);
    drop(state);
    work.rejected.push((first, Rejection::TimedOut));
    shared.carry_out(work);
    assert_ne!(threads.recv_timeout(PATIENCE).unwrap(), std::thread::current().id());
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "0");
}

struct Waits(mpsc::Sender<Answer>);

impl nerite_request::Deliver for Waits {
    fn deliver(&mut self, _: Response) {
        let _ = self.0.send(Answer { id: "may wait".to_owned(), error: None });
    }

    fn may_wait(&self) -> bool {
        true
    }
}
