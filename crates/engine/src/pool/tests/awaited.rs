//! Does a run that no thread waits for end on the thread that sees its answer, or else on a worker?

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread::ThreadId;

use nerite_backend::Awaited;
use nerite_watchdog::{FrontEnd, fair};

use super::*;
use crate::watch::{Waiter, Watch, watch_by};

type Then = Box<dyn FnOnce() + Send>;

/// The callbacks that threads without [`THENS`] leave, by the descriptor that is awaited. Other descriptors than those that a test has inserted are
/// ignored.
static LEFT: Mutex<BTreeMap<RawFd, Vec<Then>>> = Mutex::new(BTreeMap::new());

/// How often a waiter released each descriptor. Other descriptors than those that a test has inserted are ignored.
static RELEASES: Mutex<BTreeMap<RawFd, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// `Some` on a thread that waits for sockets: the callbacks for when they are readable.
    static THENS: RefCell<Option<Vec<Then>>> = const { RefCell::new(None) };
}

struct ByHand;

impl Watch for ByHand {
    fn is_here(&self) -> bool {
        THENS.with_borrow(Option::is_some)
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::new(WaiterByHand::default())
    }
}

/// Waits for one instance.
#[derive(Default)]
struct WaiterByHand {
    /// The descriptor that it waited for last.
    descriptor: Mutex<Option<RawFd>>,
}

impl Waiter for WaiterByHand {
    fn when_readable(&self, what: Awaited, then: Then) {
        let mut then = Some(then);
        *self.descriptor.lock().unwrap() = Some(what.as_fd().as_raw_fd());
        THENS.with_borrow_mut(|thens| thens.iter_mut().for_each(|thens| thens.extend(then.take())));
        let mut left = LEFT.lock().unwrap();
        left.entry(what.as_fd().as_raw_fd()).and_modify(|thens| thens.extend(then.take()));
        // `then` is dropped without the lock, because a worker continues the run then.
        drop(left);
    }

    fn release(&self) {
        let Some(descriptor) = *self.descriptor.lock().unwrap() else { return };
        RELEASES.lock().unwrap().entry(descriptor).and_modify(|times| *times += 1);
    }
}

fn take_thens() -> Vec<Then> {
    THENS.with_borrow_mut(|thens| thens.as_mut().map(std::mem::take)).unwrap()
}

fn run_late(then: Then) {
    wait_until_late();
    then();
}

/// Has its work done elsewhere, and notes which thread takes it over.
struct Process {
    begun: Option<Batch>,
    took_over: Arc<Mutex<Vec<ThreadId>>>,
    socket: Arc<File>,
    /// Gets a message for each run that is begun, if a test sets it.
    begins: Option<mpsc::Sender<String>>,
}

impl Process {
    fn new(took_over: &Arc<Mutex<Vec<ThreadId>>>) -> Process {
        let socket = Arc::new(File::open("/dev/null").unwrap());
        Process { begun: None, took_over: Arc::clone(took_over), socket, begins: None }
    }
}

impl Instance for Process {
    fn run(&mut self, batch: Batch) {
        self.begun = Some(batch);
        self.finish();
    }

    fn begin(&mut self, batch: Batch, timeout: Duration) -> bool {
        assert_eq!(timeout, Duration::ZERO);
        if let Some(begins) = &self.begins {
            begins.send("begun".to_owned()).unwrap();
        }
        self.begun = Some(batch);
        false
    }

    fn finish(&mut self) {
        self.took_over.lock().unwrap().push(std::thread::current().id());
        for job in self.begun.take().unwrap().jobs {
            job.finish(Ok(()), Times::begin());
        }
    }

    fn awaited(&self) -> Option<Awaited> {
        Some(Arc::clone(&self.socket) as Awaited)
    }

    fn go_on(&mut self) -> bool {
        self.finish();
        true
    }
}

/// A pool of one such instance for a thread that waits for sockets, and the threads that took over its runs.
fn new_pool_of_process() -> (Pool, Arc<Mutex<Vec<ThreadId>>>) {
    watch_by(Box::new(ByHand));
    THENS.set(Some(Vec::new()));
    let took_over = Arc::default();
    let instance = Box::new(Process::new(&took_over)) as Box<dyn Instance>;
    (pool_of(vec![instance], CostBound::Timeout, Box::new(Fifo::new())), took_over)
}

/// The same after its first run, which started a worker.
fn pool_of_process() -> (Pool, Arc<Mutex<Vec<ThreadId>>>) {
    let (pool, took_over) = new_pool_of_process();
    let (to, answers) = mpsc::channel();
    pool.submit(job(1000, &to).0, None);
    assert_eq!(answers.recv_timeout(Duration::from_mins(1)).unwrap().id, "1000");
    let by = std::mem::take(&mut *took_over.lock().unwrap());
    assert!(!by.contains(&std::thread::current().id()), "a run was begun that no worker could take over");
    (pool, took_over)
}

