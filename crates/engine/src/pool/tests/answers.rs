//! When is an answer given, and what may follow from it?

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Keeps the responders of its jobs, so that the test answers after the run.
struct Later(Arc<Mutex<Vec<nerite_backend::Responder>>>);

impl Instance for Later {
    fn run(&mut self, batch: Batch) {
        self.0.lock().unwrap().extend(batch.jobs.into_iter().map(|job| job.divide().1));
    }
}

#[test]
fn closing_waits_for_responders_that_outlive_their_run() {
    let held = Arc::default();
    let pool = pool_of(vec![Box::new(Later(Arc::clone(&held)))], CostBound::Unknown, Box::new(Fifo::new()));
    let (to, answers) = mpsc::channel();
    (0..3).for_each(|id| pool.submit(job_in(&pool, id, &to), None));
    while held.lock().unwrap().len() < 3 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| pool.close());
        for left in [2, 1, 0] {
            assert!(!closing.is_finished());
            let responder = held.lock().unwrap().pop().unwrap();
            responder.finish(Ok(()), Times::begin());
            answers.recv().unwrap();
            assert!(left == 0 || pool.0.requests.in_flight() == left);
        }
    });
}

#[test]
fn a_request_made_within_an_answer_finds_the_instance_idle() {
    for bound in [CostBound::InputSizes, CostBound::Unknown] {
        let held = Arc::new(AtomicBool::new(false));
        let instance = Box::new(Exclusive(Arc::clone(&held))) as Box<dyn Instance>;
        let pool = Arc::new(pool_of(vec![instance], bound, Box::new(Fifo::new())));
        let (to, answers) = mpsc::channel();
        // So many that the stack would overflow if each ran within the answer of the one before.
        const CHAIN: usize = 50_000;
        chain(&pool, CHAIN, held, to);
        assert!(answers.iter().eq((0..CHAIN).rev()));
        pool.close();
    }
}

/// Submits a request, and submits the next one within its answer, `left` times in all.
fn chain(pool: &Arc<Pool>, left: usize, held: Arc<AtomicBool>, to: mpsc::Sender<usize>) {
    let Some(left) = left.checked_sub(1) else { return };
    let again = Arc::downgrade(pool);
    let (job, _) = job_to(left, move |response| {
        assert!(matches!(response, Response::Final(_)), "{response:?}");
        assert!(!held.load(Ordering::SeqCst), "it is answered after its run");
        to.send(left).unwrap();
        chain(&again.upgrade().unwrap(), left, Arc::clone(&held), to.clone());
    });
    pool.submit(job, None);
}

/// Sets a flag while it runs.
struct Exclusive(Arc<AtomicBool>);

impl Instance for Exclusive {
    fn run(&mut self, batch: Batch) {
        assert!(!self.0.swap(true, Ordering::SeqCst), "it runs one at a time");
        batch.jobs.into_iter().for_each(|job| job.finish(Ok(()), Times::begin()));
        self.0.store(false, Ordering::SeqCst);
    }
}

#[test]
fn a_panic_in_one_answer_does_not_lose_the_others() {
    let pool = pool(1, |_| Ok(()));
    let (to, answers) = mpsc::channel();
    for id in 0..20 {
        pool.submit(job_to(id, |_| panic!("thrown on purpose")).0, None);
        pool.submit(job(id, &to).0, None);
        assert!(answers.recv().unwrap().error.is_none());
    }
    pool.close();
}

/// Sends a message when it is dropped.
struct ReportsDrop(Later, mpsc::Sender<()>);

impl Instance for ReportsDrop {
    fn run(&mut self, batch: Batch) {
        self.0.run(batch);
    }
}

impl Drop for ReportsDrop {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

#[test]
fn an_instance_outlives_its_responders() {
    let (held, (gone, is_gone)) = (Arc::default(), mpsc::channel());
    let instance = Box::new(ReportsDrop(Later(Arc::clone(&held)), gone));
    let pool = pool_of(vec![instance], CostBound::Unknown, Box::new(Fifo::new()));
    let (to, answers) = mpsc::channel();
    pool.submit(job_in(&pool, 1, &to), None);
    let responder = loop {
        if let Some(responder) = held.lock().unwrap().pop() {
            break responder;
        }
        std::thread::yield_now();
    };
    drop(pool);
    assert_eq!(is_gone.recv_timeout(Duration::from_millis(20)), Err(mpsc::RecvTimeoutError::Timeout));
    responder.finish(Ok(()), Times::begin());
    answers.recv().unwrap();
    is_gone.recv().unwrap();
}
