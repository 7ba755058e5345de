//! Where is work done that would delay other connections?

use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;

use nerite_request::Status;
use nerite_watchdog::{FairSemaphore, current_flow};

/// The least number of workers for large messages, if there are few cores.
const WORKERS_MIN: usize = 2;

/// One permit for each core. With more working threads, the front threads would wait long for a core. Further work waits for a permit. Peers share the
/// permits fairly, so one that sends many large messages delays its own.
static WORKERS: LazyLock<FairSemaphore> =
    LazyLock::new(|| FairSemaphore::new(std::thread::available_parallelism().map_or(1, usize::from).max(WORKERS_MIN)));

/// A future of work on another thread, with its result.
pub type Aside<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// Does `work`, which computes, on a thread that serves no connection, and waits for its result without blocking. If the future is dropped, work that
/// has begun is finished. Call this inside the async runtime, in the task of the connection whose work it is.
///
/// The future is boxed. Otherwise the captured values of the work would be part of the future of each request, and be copied with it, also for
/// requests that are handled on the front thread.
pub fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Aside<T> {
    let permit = WORKERS.acquire(current_flow());
    Box::pin(async move {
        let place = permit.await;
        let work = move || {
            let _until_it_is_done = place;
            work()
        };
        on_disk(work).await
    })
}

/// As [`aside`], for work that mostly waits for a disk.
#[expect(clippy::disallowed_methods, reason = "this is the door to those threads that others are told to use")]
pub fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Aside<T> {
    Box::pin(async move { tokio::task::spawn_blocking(work).await.map_err(unfinished) })
}

fn unfinished(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("the work on a large message was not finished: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static NOW: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the work of the test takes a while")]
    fn all_work_is_done_and_no_more_at_a_time_than_there_are_permits() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
        runtime.block_on(async {
            let places = WORKERS.available();
            let work = |n: usize| {
                move || {
                    MOST.fetch_max(NOW.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    NOW.fetch_sub(1, Ordering::SeqCst);
                    n
                }
            };
            let tasks: Vec<_> = (0..4 * places).map(|n| tokio::spawn(aside(work(n)))).collect();
            for (n, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.expect("no panic"), Ok(n));
            }
            assert!(MOST.load(Ordering::SeqCst) <= places);
            assert_eq!(WORKERS.available(), places);
            // Work that panics gives its permit back.
            let panics = || -> usize { panic!("the work's own") };
            assert!(aside(panics).await.is_err());
            assert_eq!(WORKERS.available(), places);
        });
    }
}
