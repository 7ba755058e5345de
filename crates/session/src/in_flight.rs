//! Which inferences of a session are in flight?

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};

use nerite_budget::{Account, Charge};
use nerite_locks::Mutex;
use nerite_request::{Cancel, Status};
use tokio::sync::Notify;

use crate::limits::{INFERENCE_BYTES, INFERENCES_MAX};

/// The inferences of one session whose last response was not sent yet.
pub(crate) struct InFlight {
    account: Account,
    /// At most [`INFERENCES_MAX`], and mostly few, so comparing all ids takes less time than hashing one.
    begun: Mutex<Vec<Begun>>,
    /// Inferences whose id is in use, and those whose last response is being sent.
    unsent: AtomicUsize,
    /// Whether a task waits in [`InFlight::drained`]. If not, `ended` is not notified.
    is_awaited: AtomicBool,
    ended: Notify,
}

/// An inference whose last response does not exist yet.
struct Begun {
    id: u64,
    cancel: Cancel,
    _charge: Charge,
}

impl InFlight {
    /// The inferences are charged to `account`.
    pub(crate) fn new(account: &Account) -> InFlight {
        let (begun, unsent, is_awaited) = (Mutex::default(), AtomicUsize::new(0), AtomicBool::new(false));
        InFlight { account: account.clone(), begun, unsent, is_awaited, ended: Notify::new() }
    }

    /// Adds an inference, which keeps `packet_bytes` bytes of its packet.
    pub(crate) fn begin(&self, id: u64, packet_bytes: usize) -> Result<Cancel, Status> {
        let mut begun = self.lock();
        if begun.len() >= INFERENCES_MAX {
            return Err(Status::unavailable(format!(
                "{INFERENCES_MAX} inferences of this session are in flight; wait for one of their answers"
            )));
        }
        if begun.iter().any(|one| one.id == id) {
            return Err(Status::invalid(format!("an inference of id {id} is in flight; ids must differ")));
        }
        let cancel = Cancel::new();
        let charge = self.account.charge(INFERENCE_BYTES + packet_bytes);
        begun.push(Begun { id, cancel: cancel.clone(), _charge: charge });
        self.unsent.fetch_add(1, Ordering::SeqCst);
        Ok(cancel)
    }

    /// Makes the id available again. Call this before the last response is sent, because the client may reuse the id at once.
    pub(crate) fn release(&self, id: u64) {
        let mut begun = self.lock();
        let at = begun.iter().position(|one| one.id == id);
        let ended = at.map(|at| begun.swap_remove(at));
        drop(begun);
        drop(ended);
    }

    /// Counts the inference as ended. Call this when its last response was sent.
    pub(crate) fn end(&self) {
        if self.unsent.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_awaited.load(Ordering::SeqCst) {
            self.ended.notify_one();
        }
    }

    pub(crate) fn cancel(&self, id: u64) {
        // Not under the lock: `Cancel::cancel` may answer a waiting request, and the answer takes the lock.
        let begun = self.lock().iter().find(|one| one.id == id).map(|begun| begun.cancel.clone());
        if let Some(begun) = begun {
            begun.cancel();
        }
    }

    pub(crate) fn cancel_all(&self) {
        let begun: Vec<Cancel> = self.lock().iter().map(|begun| begun.cancel.clone()).collect();
        begun.iter().for_each(Cancel::cancel);
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Waits until no inference is in flight.
    pub(crate) async fn drained(&self) {
        // The thread that ends the last inference either sees this flag, or has lowered the count before it is read below.
        self.is_awaited.store(true, Ordering::SeqCst);
        while self.unsent.load(Ordering::SeqCst) > 0 {
            self.ended.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_request_that_is_answered_while_it_is_cancelled_is_removed() {
        let in_flight = Arc::new(InFlight::new(&Account::unlimited()));
        for id in 1..=3 {
            let answered = Arc::clone(&in_flight);
            let cancel = in_flight.begin(id, 0).expect("fewer than the limit are in flight");
            assert!(cancel.on_cancelled(move || {
                answered.release(id);
                answered.end();
            }));
        }
        in_flight.cancel(2);
        in_flight.cancel(2);
        assert_eq!(in_flight.count(), 2);
        in_flight.cancel_all();
        assert_eq!((in_flight.count(), in_flight.unsent.load(Ordering::Acquire)), (0, 0));
    }
}
