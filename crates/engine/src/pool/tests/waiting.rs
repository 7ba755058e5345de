//! Does code that hangs hold up its own requests only?

use nerite_backend::{BatchStrategy, WaitingRequest};
use nerite_schedule::{BatchPolicy, Batcher, PriorityLevels, QueuePolicy, Wants};

use super::*;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A pool whose jobs may wait for `timeout_us`.
fn pool_with(instances: usize, timeout_us: u64, strategy: Option<Box<dyn BatchStrategy>>) -> Pool {
    let default_policy = QueuePolicy { timeout_us, ..QueuePolicy::default() };
    let levels = PriorityLevels { default_policy, ..PriorityLevels::default() };
    let policy = BatchPolicy { rows_max: 4, preferred: vec![4], levels: levels.clone(), ..BatchPolicy::default() };
    let scheduling = Scheduling {
        scheduler: Box::new(Batcher::new(policy)),
        arrivals: Arrivals::new(levels, &[], Wants::default()),
        strategy,
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

/// A strategy that sends each question to the test, and waits for the answer of the test.
struct Slow {
    questions: mpsc::Sender<(String, std::thread::ThreadId)>,
    answers: mpsc::Receiver<bool>,
}

impl Slow {
    fn wait_for_answer(&self, what: String) -> bool {
        let _ = self.questions.send((what, std::thread::current().id()));
        self.answers.recv().unwrap_or_default()
    }
}

impl BatchStrategy for Slow {
    fn begins(&mut self, first: &WaitingRequest) {
        self.wait_for_answer(format!("begins {}", first.id));
    }

    fn may_join(&mut self, next: &WaitingRequest) -> bool {
        self.wait_for_answer(format!("may {} join", next.id))
    }

    fn ends(&mut self) {
        self.wait_for_answer("ends".to_owned());
    }
}

#[test]
fn a_strategy_is_asked_by_a_worker_while_the_queue_goes_on() {
    let ((question_sender, questions), (says, to_say), (to, answers)) =
        (mpsc::channel(), mpsc::channel(), mpsc::channel());
    let strategy = Slow { questions: question_sender, answers: to_say };
    let pool = pool_with(1, 0, Some(Box::new(strategy)));
    let next = || {
        let (what, thread) = questions.recv_timeout(PATIENCE).unwrap();
        assert_ne!(thread, std::thread::current().id(), "{what}");
        what
    };
    pool.submit(job(0, &to).0, None);
    assert_eq!(next(), "begins 0");
    // The strategy has not answered yet.
    let (second, cancel) = job(1, &to);
    pool.submit(second, None);
    (2..5).for_each(|id| pool.submit(job(id, &to).0, None));
    assert_eq!(pool.waiting(), 5);
    cancel.cancel();
    assert_eq!(answers.recv_timeout(PATIENCE).unwrap().id, "1");
    says.send(true).unwrap();
    assert_eq!(next(), "may 2 join");
    says.send(true).unwrap();
    assert_eq!(next(), "may 3 join");
    says.send(false).unwrap();
    // From now on the strategy answers no at once.
    drop(says);
    let ran: Vec<String> = (0..4).map(|_| answers.recv_timeout(PATIENCE).unwrap().id).collect();
    assert_eq!(ran, ["0", "2", "3", "4"]);
    pool.close();
}

#[test]
fn a_job_is_rejected_at_its_time_while_a_strategy_hangs() {
    let ((question_sender, questions), (says, to_say), (to, answers)) =
        (mpsc::channel(), mpsc::channel(), mpsc::channel());
    let pool = pool_with(2, 20_000, Some(Box::new(Slow { questions: question_sender, answers: to_say })));
    for id in 0..3 {
        pool.submit(job(id, &to).0, None);
    }
    assert_eq!(questions.recv_timeout(PATIENCE).unwrap().0, "begins 0");
    for _ in 0..3 {
        let error = answers.recv_timeout(PATIENCE).unwrap().error.unwrap();
        assert_eq!(error.message, "Request timeout expired");
    }
    assert_eq!(pool.waiting(), 0);
    drop(says);
    pool.close();
}

#[test]
fn a_batch_that_is_formed_runs_before_the_strategy_hears_of_its_end() {
    let ((question_sender, questions), (says, to_say), (to, answers)) =
        (mpsc::channel(), mpsc::channel(), mpsc::channel());
    let pool = pool_with(1, 0, Some(Box::new(Slow { questions: question_sender, answers: to_say })));
    pool.submit(job(0, &to).0, None);
    assert_eq!(questions.recv_timeout(PATIENCE).unwrap().0, "begins 0");
    says.send(true).unwrap();
    assert_eq!(questions.recv_timeout(PATIENCE).unwrap().0, "ends");
    // The strategy hangs there.
    assert_eq!(answers.try_recv().unwrap().id, "0");
    drop(says);
    pool.close();
}

/// Sends the number of references to the parameters of the first request of a batch.
struct Counts(mpsc::Sender<usize>);

impl BatchStrategy for Counts {
    fn begins(&mut self, first: &WaitingRequest) {
        self.0.send(Arc::strong_count(&first.parameters)).unwrap();
    }

    fn may_join(&mut self, _: &WaitingRequest) -> bool {
        false
    }

    fn ends(&mut self) {}
}

#[test]
fn the_parameters_of_a_request_are_not_copied_for_a_strategy() {
    let ((count_sender, counts), (to, answers)) = (mpsc::channel(), mpsc::channel());
    let pool = pool_with(1, 0, Some(Box::new(Counts(count_sender))));
    pool.submit(job(0, &to).0, None);
    // One reference is that of the question, and one is that of the job.
    assert_eq!(counts.recv_timeout(PATIENCE).unwrap(), 2);
    assert!(answers.recv_timeout(PATIENCE).unwrap().error.is_none());
    pool.close();
}

#[test]
fn work_that_a_refused_thread_was_to_do_wakes_one_that_sleeps() {
    let (to, answers) = mpsc::channel();
    let pool = pool_with(1, 0, None);
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
    let (theirs, ours) = (pool_with(0, 10_000, None), pool_with(0, 10_000, None));
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
    let pool = pool_with(0, 0, None);
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
    let pool = pool_with(0, 0, None);
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
    let pool = pool_with(0, 0, None);
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
