//! When is the last response of a request sent?
//!
//! It is sent at once, unless the thread is within [`Outbox::around`]. Then it is kept, and is sent when the outbox is delivered. Code that runs an
//! instance wraps the run in `around`, gives the instance back, and then delivers. So a client that sends a request as soon as it has its answer (a
//! step of an ensemble, for example) finds the instance idle, and no call enters an instance that is still held. Responses that are not the last are
//! sent at once. A run that waits for one client does not delay the answers of others: [`Outbox::deliver_apart`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;
use nerite_request::{Reply, Response};

use crate::InFlight;

/// The most lists that a thread keeps for later runs, which then need no allocation.
const SPARE_MAX: usize = 4;
/// The most responses that a kept list has space for.
const SPARE_RESPONSES_MAX: usize = 16;

thread_local! {
    /// The outbox of the run of this thread. `None` outside of a run.
    static OPEN: RefCell<Option<Outbox>> = const { RefCell::new(None) };
    /// Empty lists that no run uses.
    static SPARE: RefCell<Vec<VecDeque<LastResponse>>> = const { RefCell::new(Vec::new()) };
}

/// The last responses that one run made. They are on the heap, because an outbox is moved several times and a response is large.
#[derive(Default)]
pub struct Outbox(VecDeque<LastResponse>);

/// The last response to a request, and the reply that takes it.
pub struct LastResponse {
    pub(crate) reply: Reply,
    pub(crate) response: Response,
    /// Gives the response to the reply.
    pub(crate) send: fn(&mut Reply, Response),
    /// Keeps the model loaded until the response was sent. It is dropped last.
    pub(crate) in_flight: InFlight,
}

impl Outbox {
    /// Does `work`, and keeps the last responses that it makes on this thread in the returned outbox.
    pub fn around<T>(work: impl FnOnce() -> T) -> (T, Outbox) {
        let scope = Scope { outer: OPEN.replace(Some(Outbox::default())), is_closed: false };
        let done = work();
        (done, scope.close())
    }

    /// Delivers the answers that the run of this thread has made so far. A run calls this before it waits for a client. Another thread delivers them,
    /// because code that continues with an answer runs on the delivering thread, and this thread still holds an instance. If no thread can be
    /// started, the answers are sent after the run.
    pub fn deliver_apart() -> std::io::Result<()> {
        let taken = OPEN.try_with(|open| open.borrow_mut().as_mut().map(std::mem::take)).ok().flatten();
        let Some(answers) = taken.filter(|answers| !answers.is_empty()) else { return Ok(()) };
        let answers = Arc::new(Mutex::new(answers));
        let take = |from: &Mutex<Outbox>| std::mem::take(&mut *from.lock().unwrap_or_else(PoisonError::into_inner));
        let theirs = Arc::clone(&answers);
        let refused =
            std::thread::Builder::new().name("nerite-answers".to_owned()).spawn(move || drop(take(&theirs))).err();
        let Some(refused) = refused else { return Ok(()) };
        let mut kept = take(&answers);
        while let Some(answer) = kept.take_next() {
            answer.post();
        }
        Err(refused)
    }

    /// Takes the next response to deliver.
    pub fn take_next(&mut self) -> Option<LastResponse> {
        self.0.pop_front()
    }

    fn add(&mut self, response: LastResponse) {
        if self.0.capacity() == 0 {
            self.0 = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten().unwrap_or_default();
        }
        self.0.push_back(response);
    }

    /// Whether there is nothing to deliver.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl LastResponse {
    /// Sends the response. The client's next request may run on this thread.
    pub fn deliver(self) {
        let LastResponse { mut reply, response, send, in_flight } = self;
        send(&mut reply, response);
        drop(reply);
        drop(in_flight);
    }

    /// Sends the response now, or after the run if this thread is within one.
    pub(crate) fn post(self) {
        // A thread that is ending has neither an outbox nor a run.
        if !OPEN.try_with(|open| open.borrow().is_some()).unwrap_or(false) {
            return self.deliver();
        }
        OPEN.with_borrow_mut(|open| open.get_or_insert_default().add(self));
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        while let Some(response) = self.take_next() {
            response.deliver();
        }
        let list = std::mem::take(&mut self.0);
        if !(1..=SPARE_RESPONSES_MAX).contains(&list.capacity()) {
            return;
        }
        // A thread that is ending keeps no lists.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(list);
            }
        });
    }
}

