//! How does a model report its own readiness?
//!
//! The process makes a call that waits until the server checks the readiness. Its next call has the answer. So the process needs no thread that
//! listens, and only one check runs at a time.

use nerite_backend::ReadinessDone;
use nerite_request::Status;

use super::{Calls, lock};
use crate::packets::Done;
use crate::shares::Maps;

/// The call of the process that waits for a check, and the callbacks that wait for its answer.
#[derive(Default)]
pub(crate) struct ReadinessQuestion {
    call: Option<u64>,
    done: Option<ReadinessDone>,
    /// Whether the process makes no more calls.
    is_over: bool,
}

impl Calls {
    /// Checks whether the model is ready.
    pub(crate) fn check_ready(&self, done: ReadinessDone) {
        let mut question = lock(&self.question);
        if question.is_over {
            drop(question);
            return done(Err(self.no_answer()));
        }
        let before = question.done.replace(done);
        let call = question.call.take();
        drop(question);
        if let Some(call) = call {
            self.answer(Done { call, is: true }, Maps::default());
        }
        if let Some(before) = before {
            before(Err(self.no_answer()));
        }
    }

    /// Handles a call that waits for the next check. `answer` is the answer to the last one.
    pub(crate) fn hear_ready(&self, call: u64, answer: Option<Result<bool, &str>>) {
        let mut question = lock(&self.question);
        let done = if answer.is_some() { question.done.take() } else { None };
        let is_pending = question.done.is_some();
        if !is_pending {
            question.call = Some(call);
        }
        drop(question);
        if is_pending {
            self.answer(Done { call, is: true }, Maps::default());
        }
        let (Some(answer), Some(done)) = (answer, done) else { return };
        let instance = &self.process.instance;
        done(match answer {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Status::unavailable(format!("Model '{instance}' is not ready (user-defined check failed).")))
            }
            Err(text) => {
                Err(Status::unavailable(format!("Model '{instance}' is not ready (user-defined check failed): {text}")))
            }
        });
    }

    /// Ends all checks, because the process makes no more calls.
    pub(crate) fn end_readiness(&self) {
        let mut question = lock(&self.question);
        question.is_over = true;
        let done = question.done.take();
        drop(question);
        if let Some(done) = done {
            done(Err(self.no_answer()));
        }
    }

    fn no_answer(&self) -> Status {
        Status::unavailable((self.process.unhealthy)("its process ended before its model said whether it is ready"))
    }
}
