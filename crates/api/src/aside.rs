//! Where is work done that would delay other connections?

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::Poll;

use nerite_budget::Account;
use nerite_request::Status;
use nerite_watchdog::{FairPermit, FairSemaphore, Flow, FrontEnd, current_flow, noting_waits, watched};
use tokio::task::JoinHandle;

/// The least number of workers for large messages, if there are few cores.
const LARGE_MESSAGES_MIN: usize = 2;

/// The changes of mappings that may run at a time, with or without a GPU's driver.
const MAPPINGS_MAX: usize = 2;

/// The unmappings of idle leases for new ones that may run at a time.
const NEW_LEASES_MAX: usize = 2;

/// The users whose groups may be looked up at a time.
const LOOKUPS_MAX: usize = 4;

/// One worker for each core. With more working threads, the front threads would wait long for a core. A peer that sends many large messages delays
/// only its own messages.
static LARGE_MESSAGES: Workers = Workers::new("a large message", || {
    FairSemaphore::new(std::thread::available_parallelism().map_or(1, usize::from).max(LARGE_MESSAGES_MIN))
});

/// Changes of mappings have workers of their own. To unmap or page-lock much memory takes long, and a broken driver of a GPU may never return.
static MAPPINGS: Workers = Workers::new("shared memory", || FairSemaphore::new(MAPPINGS_MAX));

/// A new lease that needs the memory of idle ones has workers of its own, so it does not wait for clients that change regions.
static NEW_LEASES: Workers = Workers::new("shared memory", || FairSemaphore::new(NEW_LEASES_MAX));

/// A user directory on another host may take long to answer. Lookups have workers of their own, so they delay only each other.
static LOOKUPS: Workers = Workers::new("the groups of a user", || FairSemaphore::new(LOOKUPS_MAX));

/// The calls that may wait for a disk at a time, and the most of them for one peer.
const DISKS_MAX: usize = 16;
const DISKS_EACH_MAX: usize = 4;

/// Work that waits for a disk has workers of its own. A disk may be slow, or be on another host, so this work takes no permits from work that computes.
static DISKS: Workers = Workers::new("files", || FairSemaphore::with_most(DISKS_MAX, DISKS_EACH_MAX));

/// The most stalling workers at a time, and the most of them for one peer.
const STALLING_MAX: usize = 8;
const STALLING_EACH_MAX: usize = 1;

/// Stalling workers: they do work that may wait for memory of a marked peer. Large messages have other workers, so they do not wait for such work. Each
/// peer occupies one of these threads at most, so the others stay free for other peers.
static STALLING: Workers =
    Workers::new("shared memory that makes threads wait", || FairSemaphore::with_most(STALLING_MAX, STALLING_EACH_MAX));

/// A future of work on another thread, with its result.
pub type Aside<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// Runs `work`, which computes, on a thread that serves no connection. The future gives the result. If the future is dropped, work that has begun is
/// still finished. Call this inside the async runtime, in the task of the connection that needs the work.
///
/// The work is not begun if the connection of this account has to end by then, because too much memory is held. The error says so.
///
/// The future is boxed. Otherwise the values that `work` captures would be part of every request's future, and would be copied with that future even
/// for requests that are handled on the front thread.
pub fn aside<T: Send + 'static>(account: &Account, work: impl FnOnce() -> T + Send + 'static) -> Aside<T> {
    LARGE_MESSAGES.run(current_flow(), unless_shed(account, work))
}

/// As [`aside`], for work that mostly waits for a disk.
pub fn on_disk<T: Send + 'static>(account: &Account, work: impl FnOnce() -> T + Send + 'static) -> Aside<T> {
    DISKS.run(current_flow(), unless_shed(account, work))
}

/// As [`aside`], for steps of the responses to requests of this flow. They are done even if the connection has to end, because a request ends with its
/// last response. They may read memory of the client.
pub(crate) fn on_response_worker<T: Send + 'static>(
    flow: &Flow,
    work: impl FnOnce() -> T + Send + 'static,
) -> Aside<T> {
    let own = flow.clone();
    LARGE_MESSAGES.run(Some(flow.clone()), move || Ok(noting_waits(&own, work)))
}

