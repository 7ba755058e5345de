//! Do requests go to instances whose processes run?

use std::sync::atomic::{AtomicBool, Ordering};

use nerite_backend::{Readiness, ReadinessDone};
use nerite_locks::Mutex;
use nerite_request::SequenceId;
use nerite_schedule::{Direct, DirectPolicy};

use super::*;

/// The process of an instance.
#[derive(Default)]
struct Process {
    is_down: AtomicBool,
    /// Whether it dies in its next run.
    dies: AtomicBool,
    watcher: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

impl Process {
    fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
        self.watcher.lock().unwrap().as_ref().unwrap()();
    }
}

impl Readiness for Process {
    fn check(self: Arc<Self>, done: ReadinessDone) {
        done(Ok(()));
    }

    fn fault(&self) -> Option<Status> {
        None
    }

    fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    fn watch(&self, changed: Box<dyn Fn() + Send + Sync>) {
        *self.watcher.lock().unwrap() = Some(changed);
    }
}

/// An instance that reports its number when it runs.
struct Numbered(usize, Arc<Process>, mpsc::Sender<usize>);

impl Instance for Numbered {
    fn run(&mut self, batch: Batch) {
        self.2.send(self.0).unwrap();
        if self.1.dies.swap(false, Ordering::Relaxed) {
            self.1.is_down.store(true, Ordering::Relaxed);
        }
        for job in batch.jobs {
            job.finish(Ok(()), Times::begin());
        }
    }

    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        Some(Arc::clone(&self.1) as _)
    }

    fn is_down(&self) -> bool {
        self.1.is_down()
    }
}

struct Rig {
    pool: Pool,
    processes: Vec<Arc<Process>>,
    ran: mpsc::Receiver<usize>,
}

fn rig(instances: usize) -> Rig {
    rig_with(instances, Box::new(Fifo::new()))
}

fn rig_with(instances: usize, scheduler: Box<dyn Scheduler + Send>) -> Rig {
    let processes: Vec<_> = (0..instances).map(|_| Arc::new(Process::default())).collect();
    let (to, ran) = mpsc::channel();
    let each = processes.iter().enumerate();
    let all = each.map(|(number, one)| Box::new(Numbered(number, Arc::clone(one), to.clone())) as Box<dyn Instance>);
    Rig { pool: pool_of(all.collect(), CostBound::Unknown, scheduler), processes, ran }
}

/// A rig whose instances have places for `rows_max` sequences each.
fn rig_of_sequences(instances: usize, rows_max: usize) -> Rig {
    let policy = DirectPolicy { instances, rows_max, idle_us: 600_000_000, ..DirectPolicy::default() };
    rig_with(instances, Box::new(Direct::new(policy)))
}

impl Rig {
    /// The instance that runs the next request.
    fn next(&self) -> usize {
        let (to, answers) = mpsc::channel();
        self.pool.submit(job(1, &to).0, None);
        assert_eq!(answers.recv_timeout(Duration::from_mins(1)).unwrap().error, None);
        self.ran.recv().unwrap()
    }

    /// Sends a request of a sequence.
    fn send(&self, sequence: u64, start: bool) -> mpsc::Receiver<Option<Status>> {
        let (to, answers) = mpsc::channel();
        let reply = Reply::new(move |response: Response| {
            drop(to.send(response.into_content().and_then(Result::err)));
        });
        let sequence = Sequence { id: SequenceId::Number(sequence), start, end: false };
        let request = AdmittedRequest { sequence, ..AdmittedRequest::cancelled_by(Cancel::new(), reply) };
        self.pool.submit(Job::new(request, ModelVersion::unmetered("m").begin(), now_ns()), None);
        answers
    }

    /// The instance that runs a request of a sequence.
    fn step(&self, sequence: u64, start: bool) -> usize {
        assert_eq!(self.send(sequence, start).recv_timeout(Duration::from_mins(1)).unwrap(), None);
        self.ran.recv().unwrap()
    }

    #[track_caller]
    fn check(&self, expect: &[usize]) {
        let mut found: Vec<_> = (0..8).map(|_| self.next()).collect();
        found.sort_unstable();
        found.dedup();
        assert!(found.iter().all(|number| expect.contains(number)), "{found:?} and not {expect:?}");
    }
}

#[test]
fn an_instance_whose_process_died_gets_no_request_until_the_next_process_is_up() {
    let rig = rig(3);
    rig.processes[0].set_down(true);
    rig.check(&[1, 2]);
    rig.processes[2].set_down(true);
    rig.check(&[1]);
    assert_eq!(rig.pool.idle(), [1]);
    rig.processes[0].set_down(false);
    rig.processes[1].set_down(true);
    rig.check(&[0]);
    // If no instance is up, requests go to those that are down, and wait there for the next process.
    rig.processes[0].set_down(true);
    rig.check(&[0, 1, 2]);
    rig.processes[2].set_down(false);
    rig.check(&[2]);
}