#[test]
fn the_thread_that_sees_the_answer_takes_it_over_and_begins_the_next_run() {
    // On a busy machine this thread may be late, and a worker ends the run.
    let all_here = (0..50).any(|_| {
        let (pool, took_over) = pool_of_process();
        let (to, answers) = mpsc::channel();
        (0..3).for_each(|id| pool.submit(job(id, &to).0, None));
        for done in 0..3 {
            let Some(then) = take_thens().pop() else { break };
            then();
            assert_eq!(answers.recv().unwrap().id, done.to_string());
        }
        pool.close();
        let took_over = took_over.lock().unwrap();
        assert_eq!(took_over.len(), 3);
        took_over.iter().all(|thread| *thread == std::thread::current().id())
    });
    assert!(all_here, "a worker was woken each time");
}

#[test]
fn a_worker_leaves_the_next_run_to_front_threads_after_a_fast_one() {
    watch_by(Box::new(ByHand));
    // On a busy machine the worker's first run may take long, and it does the others itself.
    let was_left = (0..50).any(|_| {
        let took_over = Arc::default();
        let process = Process::new(&took_over);
        let (socket, (to, answers)) = (Arc::clone(&process.socket), mpsc::channel());
        let descriptor = socket.as_raw_fd();
        LEFT.lock().unwrap().insert(descriptor, Vec::new());
        let pool = pool_of(vec![Box::new(process)], CostBound::Timeout, Box::new(Fifo::new()));
        // This thread waits for no sockets, so a worker has the first run, and the others wait for it.
        (0..3).for_each(|id| pool.submit(job(id, &to).0, None));
        let (mut answered, mut left, until) = (0, None, Instant::now() + Duration::from_mins(1));
        while answered < 3 && left.is_none() {
            assert!(Instant::now() < until, "{answered} of 3 are answered, and none is left to front threads");
            left = LEFT.lock().unwrap().get_mut(&descriptor).and_then(Vec::pop);
            answered += answers.try_iter().count();
            std::thread::yield_now();
        }
        LEFT.lock().unwrap().remove(&descriptor);
        // When the callback is dropped, the worker continues the run, and does the last one as well.
        let was_left = left.take().is_some();
        pool.close();
        assert_eq!(took_over.lock().unwrap().len(), 3, "each request is run once");
        was_left
    });
    assert!(was_left, "the worker kept the queue each time");
}

#[test]
fn the_next_run_is_begun_before_the_last_one_is_answered() {
    // On a busy machine this thread may be late, and a worker ends the run.
    let was_first = (0..50).any(|_| {
        watch_by(Box::new(ByHand));
        THENS.set(Some(Vec::new()));
        let (to, happened) = mpsc::channel();
        let process = Process { begins: Some(to.clone()), ..Process::new(&Arc::default()) };
        let pool = pool_of(vec![Box::new(process)], CostBound::Timeout, Box::new(Fifo::new()));
        let submit = |id: usize| {
            let to = to.clone();
            pool.submit(job_to(id, move |_| drop(to.send(format!("answered {id}")))).0, None);
        };
        let next = || happened.recv_timeout(Duration::from_mins(1)).unwrap();
        // A worker does this one.
        submit(0);
        assert_eq!(next(), "answered 0");
        submit(1);
        submit(2);
        (0..2).for_each(|_| take_thens().into_iter().for_each(|then| then()));
        pool.close();
        let all: Vec<String> = happened.try_iter().collect();
        assert_eq!(all.iter().filter(|one| one.starts_with("answered")).count(), 2, "{all:?}");
        all == ["begun", "begun", "answered 1", "answered 2"]
    });
    assert!(was_first, "each answer was sent before the next run was begun");
}

#[test]
fn what_is_late_or_cannot_be_watched_ends_on_a_worker() {
    for (number, end) in [run_late as fn(Then), drop].into_iter().enumerate() {
        let (pool, took_over) = pool_of_process();
        let (to, answers) = mpsc::channel();
        pool.submit(job(number, &to).0, None);
        end(take_thens().pop().unwrap());
        assert_eq!(answers.recv().unwrap().id, number.to_string());
        pool.close();
        assert!(!took_over.lock().unwrap().contains(&std::thread::current().id()), "way {number}");
    }
}

