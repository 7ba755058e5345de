//! Which tasks run first on a real runtime?
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::*;
use crate::{FrontEnd, charging, current_flow, fair};

mod stalls;

/// More than [`QUANTUM_NS`], and enough to make a peer a heavy user at once.
const LONG: Duration = Duration::from_millis(6);
const TASKS: usize = 20;
/// Polls after which every task has run.
const ALL: u64 = 2 * TASKS as u64;
const LOOKS: usize = 40;
const TRIES: usize = 5;

/// Keeps the thread busy.
fn work() {
    let begun = Instant::now();
    while begun.elapsed() < LONG {}
}

/// One thread, as the server has on a small machine.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// What the busy tasks of a test share.
#[derive(Clone, Default)]
struct Crowd {
    polls: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Crowd {
    fn work(&self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {}
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }
}

/// Wakes a task of the flow `little` again and again and counts how many polls of the crowd ran before each of its polls. Begins when
/// the crowd had `before` polls.
#[expect(clippy::disallowed_methods, reason = "the task of the test takes long")]
fn polls_before(crowd: impl FnOnce(&Runtime, &Crowd), before: u64, little: &Flow) -> Vec<u64> {
    let (found, runtime) = (Crowd::default(), runtime());
    crowd(&runtime, &found);
    // A socket, as clients use: a task that is woken by another thread would go into the global queue.
    let (mut sender, receiver) = std::os::unix::net::UnixStream::pair().unwrap();
    receiver.set_nonblocking(true).unwrap();
    let (heard, mut hears) = mpsc::unbounded_channel();
    let looking = {
        let polls = Arc::clone(&found.polls);
        async move {
            let mut receiver = tokio::net::UnixStream::from_std(receiver).unwrap();
            while receiver.read_u8().await.is_ok() {
                let _ = heard.send(polls.load(Ordering::Relaxed));
            }
        }
    };
    runtime.spawn(fair(FrontEnd::Grpc, little, looking));
    // By then the crowd counts as a heavy user.
    while found.polls.load(Ordering::Relaxed) < before {
        std::thread::sleep(LONG);
    }
    let looks = (0..LOOKS).map(|_| {
        sender.write_all(&[1]).unwrap();
        // Read after the wake: on a busy machine the difference becomes smaller, not larger.
        let before = found.polls.load(Ordering::Relaxed);
        hears.blocking_recv().unwrap().saturating_sub(before)
    });
    let looks = looks.collect();
    found.ended.store(true, Ordering::Relaxed);
    runtime.shutdown_background();
    looks
}

/// Spawns [`TASKS`] tasks that are always ready, each of a flow that `flow` returns.
fn always_ready(runtime: &Runtime, crowd: &Crowd, flow: impl Fn() -> Flow) {
    for _ in 0..TASKS {
        let crowd = crowd.clone();
        let busy = async move {
            while crowd.is_on() {
                crowd.work(LONG);
                tokio::task::yield_now().await;
            }
        };
        runtime.spawn(fair(FrontEnd::Http, &flow(), busy));
    }
}

/// The poll that was running, and one task that had been woken.
const MOST: u64 = 2;

#[test]
#[ignore = "alone: order follows from polls measured in milliseconds"]
fn a_light_user_waits_for_one_poll_of_heavy_users() {
    let queue = FairQueue::default();
    let found =
        polls_before(|runtime, crowd| always_ready(runtime, crowd, || queue.open("much")), ALL, &queue.open("little"));
    assert!(found.iter().all(|polls| *polls <= MOST), "{found:?}");
}

#[test]
#[ignore = "alone: order follows from polls measured in milliseconds"]
fn of_one_peers_connections_the_one_with_the_least_service_goes_first() {
    let queue = FairQueue::default();
    let found =
        polls_before(|runtime, crowd| always_ready(runtime, crowd, || queue.open("peer")), ALL, &queue.open("peer"));
    assert!(found.iter().all(|polls| *polls <= MOST), "{found:?}");
}

#[test]
#[ignore = "alone: order follows from polls measured in milliseconds"]
fn without_a_common_queue_a_task_waits_for_all_others() {
    // The machine may suspend this thread until all other tasks are done. The thread then sees none of their polls. So one of several tries suffices.
    let mut tries = (0..TRIES)
        .map(|_| polls_before(|runtime, crowd| always_ready(runtime, crowd, Flow::alone), ALL, &Flow::alone()));
    assert!(tries.any(|found| found.iter().any(|polls| *polls >= TASKS as u64 / 2)), "the test can fail");
}

#[test]
fn all_waiting_tasks_run_in_the_end_and_a_dropped_task_waits_no_more() {
    let (queue, runtime) = (FairQueue::default(), runtime());
    let flow = queue.open("peer");
    let task = |flow: &Flow| {
        fair(FrontEnd::Http, flow, async {
            work();
            tokio::task::yield_now().await;
            work();
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(|_| runtime.spawn(task(&flow))).collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(queue.waiting(), 0);
    let tasks: Vec<_> = (0..TASKS).map(|_| runtime.spawn(task(&flow))).collect();
    while queue.waiting() == 0 {
        std::thread::yield_now();
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    runtime.block_on(async {
        for task in tasks {
            let _ = task.await;
        }
    });
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn a_single_peer_does_not_wait_when_threads_have_nothing_else_to_run() {
    let (queue, now_ns) = (FairQueue::default(), now_ns());
    let flow = queue.open("peer");
    flow.charge(now_ns, 1_000_000_000);
    assert!(flow.must_wait(now_ns));
    queue.thread_parks();
    assert!(!flow.must_wait(now_ns));
}

#[test]
fn tasks_of_a_flow_that_becomes_urgent_wait_no_more() {
    struct Woken(AtomicU64);
    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (queue, woken, now_ns) = (FairQueue::default(), Arc::new(Woken(AtomicU64::new(0))), now_ns());
    let waker = Arc::clone(&woken).into();
    let cx = Context::from_waker(&waker);
    let (flow, other) = (queue.open("peer"), queue.open("peer"));
    flow.charge(now_ns, 1_000_000_000);
    let new = |flow: &Flow| Task { flow: flow.clone(), position: None };
    let (mut tasks, mut others) = ([new(&flow), new(&flow)], new(&other));
    let _inside = runtime().enter();
    assert!(tasks.iter_mut().chain([&mut others]).all(|task| task.poll_permission(&cx, now_ns).is_pending()));
    assert_eq!(queue.waiting(), 3);
    flow.make_urgent();
    assert_eq!((queue.waiting(), woken.0.load(Ordering::Relaxed)), (1, 2));
    // The second time as well.
    for _ in 0..2 {
        assert!(tasks.iter_mut().all(|task| task.poll_permission(&cx, now_ns).is_ready()));
    }
    assert!(others.poll_permission(&cx, now_ns).is_pending() && flow.0.waiting().is_empty());
    drop(others);
    assert_eq!((queue.waiting(), other.0.waiting().len()), (0, 0));
}

#[test]
fn names_of_closed_peers_are_dropped() {
    let queue = FairQueue::default();
    let stays = queue.open("stays");
    for number in 0..1000 {
        queue.open(&format!("peer {number}"));
    }
    assert!(queue.0.peers().known.len() <= PEERS_MIN);
    assert!(Arc::ptr_eq(&queue.open("stays").0.peer, &stays.0.peer));
}

#[test]
#[ignore = "alone: own time must stay below 6 ms"]
fn work_for_another_flow_is_charged_to_it() {
    let queue = FairQueue::default();
    let (own, other, third) = (queue.open("own"), queue.open("other"), queue.open("third"));
    let before = [&own, &other, &third].map(Flow::served_ns);
    let task = {
        let (other, third) = (other.clone(), third.clone());
        async move {
            charging(Some(&other), || {
                work();
                charging(Some(&third), work);
                charging(None, work);
            });
            assert!(current_flow().is_some());
        }
    };
    runtime().block_on(async { tokio::spawn(fair(FrontEnd::Http, &own, task)).await.unwrap() });
    assert!(current_flow().is_none());
    let long = LONG.as_nanos() as u64;
    let after = [&own, &other, &third].map(Flow::served_ns);
    let [own, other, third] = [0, 1, 2].map(|at| after[at] - before[at]);
    assert!(own < long && other >= 2 * long && third >= long, "{own} {other} {third}");
}
