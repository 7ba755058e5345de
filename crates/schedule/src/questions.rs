//! Which question does a model's strategy get next, and which answer still counts?
//!
//! ```text
//!   the scheduler asks ──► next ──► asked (outside, one at a time) ──► answer ──► the scheduler asks the same again and takes it
//!                           └─ replaced when the scheduler asks something else
//! ```
//! There is at most one next question, because the beginning of a batch also ends the batch before it.

use crate::event::Ticket;
use crate::joining::Question;

/// The questions to one strategy.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    next: Option<Question<Ticket>>,
    /// The question that is being asked.
    open: Option<Question<Ticket>>,
    /// The last question that was answered, and its answer. `None` after the scheduler took the answer.
    answer: Option<(Question<Ticket>, bool)>,
    /// Whether the strategy has begun a batch, or is beginning one.
    is_open: bool,
}

impl Questions {
    /// The answer to this question. `None`: it is asked next, or is being asked.
    pub fn answer(&mut self, question: Question<Ticket>) -> Option<bool> {
        self.next = None;
        if let Some((_, says)) = self.answer.take_if(|(answered, _)| *answered == question) {
            return Some(says);
        }
        if self.open != Some(question) {
            self.next = Some(question);
        }
        None
    }

    /// No batch is forming any more.
    pub fn end(&mut self) {
        self.next = self.is_open.then_some(Question::Ends);
    }

    /// The question to ask, unless another one is being asked.
    pub fn next(&self) -> Option<Question<Ticket>> {
        self.next.filter(|_| self.open.is_none())
    }

    /// Takes [`Questions::next`], which is being asked from now on.
    pub fn take(&mut self) -> Option<Question<Ticket>> {
        let question = self.next()?;
        self.next = None;
        // Earlier answers are about a batch that the strategy has given up by now.
        self.answer = None;
        self.is_open = question != Question::Ends;
        self.open = Some(question);
        self.open
    }

    /// Forgets [`Questions::next`], because its job has gone.
    pub fn forget(&mut self) {
        self.next = None;
    }

    /// The question was answered. Returns whether the scheduler must be called.
    pub fn answered(&mut self, says: bool) -> bool {
        self.answer = self.open.take().map(|question| (question, says));
        self.answer.is_some_and(|(question, _)| question != Question::Ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `b1` begins with request 1, `j2` asks whether 2 may join, `e` ends; `>` takes the next question, `y` and `n` answer it. After the `=` of a
    /// step is its result: an answer, the question that was taken, or `.` for nothing.
    #[track_caller]
    fn check(steps: &str) {
        let mut questions = Questions::default();
        for step in steps.split_whitespace() {
            let (done, expect) = step.split_once('=').unwrap_or((step, "."));
            let ticket = || Ticket(done[1..].parse().unwrap_or_default());
            let written = |answer: Option<bool>| answer.map_or(".", |says| if says { "yes" } else { "no" }).to_owned();
            let found = match &done[..1] {
                "b" => written(questions.answer(Question::Begins(ticket()))),
                "j" => written(questions.answer(Question::MayJoin(ticket()))),
                "e" => {
                    questions.end();
                    ".".to_owned()
                }
                ">" => match questions.take() {
                    Some(Question::Begins(ticket)) => format!("b{}", ticket.0),
                    Some(Question::MayJoin(ticket)) => format!("j{}", ticket.0),
                    Some(Question::Ends) => "e".to_owned(),
                    None => ".".to_owned(),
                },
                says => {
                    questions.answered(says == "y");
                    ".".to_owned()
                }
            };
            assert_eq!(found, expect, "{step} of {steps}");
        }
    }

    #[test]
    fn a_question_is_asked_once_and_its_answer_taken_once() {
        check("b1 b1 >=b1 >  b1 y b1=yes j2 >=j2 j2 y j2=yes j3 >=j3 n j3=no e >=e y e >");
        check("b1 >=b1 y b1=yes b1 >=b1 y b1=yes");
    }

    #[test]
    fn a_batch_that_is_given_up_begins_anew() {
        // A request with a higher priority arrives before the answer, and is cancelled.
        check("b1 >=b1 b2 b1 y b1=yes j3 >=j3");
        check("b1 >=b1 b2 y b2 >=b2 y b2=yes");
        check("b1 >=b1 y b1=yes j3 >=j3 b2 y b2 >=b2 y b2=yes j3 >=j3 n j3=no");
    }

    #[test]
    fn a_batch_ends_if_it_began() {
        check("e >");
        check("b1 e >");
        check("b1 >=b1 e y >=e y e >");
        check("b1 >=b1 y b1=yes b2 e >=e");
        check("b1 >=b1 y b1=yes e b2 >=b2 y b2=yes");
    }
}
