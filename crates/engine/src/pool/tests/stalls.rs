//! Whose peer is marked if a thread waits for a job of another connection?

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Waker};

use nerite_watchdog::{FairQueue, FrontEnd, fair};

use super::*;

const HOLDS: usize = 1000;
const STALLS: usize = 1001;
/// Whether the job that holds the instance runs, and whether another one waits for the instance then.
static HOLDING: AtomicBool = AtomicBool::new(false);
static OTHER_WAITS: AtomicBool = AtomicBool::new(false);
/// The number of runs on front threads.
static HERE: AtomicU32 = AtomicU32::new(0);

#[expect(clippy::disallowed_methods, reason = "the thread of the test waits, as for memory of its client")]
#[expect(clippy::unnecessary_wraps, reason = "it is the model of the test")]
fn act(job: &Job) -> Result<(), Status> {
    if job.id() == HOLDS.to_string() {
        HOLDING.store(true, Ordering::SeqCst);
        while !OTHER_WAITS.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    } else if job.id() == STALLS.to_string() {
        HERE.fetch_add(u32::from(nerite_watchdog::is_polling()), Ordering::SeqCst);
        std::thread::sleep(Duration::from_nanos(2 * nerite_watchdog::MARKING_NS));
    }
    Ok(())
}

/// Does `work` in a poll of a task of this flow.
fn poll_in(flow: &Flow, work: impl FnOnce()) {
    let mut task = pin!(fair(FrontEnd::Server, flow, async { work() }));
    assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn a_thread_that_waits_for_the_job_of_another_connection_marks_that_one() {
    // On a busy machine a quick job may count as slow, and a worker runs the next one. And the thread may wait for a processor.
    for _ in 0..50 {
        let (pool, (to, answers)) = (pool(1, act), mpsc::channel());
        HOLDING.store(false, Ordering::SeqCst);
        OTHER_WAITS.store(false, Ordering::SeqCst);
        let (queue, count) = (FairQueue::default(), 20);
        let [first, other] = ["first", "other"].map(|name| queue.open(name));
        for id in 0..count {
            poll_in(&first, || pool.submit(job(id, &to).0, None));
            answers.recv_timeout(Duration::from_mins(1)).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !HOLDING.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                poll_in(&other, || pool.submit(job(STALLS, &to).0, None));
                OTHER_WAITS.store(true, Ordering::SeqCst);
            });
            poll_in(&first, || pool.submit(job(HOLDS, &to).0, None));
        });
        for _ in [HOLDS, STALLS] {
            answers.recv_timeout(Duration::from_mins(1)).unwrap();
        }
        pool.close();
        let was_here = HERE.swap(0, Ordering::SeqCst) > 0;
        assert!(other.is_stalling() || !was_here);
        if was_here && !first.is_stalling() {
            return;
        }
    }
    panic!("a worker ran the job each time, or the first connection was marked");
}