#[test]
fn a_descriptor_is_released_before_a_worker_may_wait_for_it() {
    watch_by(Box::new(ByHand));
    THENS.set(Some(Vec::new()));
    let process = Process::new(&Arc::default());
    let (socket, (to, answers)) = (Arc::clone(&process.socket), mpsc::channel::<Answer>());
    let descriptor = socket.as_raw_fd();
    RELEASES.lock().unwrap().insert(descriptor, 0);
    let pool = pool_of(vec![Box::new(process)], CostBound::Timeout, Box::new(Fifo::new()));
    let check_releases = |releases: usize| {
        assert!(answers.recv_timeout(Duration::from_mins(1)).unwrap().error.is_none());
        assert_eq!(RELEASES.lock().unwrap()[&descriptor], releases);
    };
    // A worker does this run, because there is no worker yet that could take it over. Front threads did not wait for the descriptor.
    pool.submit(job(0, &to).0, None);
    check_releases(0);
    for (id, end) in [(1, drop as fn(Then)), (2, run_late)] {
        pool.submit(job(id, &to).0, None);
        end(take_thens().pop().unwrap());
        check_releases(id);
    }
    // A worker leaves a run to front threads only after a fast one, so it does this one itself.
    THENS.set(None);
    pool.submit(job(3, &to).0, None);
    check_releases(3);
    pool.close();
    RELEASES.lock().unwrap().remove(&descriptor);
}

fn wait_until_late() {
    let until = Instant::now() + 2 * Duration::from_nanos(crate::limits::TAKEN_OVER_NS_MAX);
    while Instant::now() < until {
        std::thread::yield_now();
    }
}

#[test]
fn without_threads_no_run_is_begun_whose_answer_another_request_could_get() {
    let (pool, took_over) = new_pool_of_process();
    let (to, answers) = mpsc::channel();
    REFUSES_THREADS.set(true);
    for id in 0..2 {
        pool.submit(job(id, &to).0, None);
        wait_until_late();
        for then in take_thens() {
            then();
        }
        let answer = answers.recv_timeout(Duration::from_mins(1)).unwrap();
        assert_eq!((answer.id, answer.error.unwrap().code), (id.to_string(), Code::Unavailable));
    }
    REFUSES_THREADS.set(false);
    pool.submit(job(2, &to).0, None);
    assert_eq!(answers.recv_timeout(Duration::from_mins(1)).unwrap().id, "2");
    assert_eq!(took_over.lock().unwrap().len(), 1, "only the run that a worker did");
    pool.close();
}

#[test]
fn late_runs_end_on_the_workers_that_there_are_once_the_system_refuses_threads() {
    let (pool, took_over) = pool_of_process();
    pool.add(vec![Box::new(Process::new(&took_over))], vec![None], Vec::new());
    let (to, answers) = mpsc::channel();
    (0..2).for_each(|id| pool.submit(job(id, &to).0, None));
    REFUSES_THREADS.set(true);
    let thens = take_thens();
    assert_eq!(thens.len(), 2, "both are begun");
    wait_until_late();
    for then in thens {
        then();
    }
    let mut all = [0; 2].map(|_| answers.recv_timeout(Duration::from_mins(1)).unwrap());
    REFUSES_THREADS.set(false);
    all.sort_by(|one, other| one.id.cmp(&other.id));
    assert!(all.iter().enumerate().all(|(id, answer)| answer.id == id.to_string() && answer.error.is_none()));
    pool.close();
    assert!(!took_over.lock().unwrap().contains(&std::thread::current().id()));
}

/// Does `work` in a poll of a task of this flow.
fn poll_in(flow: &Flow, work: impl FnOnce()) {
    let mut task = pin!(fair(FrontEnd::Server, flow, async { work() }));
    assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn the_time_of_an_answer_is_charged_to_the_connection_that_asked() {
    const LONG: Duration = Duration::from_millis(1);
    // On a busy machine this thread may be late, and a worker ends the run.
    let was_here = (0..50).any(|_| {
        let (pool, _) = pool_of_process();
        let (sender, observer) = (Flow::alone(), Flow::alone());
        let (to, answers) = mpsc::channel();
        let takes_long = move |_| {
            let begun = Instant::now();
            while begun.elapsed() < LONG {}
            to.send(std::thread::current().id()).unwrap();
        };
        poll_in(&sender, || pool.submit(job_to(1, takes_long).0, None));
        let before = [&sender, &observer].map(Flow::served_ns);
        let then = take_thens().pop().unwrap();
        poll_in(&observer, then);
        let is_here = answers.recv().unwrap() == std::thread::current().id();
        let after = [&sender, &observer].map(Flow::served_ns);
        let [submitted, saw] = [0, 1].map(|at| Duration::from_nanos(after[at] - before[at]));
        pool.close();
        assert!(!is_here || submitted >= LONG, "{submitted:?} and {saw:?}");
        is_here && saw < LONG
    });
    assert!(was_here, "a worker was woken each time");
}
