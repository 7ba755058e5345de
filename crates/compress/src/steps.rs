//! On which threads do compression steps run, and how many at a time?

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use nerite_request::Status;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use crate::limits::{STEP_BYTES_IN, STEP_BYTES_OUT, STEPS_AT_ONCE_MAX, STEPS_AT_ONCE_MIN};

/// Work that is done in steps.
pub(crate) trait Work: Send + 'static {
    /// The error of a step.
    type Error: From<Status> + Send + 'static;

    /// Ready when the next step may run.
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    /// Reads and writes about as many bytes as `budget` allows. Returns whether the work is done.
    fn step(&mut self, budget: StepBudget) -> Result<Progress, Self::Error>;
}

/// The bytes that a step may read and write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepBudget {
    pub bytes_in: usize,
    pub bytes_out: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
}

const STEP: StepBudget = StepBudget { bytes_in: STEP_BYTES_IN, bytes_out: STEP_BYTES_OUT };

/// One permit for each step that may run in this process.
static STEP_PERMITS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(*PERMITS_OF_PROCESS));
/// Determined once, because it takes the system some file reads to count the cores, and every connection needs it.
static PERMITS_OF_PROCESS: LazyLock<usize> =
    LazyLock::new(|| permits(std::thread::available_parallelism().map_or(1, usize::from)));

/// The share of one connection: at most half of the permits. Messages of one connection wait for each other, and other connections find free permits.
#[derive(Clone, Debug)]
pub struct Lane(Arc<Semaphore>);

impl Lane {
    /// The share of a new connection.
    pub fn new() -> Lane {
        Lane(Arc::new(Semaphore::new(permits_of_lane(*PERMITS_OF_PROCESS))))
    }
}

impl Default for Lane {
    fn default() -> Lane {
        Lane::new()
    }
}

/// Half of the cores. The other half is for models and front threads.
fn permits(cores: usize) -> usize {
    (cores / 2).clamp(STEPS_AT_ONCE_MIN, STEPS_AT_ONCE_MAX)
}

fn permits_of_lane(permits: usize) -> usize {
    (permits / 2).max(1)
}

/// Runs `work`. If `first` is given, a first step of that size runs on this thread. The other steps run on worker threads, in turns with other
/// work. Dropping the future ends the work after the current step.
pub(crate) async fn run<W: Work>(work: W, first: Option<StepBudget>, lane: &Lane) -> Result<W, W::Error> {
    run_in(work, first, lane, &STEP_PERMITS).await
}

async fn run_in<W: Work>(
    mut work: W,
    first: Option<StepBudget>,
    lane: &Lane,
    permits: &'static Semaphore,
) -> Result<W, W::Error> {
    if let Some(first) = first
        && work.step(first)? == Progress::Done
    {
        return Ok(work);
    }
    // The steps run in a task of their own. A call whose client reads no answers is not polled, and must not hold a permit meanwhile.
    let mut task = Task(tokio::spawn(run_steps(work, lane.clone(), permits)));
    (&mut task.0).await.map_err(failed)?
}

/// A task that is aborted when this is dropped.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run_steps<W: Work>(mut work: W, lane: Lane, permits: &'static Semaphore) -> Result<W, W::Error> {
    let _share = lane.0.acquire().await.expect("a lane is never closed");
    loop {
        poll_fn(|cx| work.poll_ready(cx)).await?;
        let permit = permits.acquire().await.expect("permits are never closed");
        let (returned, progress) = step_on_worker(work, permit).await?;
        work = returned;
        if progress? == Progress::Done {
            return Ok(work);
        }
    }
}

/// Runs one step on a worker thread. The permit is released when the step ends, even if its result is no longer needed.
#[expect(clippy::disallowed_methods, reason = "permits bound how many run; a missing thread is caught")]
async fn step_on_worker<W: Work>(
    mut work: W,
    permit: SemaphorePermit<'static>,
) -> Result<(W, Result<Progress, W::Error>), Status> {
    let step = move || {
        let progress = work.step(STEP);
        drop(permit);
        (work, progress)
    };
    // The runtime panics if it cannot start a thread. The panic is caught, because only this request may fail, not its connection.
    let stepping = catch_unwind(AssertUnwindSafe(|| spawn_blocking(step))).map_err(|_| {
        Status::unavailable("the server has no thread to compress or inflate a message; try again later")
    })?;
    stepping.await.map_err(failed)
}

