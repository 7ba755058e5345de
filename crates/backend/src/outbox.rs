//! When does the last response of a request go out?
//!
//! At once, unless the thread is within [`Outbox::around`]: then after that. Whoever runs an instance wraps the run so, gives the
//! instance back, and then delivers. So a client's thread that asks again as soon as it is answered (a step of an ensemble, say)
//! finds the instance idle, and nothing recurses into an instance that is still held. Responses that others follow go out at once.

use std::cell::RefCell;

use nerite_request::{Reply, Response};
use smallvec::SmallVec;

use crate::InFlight;

thread_local! {
    /// `None` outside of a run.
    static OPEN: RefCell<Option<Outbox>> = const { RefCell::new(None) };
}

/// The last responses that one run made.
#[derive(Default)]
pub struct Outbox(SmallVec<[LastResponse; 1]>);

/// The last response to a request, and its way.
pub struct LastResponse {
    pub(crate) reply: Reply,
    pub(crate) response: Response,
    /// How it is given to the reply.
    pub(crate) send: fn(&mut Reply, Response),
    /// The model may be unloaded only after the response has gone: dropped last.
    pub(crate) in_flight: InFlight,
}

impl Outbox {
    /// Does `work` and holds back the last responses that it makes on this thread.
    pub fn around<T>(work: impl FnOnce() -> T) -> (T, Outbox) {
        let scope = Scope { outer: OPEN.replace(Some(Outbox::default())), is_closed: false };
        let done = work();
        (done, scope.close())
    }

    /// The next one to deliver.
    pub fn take_next(&mut self) -> Option<LastResponse> {
        if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
    }

    /// Whether nothing is to be delivered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl LastResponse {
    /// Sends it. What the client does next happens on this thread, if it chooses so.
    pub fn deliver(self) {
        let LastResponse { mut reply, response, send, in_flight } = self;
        send(&mut reply, response);
        drop(reply);
        drop(in_flight);
    }

    /// Sends it now, or after the run of this thread.
    pub(crate) fn post(self) {
        let mut unsent = Some(self);
        // A thread that ends has no outbox any more, and no run.
        let _ = OPEN.try_with(|open| {
            if let Some(outbox) = &mut *open.borrow_mut() {
                outbox.0.extend(unsent.take());
            }
        });
        if let Some(unsent) = unsent {
            unsent.deliver();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        while let Some(response) = self.take_next() {
            response.deliver();
        }
    }
}

/// Puts back what was open before, also if the work panics.
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
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Mutex, PoisonError};

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
