//! Who works, when, and on which thread?

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use nerite_request::Status;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use crate::limits::{PLACES_MAX, PLACES_MIN, STEP_BYTES_IN, STEP_BYTES_OUT};

/// Work that is done in steps.
pub(crate) trait Work: Send + 'static {
    /// Why it cannot be done.
    type Error: From<Status> + Send + 'static;

    /// Ready when the next step may be done.
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    /// Reads and writes about so many bytes; whether all is done then.
    fn step(&mut self, pace: Pace) -> Result<Progress, Self::Error>;
}

/// What a step may read and write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub bytes_in: usize,
    pub bytes_out: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
}

const STEP: Pace = Pace { bytes_in: STEP_BYTES_IN, bytes_out: STEP_BYTES_OUT };

/// The places of this process.
static PLACES: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(all_places()));

/// The share of one connection: at most half of the places. Its messages wait for each other, not for those of others.
#[derive(Clone, Debug)]
pub struct Lane(Arc<Semaphore>);

impl Lane {
    /// The share of a new connection.
    pub fn new() -> Lane {
        Lane(Arc::new(Semaphore::new(lane_places(all_places()))))
    }
}

impl Default for Lane {
    fn default() -> Lane {
        Lane::new()
    }
}

fn all_places() -> usize {
    places(std::thread::available_parallelism().map_or(1, usize::from))
}

/// Half of the cores: the other half is for the models and for those who serve connections.
fn places(cores: usize) -> usize {
    (cores / 2).clamp(PLACES_MIN, PLACES_MAX)
}

fn lane_places(places: usize) -> usize {
    (places / 2).max(1)
}

/// Does `work`: a first step here if `first` says how much that may be, everything else on worker threads, in turns with others.
/// Dropping the future ends the work with the step that runs.
pub(crate) async fn run<W: Work>(work: W, first: Option<Pace>, lane: &Lane) -> Result<W, W::Error> {
    run_in(work, first, lane, &PLACES).await
}

async fn run_in<W: Work>(
    mut work: W,
    first: Option<Pace>,
    lane: &Lane,
    places: &'static Semaphore,
) -> Result<W, W::Error> {
    if let Some(first) = first
        && work.step(first)? == Progress::Done
    {
        return Ok(work);
    }
    // A task of its own: a call whose client takes no answers is not polled, and must not keep a place meanwhile.
    let mut task = Task(tokio::spawn(take_turns(work, lane.clone(), places)));
    (&mut task.0).await.map_err(failed)?
}

/// Ends with whoever waits for it.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn take_turns<W: Work>(mut work: W, lane: Lane, places: &'static Semaphore) -> Result<W, W::Error> {
    let _share = lane.0.acquire().await.expect("a lane is never closed");
    loop {
        poll_fn(|cx| work.poll_ready(cx)).await?;
        let place = places.acquire().await.expect("places are never closed");
        let (returned, progress) = step_aside(work, place).await?;
        work = returned;
        if progress? == Progress::Done {
            return Ok(work);
        }
    }
}

