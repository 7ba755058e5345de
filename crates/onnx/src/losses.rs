//! Which requests does a model refuse after it lost many threads?
//!
//! A lost thread and the others of its pool keep their stacks ([`crate::runner`]), so only a limited number may be lost. After that, a request is
//! still answered if its inputs have at most half as many values as those of the smallest run that lost a thread. Larger requests are tried again a
//! minute after the last loss. If a smaller run than before loses a thread, the bound shrinks.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nerite_request::Status;

use crate::convert;

/// The number of threads that a model may lose before requests are refused.
const THREADS_MAX: u32 = 64;
/// The number of threads that all models may lose before larger requests are not tried again any more.
const ALL_THREADS_MAX: u32 = 1024;
const TRIED_AGAIN_AFTER: Duration = Duration::from_mins(1);

static ALL_THREADS: AtomicU32 = AtomicU32::new(0);

/// The threads that a model lost.
pub struct Losses {
    threads: AtomicU32,
    /// The fewest values that the inputs of a run that lost its thread had together.
    values_min: AtomicU64,
    last: Mutex<Option<Instant>>,
}

impl Losses {
    /// A model that has lost no thread yet.
    pub fn none() -> Losses {
        Losses { threads: AtomicU32::new(0), values_min: AtomicU64::new(u64::MAX), last: Mutex::new(None) }
    }

    /// Notes that a run whose inputs have this many values lost its thread at this moment.
    pub fn add(&self, values: u64, now: Instant) {
        self.values_min.fetch_min(values, Ordering::Relaxed);
        self.threads.fetch_add(1, Ordering::Relaxed);
        ALL_THREADS.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// An error if a request whose inputs have this many values is refused at this moment.
    pub fn check(&self, values: u64, now: Instant) -> Result<(), Status> {
        let threads = self.threads.load(Ordering::Relaxed);
        let values_max = self.values_min.load(Ordering::Relaxed) / 2;
        if threads < THREADS_MAX || values <= values_max {
            return Ok(());
        }
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_long_ago = last.is_none_or(|last| now.duration_since(last) >= TRIED_AGAIN_AFTER);
        if is_long_ago && ALL_THREADS.load(Ordering::Relaxed) < ALL_THREADS_MAX {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "the embedded engine ran out of memory {threads} times with this model, and lost a thread each time; the inputs of this request have {values} \
             values together, and may have {values_max} until a minute after the last time; try again then, load the model again, or {}",
            convert::CURE
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_many_losses_only_small_requests_are_answered_for_a_minute() {
        let (losses, now) = (Losses::none(), Instant::now());
        for lost in 0..THREADS_MAX {
            assert!(losses.check(u64::MAX, now).is_ok(), "after {lost}");
            losses.add(u64::from(1000 + lost), now);
        }
        let is_refused = |values| losses.check(values, now).is_err();
        assert_eq!([500, 501, 1000].map(is_refused), [false, true, true]);
        losses.add(400, now);
        assert_eq!([0, 200, 201].map(is_refused), [false, false, true]);
        assert!(losses.check(1000, now + TRIED_AGAIN_AFTER).is_ok());
        ALL_THREADS.store(ALL_THREADS_MAX, Ordering::Relaxed);
        assert!(losses.check(1000, now + TRIED_AGAIN_AFTER).is_err());
        assert!(losses.check(200, now).is_ok());
    }
}