fn failed(fault: JoinError) -> Status {
    Status::internal(format!("a message could not be compressed or inflated: {fault}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;
    use std::time::Duration;

    use super::*;

    type Log = Arc<Mutex<Vec<char>>>;

    /// Writes its name `left` times, once in each step.
    struct Count {
        name: char,
        left: usize,
        log: Log,
        living: Arc<AtomicUsize>,
    }

    impl Work for Count {
        type Error = Status;

        #[expect(clippy::disallowed_methods, reason = "the work of the test takes a while")]
        fn step(&mut self, _: StepBudget) -> Result<Progress, Status> {
            if self.left == 0 {
                return Err(Status::internal("the work was done"));
            }
            self.log.lock().unwrap().push(self.name);
            std::thread::sleep(Duration::from_millis(1));
            self.left -= 1;
            Ok(if self.left == 0 { Progress::Done } else { Progress::More })
        }
    }

    impl Drop for Count {
        fn drop(&mut self) {
            self.living.fetch_sub(1, Ordering::AcqRel);
        }
    }

    struct Fixture {
        log: Log,
        living: Arc<AtomicUsize>,
        permits: &'static Semaphore,
    }

    impl Fixture {
        fn with_permits(permits: usize) -> Fixture {
            Fixture {
                log: Log::default(),
                living: Arc::default(),
                permits: Box::leak(Box::new(Semaphore::new(permits))),
            }
        }

        fn begin(&self, name: char, left: usize, lane: &Lane) -> tokio::task::JoinHandle<Result<(), Status>> {
            self.living.fetch_add(1, Ordering::AcqRel);
            let work = Count { name, left, log: Arc::clone(&self.log), living: Arc::clone(&self.living) };
            let (lane, permits) = (lane.clone(), self.permits);
            tokio::spawn(async move { run_in(work, None, &lane, permits).await.map(drop) })
        }

        fn text(&self) -> String {
            self.log.lock().unwrap().iter().collect()
        }
    }

    fn lane(permits: usize) -> Lane {
        Lane(Arc::new(Semaphore::new(permits)))
    }

    #[tokio::test]
    async fn connections_take_turns_and_messages_of_one_connection_are_sequential() {
        let fixture = Fixture::with_permits(0);
        let (first, second) = (lane(1), lane(1));
        let all = [fixture.begin('a', 4, &first), fixture.begin('b', 2, &first), fixture.begin('c', 3, &second)];
        // Polls until each task waits for a permit.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        fixture.permits.add_permits(1);
        for one in all {
            assert_eq!(one.await.unwrap(), Ok(()));
        }
        let text = fixture.text();
        // The rest of the order depends on when the runtime notices that a step has ended.
        assert!(text.starts_with("ac"), "{text}");
        assert_eq!(text.replace('c', ""), "aaaabb");
        assert_eq!(text.matches('c').count(), 3);
        assert_eq!(fixture.living.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn aborted_work_ends_after_its_step_and_frees_its_memory() {
        let fixture = Fixture::with_permits(1);
        let mine = lane(1);
        let (endless, next) = (fixture.begin('a', usize::MAX, &mine), fixture.begin('b', 2, &mine));
        while fixture.text().len() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        endless.abort();
        assert_eq!(next.await.unwrap(), Ok(()));
        while fixture.living.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(fixture.text().ends_with("bb"));
        assert_eq!(fixture.permits.available_permits(), 1);
    }

    #[tokio::test]
    async fn work_that_is_not_polled_does_not_delay_other_work() {
        let fixture = Fixture::with_permits(1);
        let mine = lane(1);
        fixture.living.fetch_add(1, Ordering::AcqRel);
        let work = Count { name: 'a', left: 3, log: Arc::clone(&fixture.log), living: Arc::clone(&fixture.living) };
        let mut left_alone = Box::pin(run_in(work, None, &mine, fixture.permits));
        let begun = poll_fn(|cx| Poll::Ready(left_alone.as_mut().poll(cx).is_pending())).await;
        assert!(begun);
        assert_eq!(fixture.begin('b', 2, &mine).await.unwrap(), Ok(()));
        assert_eq!(fixture.text(), "aaabb");
        assert!(left_alone.await.is_ok());
    }

    #[tokio::test]
    async fn a_first_step_needs_no_permit() {
        let fixture = Fixture::with_permits(0);
        let work = |left| {
            fixture.living.fetch_add(1, Ordering::AcqRel);
            Count { name: 'a', left, log: Arc::clone(&fixture.log), living: Arc::clone(&fixture.living) }
        };
        assert!(run_in(work(1), Some(STEP), &lane(1), fixture.permits).await.is_ok());
        let mine = lane(1);
        let waits = run_in(work(2), Some(STEP), &mine, fixture.permits);
        assert!(tokio::time::timeout(Duration::from_millis(10), waits).await.is_err());
        assert_eq!(fixture.text(), "aa");
    }

    #[tokio::test]
    async fn a_panic_fails_only_its_own_request() {
        struct Breaks;
        impl Work for Breaks {
            type Error = Status;
            fn step(&mut self, _: StepBudget) -> Result<Progress, Status> {
                panic!("as planned")
            }
        }
        let refused = run(Breaks, None, &Lane::new()).await.map(|_| ()).unwrap_err();
        assert!(refused.message.starts_with("a message could not be compressed or inflated: "), "{}", refused.message);
    }

    #[test]
    fn half_of_the_cores_run_steps_and_half_of_these_for_one_connection() {
        let found = [1, 2, 4, 8, 64].map(|cores| (permits(cores), permits_of_lane(permits(cores))));
        assert_eq!(found, [(2, 1), (2, 1), (2, 1), (4, 2), (16, 8)]);
    }
}