/// `work`, or an error if the connection of this account has to end by the time of the call.
pub(crate) fn unless_shed<T, W: FnOnce() -> T>(
    account: &Account,
    work: W,
) -> impl FnOnce() -> Result<T, Status> + use<T, W> {
    let account = account.clone();
    move || match account.shed() {
        Some(shed) => Err(Status::unavailable(shed.to_string())),
        None => Ok(work()),
    }
}

/// As [`aside`], for work of any client that maps or unmaps much memory, or calls a GPU's driver for it. Such work may take long, so it has workers of its own.
pub(crate) fn on_mapping_worker<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Aside<T> {
    MAPPINGS.run(current_flow(), || Ok(work()))
}

/// As [`on_mapping_worker`], for a new lease that needs no call of a GPU's driver.
pub(crate) fn on_lease_worker<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Aside<T> {
    NEW_LEASES.run(current_flow(), || Ok(work()))
}

/// As [`on_mapping_worker`], for a lookup in the system's user directory.
pub(crate) fn on_lookup_worker<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Aside<T> {
    LOOKUPS.run(current_flow(), || Ok(work()))
}

/// As [`on_mapping_worker`], for work of this flow with memory that may make the thread wait for long. The work of one connection is done in the order
/// of the calls.
pub(crate) fn on_stalling_worker<T: Send + 'static>(
    flow: &Flow,
    work: impl FnOnce() -> T + Send + 'static,
) -> Aside<T> {
    let own = flow.clone();
    STALLING.run(Some(flow.clone()), move || Ok(noting_waits(&own, work)))
}

/// Limits how many threads do one kind of work at a time. Further work waits for a permit. Peers share the permits fairly.
struct Workers {
    /// Names the work in the error for work that panicked.
    work: &'static str,
    permits: LazyLock<FairSemaphore>,
}

impl Workers {
    const fn new(work: &'static str, permits: fn() -> FairSemaphore) -> Workers {
        Workers { work, permits: LazyLock::new(permits) }
    }

    fn run<T: Send + 'static>(
        &self,
        flow: Option<Flow>,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Aside<T> {
        let name = self.work;
        let mut permit = self.permits.acquire(flow);
        Box::pin(async move {
            if let Poll::Ready(permit) = poll_fn(|cx| Poll::Ready(Pin::new(&mut permit).poll(cx))).await {
                return with_permit(permit, name, work).await;
            }
            // A separate task waits for the permit. A call whose client reads no answers is not polled. It would keep a permit without using it.
            let waits = async move { with_permit(permit.await, name, work).await };
            let mut task = Task(tokio::spawn(watched(FrontEnd::Server, waits)));
            (&mut task.0).await.map_err(|error| unfinished(name, error))?
        })
    }
}

fn with_permit<T: Send + 'static>(
    permit: FairPermit,
    what: &'static str,
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Aside<T> {
    on_thread(what, move || {
        let _until_it_is_done = permit;
        work()
    })
}

/// A task that is aborted when this is dropped.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place where work begins on those threads")]
fn on_thread<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Aside<T> {
    Box::pin(async move { tokio::task::spawn_blocking(work).await.map_err(|error| unfinished(what, error))? })
}

