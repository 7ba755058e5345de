//! What is recorded about a batch that a process has, and which questions may the process send before its answer?

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nerite_backend::{Meter, Times};

use crate::answer;
use crate::blocks::Blocks;
use crate::channel::{LongText, Mark};
use crate::child::{ReceivedAnswer, Silence, said_long};
use crate::limits::NEEDS_AT_ONCE_MAX;
use crate::live::Live;
use crate::packets::{Responses, Said};
use crate::passed_on;
use crate::plan::Planned;
use crate::supervisor::Side;

/// A batch that the process has.
pub(crate) struct UnderWay {
    pub(crate) planned: Vec<Planned>,
    /// For a decoupled model: the numbers of the requests, which may continue after the batch.
    pub(crate) open: Vec<u64>,
    /// Whether the process has asked for memory for one of its outputs, so it has read the batch.
    pub(crate) is_read: bool,
    /// The mark of the batch's packet.
    pub(crate) mark: Mark,
    /// How often it has asked for memory.
    pub(crate) needs: usize,
    pub(crate) rows: u64,
    pub(crate) times: Times,
    pub(crate) meter: Arc<dyn Meter>,
}

/// The work that a thread that must not wait leaves to one that may.
pub(crate) enum Left {
    /// The answer to a question, for which the socket has no space: the process reads too little.
    Reply(String, Vec<OwnedFd>),
    /// A long text is to be read.
    Long(LongText),
    /// The process has asked for memory very often.
    Needs,
}

/// Why there is no answer.
pub(crate) enum NoAnswer {
    Silence(Silence),
    Left(Left),
}

/// The result of a batch.
pub(crate) enum Answer {
    Responses(Responses),
    /// The whole batch failed, with the process's reason.
    Failed(String),
}

impl UnderWay {
    /// Corrects the reason: whether the process had read the batch. If the process has asked for memory, it had read the batch, even if it left a
    /// later packet unread. Otherwise the kernel reports whether the last packet was unread. If so, no part of the batch was executed.
    fn corrected(&self, live: &Live, silence: Silence) -> Silence {
        match silence {
            Silence::NotReceived if self.is_read => Silence::Closed,
            Silence::Closed if !self.is_read && live.child.channel.left_last_unread(self.mark) => Silence::NotReceived,
            other => other,
        }
    }

    fn no_answer(&self, live: &Live, silence: Silence) -> NoAnswer {
        NoAnswer::Silence(self.corrected(live, silence))
    }

    /// Does the work that was left, then answers the questions of the process until it answers the command. A limited
    /// `timeout` means that the thread must not wait for the process in any other way. With a timeout of zero it reads the
    /// packets that are there, and answers at most [`NEEDS_AT_ONCE_MAX`] questions: a front thread is woken only for a
    /// packet that comes later.
    pub(crate) fn converse(
        &mut self,
        live: &mut Live,
        blocks: &Blocks,
        timeout: Option<Duration>,
        left: Option<Left>,
    ) -> Result<Said, NoAnswer> {
        let mut known = match left {
            None | Some(Left::Needs) => None,
            Some(Left::Long(long)) => Some(said_long(long)),
            Some(Left::Reply(text, descriptors)) => {
                live.child.send(&text, &descriptors).map_err(|error| self.no_answer(live, error))?;
                None
            }
        };
        loop {
            let received = match (known.take(), timeout) {
                (Some(said), _) => said.map(ReceivedAnswer::Said),
                (None, Some(Duration::ZERO)) => live.child.answer_at_once(),
                (None, Some(timeout)) => live.child.wait(timeout).and_then(|()| live.child.answer_at_once()),
                (None, None) => live.child.answer().map(ReceivedAnswer::Said),
            };
            let said = match received.map_err(|error| self.no_answer(live, error))? {
                ReceivedAnswer::Said(said) => said,
                ReceivedAnswer::Long(long) => return Err(NoAnswer::Left(Left::Long(long))),
            };
            let Some(need) = said.need() else {
                answer::note_lost(&self.planned, said.lost());
                answer::note_copied(said.copied());
                return Ok(said);
            };
            (self.is_read, self.needs) = (true, self.needs.saturating_add(1));
            let (text, maps) = answer::find_space(&mut self.planned, need, &live.shares, blocks);
            if timeout.is_none() {
                live.child.send(&text, &maps.descriptors).map_err(|error| self.no_answer(live, error))?;
                continue;
            }
            if !live.child.try_send(&text, &maps.descriptors).map_err(|error| self.no_answer(live, error))? {
                return Err(NoAnswer::Left(Left::Reply(text, maps.descriptors)));
            }
            if self.needs >= NEEDS_AT_ONCE_MAX {
                return Err(NoAnswer::Left(Left::Needs));
            }
        }
    }
}

/// The result in the answer to a batch.
pub(crate) fn answer_of(mut said: Said) -> Result<(Answer, Said), Silence> {
    if let Some(error) = said.error() {
        return Ok((Answer::Failed(error.unwrap_or("it does not say why").to_owned()), said));
    }
    match said.take_responses() {
        Some(responses) => Ok((Answer::Responses(responses), said)),
        None => Err(Silence::Ended("its answer has neither responses nor an error".to_owned())),
    }
}

/// Keeps memory that the model's arrays use, and releases memory that they do not use any more.
pub(crate) fn keep(side: &Side, planned: &[Planned], said: &Said) {
    side.release_segments(said.let_go());
    for segment in said.held() {
        if let Some(block) = planned.iter().flat_map(Planned::blocks).find(|block| block.segment() == segment) {
            side.keep(block);
            continue;
        }
        let mut inputs = planned.iter().flat_map(|planned| planned.job.inputs());
        if let Some(input) = inputs.find(|input| passed_on::number(&input.data) == Some(segment)) {
            side.keep_buffer(segment, input.data.clone());
        }
    }
}