#[test]
fn an_instance_whose_process_died_in_its_run_gets_no_further_request() {
    let rig = rig(2);
    for process in &rig.processes {
        process.dies.store(true, Ordering::Relaxed);
    }
    // The process does not report its death. The pool sees it when the instance is given back.
    let dead = rig.next();
    rig.processes[1 - dead].dies.store(false, Ordering::Relaxed);
    rig.check(&[1 - dead]);
    rig.processes[dead].set_down(false);
    rig.processes[1 - dead].set_down(true);
    rig.check(&[dead]);
}

#[test]
fn new_sequences_go_to_instances_that_are_up_and_bound_ones_run_where_they_are() {
    let rig = rig_of_sequences(2, 4);
    let bound = rig.step(1, true);
    let other = 1 - bound;
    rig.processes[bound].set_down(true);
    assert_eq!([2, 3, 4].map(|sequence| rig.step(sequence, true)), [other; 3]);
    // A request of a bound sequence waits there for the next process, for a time that the instance limits, or gets its error. The instance of this
    // test answers at once.
    assert_eq!(rig.step(1, false), bound);
    // Now no instance is up, so all are used.
    rig.processes[other].set_down(true);
    assert_eq!(rig.step(5, true), bound);
    rig.processes[other].set_down(false);
    assert_eq!(rig.step(6, true), other);
}

#[test]
fn a_sequence_without_a_place_at_an_instance_that_is_up_waits_for_one() {
    let rig = rig_of_sequences(2, 1);
    rig.processes[0].set_down(true);
    assert_eq!(rig.step(1, true), 1);
    let waiting = rig.send(2, true);
    assert_eq!(rig.step(1, false), 1);
    assert!(waiting.try_recv().is_err());
    rig.processes[0].set_down(false);
    assert_eq!(waiting.recv_timeout(Duration::from_mins(1)).unwrap(), None);
    assert_eq!(rig.ran.recv().unwrap(), 0);
}

#[test]
fn an_instance_that_dies_in_the_run_of_a_sequence_gets_no_new_sequence() {
    let rig = rig_of_sequences(2, 4);
    rig.processes.iter().for_each(|process| process.dies.store(true, Ordering::Relaxed));
    let bound = rig.step(1, true);
    rig.processes[1 - bound].dies.store(false, Ordering::Relaxed);
    assert_eq!([2, 3, 4].map(|sequence| rig.step(sequence, true)), [1 - bound; 3]);
    assert_eq!(rig.step(1, false), bound);
}

#[test]
fn the_only_instance_gets_requests_although_its_process_died() {
    let rig = rig(1);
    rig.processes[0].set_down(true);
    rig.check(&[0]);
}

#[test]
fn instances_that_are_down_can_be_removed_and_their_numbers_used_again() {
    let rig = rig(3);
    rig.processes[0].set_down(true);
    rig.pool.remove(&[0]);
    assert_eq!(rig.pool.leaving(), 0);
    // A late report of the removed instance does not change the new one with the same number.
    let (to, _ran) = mpsc::channel();
    let added = Arc::new(Process::default());
    assert_eq!(rig.pool.add(vec![Box::new(Numbered(7, Arc::clone(&added), to))], vec![None], Vec::new()), [0]);
    rig.processes[0].set_down(true);
    assert_eq!(rig.pool.idle(), [0, 1, 2]);
    rig.pool.remove(&[0]);
    rig.processes[1].set_down(true);
    rig.check(&[2]);
    // The last instance that is up is removed.
    rig.pool.remove(&[2]);
    rig.check(&[1]);
    assert_eq!(rig.pool.leaving(), 0);
}

#[test]
fn a_removed_instance_that_is_down_gets_no_sequence() {
    let rig = rig_of_sequences(2, 1);
    rig.processes[0].set_down(true);
    assert_eq!(rig.step(1, true), 1);
    let waiting = rig.send(2, true);
    rig.pool.remove(&[0]);
    assert_eq!((rig.pool.leaving(), waiting.try_recv().is_err()), (0, true));
    let (to, ran) = mpsc::channel();
    rig.pool.add(vec![Box::new(Numbered(7, Arc::default(), to))], vec![None], Vec::new());
    assert_eq!(waiting.recv_timeout(Duration::from_mins(1)).unwrap(), None);
    assert_eq!(ran.recv().unwrap(), 7);
}

#[test]
fn an_instance_that_is_down_gets_sequences_when_the_others_are_removed() {
    let rig = rig_of_sequences(2, 1);
    rig.processes[0].set_down(true);
    assert_eq!(rig.step(1, true), 1);
    let waiting = rig.send(2, true);
    rig.pool.remove(&[1]);
    assert_eq!(waiting.recv_timeout(Duration::from_mins(1)).unwrap(), None);
    assert_eq!((rig.ran.recv().unwrap(), rig.step(1, false), rig.pool.leaving()), (0, 1, 1));
}