fn unfinished(what: &str, error: impl std::fmt::Display) -> Status {
    Status::internal(format!("the work on {what} was not finished: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};

    use nerite_budget::{Budgets, Limits};
    use nerite_request::Code;

    use super::*;

    /// Held by each test that takes permits of [`LARGE_MESSAGES`], because they count them.
    static COUNTS_PERMITS: Mutex<()> = Mutex::new(());

    fn on_large<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Aside<T> {
        LARGE_MESSAGES.run(None, || Ok(work()))
    }

    static NOW: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the work of the test takes a while")]
    fn all_work_is_done_and_no_more_at_a_time_than_there_are_permits() {
        let _alone = COUNTS_PERMITS.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
        runtime.block_on(async {
            let places = LARGE_MESSAGES.permits.available();
            let work = |n: usize| {
                move || {
                    MOST.fetch_max(NOW.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    NOW.fetch_sub(1, Ordering::SeqCst);
                    n
                }
            };
            let tasks: Vec<_> = (0..4 * places).map(|n| tokio::spawn(on_large(work(n)))).collect();
            for (n, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.expect("no panic"), Ok(n));
            }
            assert!(MOST.load(Ordering::SeqCst) <= places);
            assert_eq!(LARGE_MESSAGES.permits.available(), places);
            // Work that panics gives its permit back.
            let panics = || -> usize { panic!("the work's own") };
            assert!(on_large(panics).await.is_err());
            assert_eq!(LARGE_MESSAGES.permits.available(), places);
        });
    }

    #[test]
    fn work_for_a_connection_that_has_to_end_is_not_begun() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
        runtime.block_on(async {
            let account = Budgets::new(Limits::new(0, Some(100 << 20), Some(100 << 20), None)).open("a");
            let (before, before_on_disk) = (aside(&account, || 1), on_disk(&account, || 2));
            assert_eq!((before.await, before_on_disk.await), (Ok(1), Ok(2)));
            // The work waits for nothing, and the connection has to end only after the call.
            let (large, disk) = (aside(&account, || panic!("begun")), on_disk(&account, || panic!("begun")));
            let _charge = account.charge(101 << 20);
            for refused in [large, disk, aside(&account, || panic!("begun"))] {
                let refused: Result<(), Status> = refused.await;
                let status = refused.expect_err("the connection has to end");
                assert_eq!(status.code, Code::Unavailable);
                assert_eq!(status.message, account.shed().expect("it has to end").to_string());
            }
        });
    }

    async fn is_pending(future: &mut Aside<u32>) -> bool {
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
    }

    #[test]
    fn work_that_is_not_polled_keeps_no_permit_and_work_that_is_dropped_is_not_begun() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
        runtime.block_on(async {
            let workers = Workers::new("a test", || FairSemaphore::new(1));
            let (go_on, waits) = std::sync::mpsc::channel::<()>();
            let mut first = workers.run(None, move || Ok(waits.recv().map_or(0, |()| 1)));
            let (mut left_alone, mut dropped) =
                (workers.run(None, || Ok(2)), workers.run(None, || panic!("it was dropped")));
            assert!(
                is_pending(&mut first).await && is_pending(&mut left_alone).await && is_pending(&mut dropped).await
            );
            drop(dropped);
            go_on.send(()).expect("it waits");
            assert_eq!(first.await, Ok(1));
            // Nobody polls the second one, but its work is done, and the next one has the permit.
            assert_eq!(workers.run(None, || Ok(3)).await, Ok(3));
            assert_eq!((left_alone.await, workers.permits.available()), (Ok(2), 1));
        });
    }

    #[test]
    fn calls_of_a_driver_that_never_return_leave_large_messages_their_permits() {
        let _alone = COUNTS_PERMITS.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
        runtime.block_on(async {
            let mut calls = Vec::new();
            let mut ends = Vec::new();
            for _ in 0..LARGE_MESSAGES.permits.available() + 2 * MAPPINGS_MAX {
                let (end, never) = std::sync::mpsc::channel::<()>();
                let mut call = on_mapping_worker(move || never.recv().map_or(0, |()| 1));
                assert!(is_pending(&mut call).await);
                calls.push(call);
                ends.push(end);
            }
            assert_eq!(on_large(|| 7).await, Ok(7));
            assert_eq!(on_lease_worker(|| 8).await, Ok(8));
            assert_eq!(MAPPINGS.permits.available(), 0);
            drop(ends);
            for call in calls {
                assert_eq!(call.await, Ok(0));
            }
            let panics = || -> u32 { panic!("the driver's") };
            let failed = on_mapping_worker(panics).await.expect_err("it panics").message;
            assert!(failed.starts_with("the work on shared memory was not finished: "), "{failed}");
            assert_eq!(MAPPINGS.permits.available(), MAPPINGS_MAX);
        });
    }
}
