//! Which requests have lost their clients, and what happens if their run continues?
//!
//! The server reports these requests over the side channel, which a thread reads. The engine then ends the run at its next operator, if it can. The
//! embedded engine cannot, and one operator may take long. If a run continues for `GONE_PATIENCE` after its last client has gone, this process ends.
//! The server starts another for the next request.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nerite_locks::Mutex;
use nerite_process::packets::{Measured, SideSaid};
use nerite_process::{Channel, Packet};
use nerite_request::Cancel;

/// Ends the process.
type End = Box<dyn Fn() + Send + Sync>;

/// The requests of the batch that runs, by their numbers.
pub(super) struct Gone {
    batch: Mutex<Batch>,
    over: Condvar,
    /// How long a run without clients may continue. `None` means no limit, because the engine may keep data that other requests need.
    timeout: Option<Duration>,
    end: End,
}

#[derive(Default)]
struct Batch {
    /// Counts batches.
    number: u64,
    running: HashMap<u64, Cancel>,
    /// Requests whose clients had gone before the requests came. That is possible because they come over different channels.
    early: BTreeSet<u64>,
}

impl Gone {
    pub fn new(timeout: Option<Duration>, end: impl Fn() + Send + Sync + 'static) -> Arc<Gone> {
        Arc::new(Gone { batch: Mutex::default(), over: Condvar::new(), timeout, end: Box::new(end) })
    }

    /// Starts a thread that listens on the side channel until the server closes it. Answers about metrics are passed
    /// on.
    pub fn listen(self: &Arc<Self>, side: Arc<Channel>, measured: Sender<Measured>) -> io::Result<()> {
        let gone = Arc::clone(self);
        let listen = move || {
            let mut packet = Packet::default();
            while let Ok(Some(text)) = side.receive(&mut packet) {
                let Ok(said) = SideSaid::read(text) else { continue };
                if let Some(number) = said.gone() {
                    gone.has_gone(number);
                } else if let Some(answer) = said.measured() {
                    // If the caller has stopped waiting, the answer is dropped.
                    let _ = measured.send(answer);
                }
            }
        };
        thread::Builder::new().name("nerite-gone".to_owned()).spawn(listen).map(drop)
    }

    /// Adds a request of the batch that is about to run. Returns its cancel flag.
    pub fn begin(&self, number: u64) -> Cancel {
        let cancel = Cancel::new();
        let mut batch = self.lock();
        batch.running.insert(number, cancel.clone());
        if batch.early.remove(&number) {
            cancel.cancel();
        }
        cancel
    }

    /// Notes that the request was answered, separately from others of its batch.
    pub fn ends(&self, number: u64) {
        let mut batch = self.lock();
        batch.running.remove(&number);
        batch.early.remove(&number);
    }

    /// Notes that a batch was received whose first request has this number. No request with a lower number will be received any more.
    pub fn have_come(&self, first: u64) {
        let mut batch = self.lock();
        batch.early = batch.early.split_off(&first);
    }

    /// Notes that the batch was answered. Later requests have greater numbers.
    pub fn is_over(&self) {
        let mut batch = self.lock();
        batch.number += 1;
        if let Some(last) = batch.running.drain().map(|(number, _)| number).max() {
            batch.early = batch.early.split_off(&last.saturating_add(1));
        }
        drop(batch);
        self.over.notify_all();
    }

    fn has_gone(&self, number: u64) {
        let mut batch = self.lock();
        let Some(cancel) = batch.running.get(&number).cloned() else {
            batch.early.insert(number);
            return;
        };
        let of = batch.number;
        drop(batch);
        // The lock is not held here, because this call stops the engine, and the batch may be over before it returns.
        cancel.cancel();
        let Some(timeout) = self.timeout else { return };
        let is_vain = |batch: &Batch| batch.running.values().all(Cancel::is_cancelled);
        let batch = self.lock();
        // No other client is left, so this thread may wait here.
        let waited = self.over.wait_timeout_while(batch, timeout, |batch| batch.number == of && is_vain(batch));
        let (batch, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if batch.number == of && !batch.running.is_empty() && is_vain(&batch) {
            // The lock is held, so that no later batch begins in a process that is about to end.
            (self.end)();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts how often the process would have ended.
    fn counting(timeout: Duration) -> (Arc<Gone>, Arc<AtomicUsize>) {
        let ends = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&ends);
        let count = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        (Gone::new(Some(timeout), count), ends)
    }

    #[test]
    fn a_run_that_goes_on_after_its_last_client_has_gone_ends_the_process() {
        let (gone, ends) = counting(Duration::from_millis(20));
        let (one, other) = (gone.begin(1), gone.begin(2));
        gone.has_gone(1);
        assert!(one.is_cancelled() && !other.is_cancelled());
        assert_eq!(ends.load(Ordering::SeqCst), 0, "somebody waits for the other");
        gone.has_gone(2);
        assert!(other.is_cancelled());
        assert_eq!(ends.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_run_that_ends_in_time_ends_nothing() {
        let (gone, ends) = counting(Duration::from_mins(10));
        let cancel = gone.begin(1);
        let engine = Arc::clone(&gone);
        // The engine of this test can be stopped.
        assert!(cancel.on_cancelled(move || engine.is_over()));
        gone.has_gone(1);
        assert_eq!(ends.load(Ordering::SeqCst), 0);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the run ends about when the timeout does")]
    fn a_run_that_ends_as_the_patience_does_is_over_before_the_process_ends_or_not_at_all() {
        const PATIENCE: Duration = Duration::from_micros(300);
        let (mut rounds, mut ended) = (0, 0);
        // Repeated until both orders have happened, which may take many rounds on a busy machine.
        while rounds < 1000 || ((ended == 0 || ended == rounds) && rounds < 100_000) {
            let (gone, ends) = counting(PATIENCE);
            let cancel = gone.begin(1);
            let listening = Arc::clone(&gone);
            let listener = thread::spawn(move || listening.has_gone(1));
            thread::sleep(Duration::from_micros(200 + rounds % 200));
            gone.is_over();
            let before = ends.load(Ordering::SeqCst);
            listener.join().expect("it listens");
            // If a client disconnects after the run was over, nothing is cancelled, and the process does not end.
            assert!(before == 0 || (before == 1 && cancel.is_cancelled()));
            assert_eq!(ends.load(Ordering::SeqCst), before, "a process ends after its run was over");
            (rounds, ended) = (rounds + 1, ended + before as u64);
        }
        assert!(ended > 0 && ended < rounds, "{ended} of {rounds}");
    }

    #[test]
    fn a_process_without_a_limit_goes_on() {
        let ends = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&ends);
        let gone = Gone::new(None, move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let (one, other) = (gone.begin(1), gone.begin(2));
        gone.has_gone(1);
        assert!(one.is_cancelled() && !other.is_cancelled());
        gone.ends(2);
        gone.has_gone(2);
        gone.has_gone(5);
        assert!(!other.is_cancelled(), "it was answered");
        gone.have_come(4);
        assert_eq!(gone.lock().early, BTreeSet::from([5]));
        assert_eq!(ends.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_client_that_goes_before_its_request_comes_is_remembered_until_later_requests_come() {
        let (gone, ends) = counting(Duration::ZERO);
        gone.has_gone(7);
        gone.has_gone(9);
        assert!(!gone.begin(6).is_cancelled() && gone.begin(7).is_cancelled());
        gone.is_over();
        gone.has_gone(5);
        gone.begin(8);
        gone.is_over();
        assert_eq!(gone.lock().early, BTreeSet::from([9]));
        assert_eq!(ends.load(Ordering::SeqCst), 0);
    }
}