/// Restores the previous outbox, also if the work panics.
struct Scope {
    outer: Option<Outbox>,
    is_closed: bool,
}

impl Scope {
    fn close(mut self) -> Outbox {
        self.is_closed = true;
        OPEN.replace(self.outer.take()).unwrap_or_default()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if !self.is_closed {
            drop(OPEN.replace(self.outer.take()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;

    use super::*;
    use crate::ModelVersion;

    type Log = Arc<Mutex<Vec<&'static str>>>;

    fn note(log: &Log, word: &'static str) {
        log.lock().unwrap_or_else(PoisonError::into_inner).push(word);
    }

    fn last(log: &Log, word: &'static str) -> LastResponse {
        let log = Arc::clone(log);
        let reply = Reply::new(move |_| note(&log, word));
        LastResponse {
            reply,
            response: Response::End,
            send: Reply::send,
            in_flight: ModelVersion::unmetered("m").begin(),
        }
    }

    #[track_caller]
    fn check(act: impl FnOnce(&Log), expected: &[&str]) {
        let log = Log::default();
        act(&log);
        assert_eq!(*log.lock().unwrap_or_else(PoisonError::into_inner), expected);
    }

    #[test]
    fn what_a_run_answers_goes_out_after_it_in_order() {
        check(|log| last(log, "a").post(), &["a"]);
        let run = |log: &Log| {
            Outbox::around(|| {
                last(log, "a").post();
                last(log, "b").post();
                note(log, "run");
            })
        };
        check(|log| drop(run(log)), &["run", "a", "b"]);
        check(
            |log| {
                let ((), mut outbox) = run(log);
                note(log, "given back");
                while let Some(response) = outbox.take_next() {
                    response.deliver();
                }
            },
            &["run", "given back", "a", "b"],
        );
    }

    #[test]
    fn a_run_within_a_run_is_answered_before_the_outer_one() {
        let nested = |log: &Log| {
            let ((), outer) = Outbox::around(|| {
                last(log, "outer").post();
                drop(Outbox::around(|| last(log, "inner").post()));
                note(log, "run");
            });
            drop(outer);
            last(log, "after").post();
        };
        check(nested, &["inner", "run", "outer", "after"]);
    }

    #[test]
    fn what_was_answered_before_a_panic_goes_out() {
        let throws = |log: &Log| {
            let run = AssertUnwindSafe(|| {
                Outbox::around(|| {
                    last(log, "a").post();
                    panic!("thrown on purpose");
                })
            });
            assert!(catch_unwind(run).is_err());
            last(log, "after").post();
        };
        check(throws, &["a", "after"]);
    }

    #[test]
    fn a_run_that_waits_delivers_first_what_it_has_answered() {
        // Outside of a run there is nothing to deliver.
        Outbox::deliver_apart().unwrap();
        let log = Log::default();
        let ((), outbox) = Outbox::around(|| {
            last(&log, "a").post();
            Outbox::deliver_apart().unwrap();
            let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
            while log.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                assert!(std::time::Instant::now() < deadline, "the answer is delivered within the run");
                std::thread::yield_now();
            }
            note(&log, "waited");
            last(&log, "b").post();
        });
        note(&log, "run");
        drop(outbox);
        assert_eq!(*log.lock().unwrap_or_else(PoisonError::into_inner), ["a", "waited", "run", "b"]);
    }

    #[test]
    fn another_thread_answers_at_once() {
        let elsewhere = |log: &Log| {
            let ((), outbox) = Outbox::around(|| {
                std::thread::scope(|scope| drop(scope.spawn(|| last(log, "elsewhere").post())));
                note(log, "run");
            });
            assert!(outbox.is_empty());
        };
        check(elsewhere, &["elsewhere", "run"]);
    }
}