/// One step on a worker thread. The place is free when the step has ended, even if nobody waits for it any more.
#[expect(clippy::disallowed_methods, reason = "places bound how many run; a missing thread is caught")]
async fn step_aside<W: Work>(
    mut work: W,
    place: SemaphorePermit<'static>,
) -> Result<(W, Result<Progress, W::Error>), Status> {
    let step = move || {
        let progress = work.step(STEP);
        drop(place);
        (work, progress)
    };
    // Without a thread the runtime panics. That is the request's end, but not its connection's.
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

    /// Writes its name so many times, one at a step.
    struct Count {
        name: char,
        left: usize,
        log: Log,
        living: Arc<AtomicUsize>,
    }

    impl Work for Count {
        type Error = Status;

        #[expect(clippy::disallowed_methods, reason = "the work of the test takes a while")]
        fn step(&mut self, _: Pace) -> Result<Progress, Status> {
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

    struct Bench {
        log: Log,
        living: Arc<AtomicUsize>,
        places: &'static Semaphore,
    }

    impl Bench {
        fn with_places(places: usize) -> Bench {
            Bench { log: Log::default(), living: Arc::default(), places: Box::leak(Box::new(Semaphore::new(places))) }
        }

        fn begin(&self, name: char, left: usize, lane: &Lane) -> tokio::task::JoinHandle<Result<(), Status>> {
            self.living.fetch_add(1, Ordering::AcqRel);
            let work = Count { name, left, log: Arc::clone(&self.log), living: Arc::clone(&self.living) };
            let (lane, places) = (lane.clone(), self.places);
            tokio::spawn(async move { run_in(work, None, &lane, places).await.map(drop) })
        }

        fn text(&self) -> String {
            self.log.lock().unwrap().iter().collect()
        }
    }

    fn lane(places: usize) -> Lane {
        Lane(Arc::new(Semaphore::new(places)))
    }

    #[tokio::test]
    async fn connections_take_turns_and_one_connections_messages_follow_each_other() {
        let bench = Bench::with_places(0);
        let (first, second) = (lane(1), lane(1));
        let all = [bench.begin('a', 4, &first), bench.begin('b', 2, &first), bench.begin('c', 3, &second)];
        // Until each has asked for what it needs.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        bench.places.add_permits(1);
        for one in all {
            assert_eq!(one.await.unwrap(), Ok(()));
        }
        let text = bench.text();
        // Later turns depend on how soon the runtime hears that a step has ended.
        assert!(text.starts_with("ac"), "{text}");
        assert_eq!(text.replace('c', ""), "aaaabb");
        assert_eq!(text.matches('c').count(), 3);
        assert_eq!(bench.living.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_ends_with_its_step_and_frees_what_it_has() {
        let bench = Bench::with_places(1);
        let mine = lane(1);
        let (endless, next) = (bench.begin('a', usize::MAX, &mine), bench.begin('b', 2, &mine));
        while bench.text().len() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        endless.abort();
        assert_eq!(next.await.unwrap(), Ok(()));
        while bench.living.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(bench.text().ends_with("bb"));
        assert_eq!(bench.places.available_permits(), 1);
    }

    #[tokio::test]
    async fn work_that_is_not_polled_holds_nobody_up() {
        let bench = Bench::with_places(1);
        let mine = lane(1);
        bench.living.fetch_add(1, Ordering::AcqRel);
        let work = Count { name: 'a', left: 3, log: Arc::clone(&bench.log), living: Arc::clone(&bench.living) };
        let mut left_alone = Box::pin(run_in(work, None, &mine, bench.places));
        let begun = poll_fn(|cx| Poll::Ready(left_alone.as_mut().poll(cx).is_pending())).await;
        assert!(begun);
        assert_eq!(bench.begin('b', 2, &mine).await.unwrap(), Ok(()));
        assert_eq!(bench.text(), "aaabb");
        assert!(left_alone.await.is_ok());
    }

    #[tokio::test]
    async fn a_first_step_needs_no_place() {
        let bench = Bench::with_places(0);
        let work = |left| {
            bench.living.fetch_add(1, Ordering::AcqRel);
            Count { name: 'a', left, log: Arc::clone(&bench.log), living: Arc::clone(&bench.living) }
        };
        assert!(run_in(work(1), Some(STEP), &lane(1), bench.places).await.is_ok());
        let mine = lane(1);
        let waits = run_in(work(2), Some(STEP), &mine, bench.places);
        assert!(tokio::time::timeout(Duration::from_millis(10), waits).await.is_err());
        assert_eq!(bench.text(), "aa");
    }

    #[tokio::test]
    async fn a_panic_is_the_requests_own() {
        struct Breaks;
        impl Work for Breaks {
            type Error = Status;
            fn step(&mut self, _: Pace) -> Result<Progress, Status> {
                panic!("as planned")
            }
        }
        let refused = run(Breaks, None, &Lane::new()).await.map(|_| ()).unwrap_err();
        assert!(refused.message.starts_with("a message could not be compressed or inflated: "), "{}", refused.message);
    }

    #[test]
    fn half_of_the_cores_work_and_half_of_those_for_one_connection() {
        let found = [1, 2, 4, 8, 64].map(|cores| (places(cores), lane_places(places(cores))));
        assert_eq!(found, [(2, 1), (2, 1), (2, 1), (4, 2), (16, 8)]);
    }
}
