//! Is a model ready that says so itself?
//!
//! The process waits in a call until the server wants to know; its next call carries the answer. So the process needs no thread that
//! listens, and has one question at most.

use nerite_backend::ReadinessDone;
use nerite_request::Status;

use super::{Calls, lock};
use crate::packets::Done;
use crate::shares::Maps;

/// The process's call that waits for a question, and who waits for the answer.
#[derive(Default)]
pub(crate) struct ReadinessQuestion {
    call: Option<u64>,
    done: Option<ReadinessDone>,
    /// The process calls no more.
    is_over: bool,
}

impl Calls {
    /// Asks the model.
    pub(crate) fn ask_ready(&self, done: ReadinessDone) {
        let mut question = lock(&self.question);
        if question.is_over {
            drop(question);
            return done(Err(self.not_asked()));
        }
        let before = question.done.replace(done);
        let call = question.call.take();
        drop(question);
        if let Some(call) = call {
            self.answer(Done { call, is: true }, Maps::default());
        }
        if let Some(before) = before {
            before(Err(self.not_asked()));
        }
    }

    /// The process waits to be asked. `answer` is that to the last question.
    pub(crate) fn hear_ready(&self, call: u64, answer: Option<Result<bool, &str>>) {
        let mut question = lock(&self.question);
        let done = if answer.is_some() { question.done.take() } else { None };
        let is_asked = question.done.is_some();
        if !is_asked {
            question.call = Some(call);
        }
        drop(question);
        if is_asked {
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

    /// The process calls no more.
    pub(crate) fn end_readiness(&self) {
        let mut question = lock(&self.question);
        question.is_over = true;
        let done = question.done.take();
        drop(question);
        if let Some(done) = done {
            done(Err(self.not_asked()));
        }
    }

    fn not_asked(&self) -> Status {
        Status::unavailable((self.process.unhealthy)("its process ended before its model said whether it is ready"))
    }
}
