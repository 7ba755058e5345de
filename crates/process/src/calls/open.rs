//! How is an open request of a decoupled model answered?
//!
//! ```text
//!   process ── respond: outputs in their memory ──► passed on to the client ── space in its window? ──► memory for the next one ──► process
//! ```
//!
//! The answer to a response has the memory for the next one. It is sent once the client's window has space, or once the response may be kept beyond it
//! ([`super::waiting`]). So a model that sends faster than its client reads has to wait, and the bytes of waiting responses are bounded.

use std::sync::Arc;

use nerite_backend::{Job, Responder, Times};
use nerite_request::{Backlog, Inputs, NextResponse, Status};

use super::waiting::{WaitBudget, Waited};
use super::{Calls, News, lock};
use crate::answer::{self, Ended};
use crate::blocks::Block;
use crate::packets::{
    BatchPacket, CallFailed, CallSaid, Done, MemoryFound, NextOutputMemory, Over, Respond, Response, Responses, Said,
};
use crate::plan::{OutputTarget, Planned, Planner, Sizes};
use crate::shares::Maps;

/// A request in the process that has not ended.
pub(crate) struct Open {
    responder: Responder,
    inputs: Inputs,
    /// Inputs that were copied to memory that the process can access.
    block: Option<Block>,
    /// The memory for the outputs of its next response.
    targets: Vec<OutputTarget>,
    times: Times,
    /// How long its responses may wait for its client.
    budget: WaitBudget,
}

impl Open {
    pub(crate) fn new(planned: Planned, times: Times, counts_responses: bool) -> Open {
        let Planned { job, inputs: block, targets, .. } = planned;
        let (inputs, mut responder) = Job::divide(job);
        if counts_responses {
            responder.count_responses(times.input_end);
        }
        let budget = WaitBudget::of_run(responder.account().is_some());
        Open { responder, inputs, block, targets, times, budget }
    }

    /// The memory with copies of its inputs that the server made.
    pub(crate) fn inputs_block(&self) -> Option<Block> {
        self.block.clone()
    }

    /// Ends it with an error.
    pub(crate) fn fail(self, status: Status) {
        let (responder, times) = self.release();
        responder.finish(Err(status), times);
    }

    /// Ends it because the model has dropped it without a final response.
    pub(crate) fn abandon(self) {
        self.fail(Status::internal(
            "the model let go of this request and of its response sender without sending the final flag",
        ));
    }

    /// Gives it back to run again.
    pub(crate) fn reschedule(self) {
        let Open { responder, inputs, block, targets, times, .. } = self;
        drop((block, targets));
        responder.reschedule(inputs, times);
    }

    /// Ends it with a response that came with the answer to its batch. `times` are those of its execution.
    fn finish_with_batch(mut self, response: &Response, times: Times, sizes: &Sizes) {
        self.responder.output_starts();
        let ended = answer::settle(&mut self.responder, &mut self.targets, Some(response), &mut lock(sizes));
        let (responder, _) = self.release();
        match ended {
            Ended::Done => responder.finish(Ok(()), times),
            Ended::Said(status) => responder.answer_error(status, times),
            Ended::Failed(status) => responder.finish(Err(status), times),
            Ended::Again => responder.finish(Err(no_response()), times),
        }
    }

    /// Ends it with the model's last response.
    fn finish(self, ended: Option<Ended>) {
        let (responder, times) = self.release();
        match ended {
            None => responder.end(times),
            Some(Ended::Done) => responder.finish(Ok(()), times),
            Some(Ended::Said(status)) => responder.answer_error(status, times),
            Some(Ended::Failed(status)) => responder.finish(Err(status), times),
            Some(Ended::Again) => responder.finish(Err(no_response()), times),
        }
    }

    /// Sends a response that is not the last one. An error ends the request.
    fn send(&mut self, ended: Ended) -> Result<(), Status> {
        match ended {
            Ended::Done => self.responder.send(),
            Ended::Said(status) | Ended::Failed(status) => {
                self.responder.send_error(status);
                Ok(())
            }
            Ended::Again => Err(no_response()),
        }
    }

    /// Releases its memory, before the client gets the end: the client may unregister a region as soon as it has it.
    fn release(self) -> (Responder, Times) {
        let Open { responder, inputs, block, targets, mut times, .. } = self;
        drop((inputs, block, targets));
        times.mark_infer_end();
        times.mark_end();
        (responder, times)
    }
}

fn no_response() -> Status {
    Status::internal("the model's process sent a response that is none")
}

impl Calls {
    /// Schedules requests again after they have sent their responses of this run.
    pub(crate) fn again(&self, call: u64, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            self.process.os_process.note_answer();
            self.end(number, Open::reschedule);
        }
        self.answer(Done { call, is: true }, Maps::default());
    }

    /// The run that got these requests has ended. Those that stay open hold no instance from now on.
    pub(crate) fn run_ends(&self, numbers: &[u64]) {
        for number in numbers {
            let Some(request) = self.find(*number) else { continue };
            if let Some(open) = lock(&request).as_mut() {
                open.budget.run_ends();
                self.waiting.run_ends(*number);
            }
        }
    }

    /// Passes on the responses that came with the answer to a batch, in its order. Requests without a response, or with
    /// a later one, stay open. The process has dropped the inputs of the others.
    pub(crate) fn settle(&self, numbers: &[u64], responses: Responses, said: &Said, times: Times) {
        for (number, response) in numbers.iter().zip(responses) {
            let Some(request) = self.find(*number) else { continue };
            let mut held = lock(&request);
            let Some(open) = held.as_ref() else { continue };
            for lost in said.lost() {
                answer::note_lost_of(&open.inputs, &open.targets, &open.responder, lost);
            }
            if response.is_later() {
                continue;
            }
            let open = held.take();
            drop(held);
            self.forget(*number);
            self.batch_inputs.remove(&[*number]);
            if let Some(open) = open {
                self.process.os_process.note_answer();
                open.finish_with_batch(&response, times, &self.sizes);
            }
        }
    }

    /// Passes a response on.
    pub(crate) fn respond(self: &Arc<Calls>, said: &CallSaid, respond: Respond) {
        let Respond { number, response, is_last } = respond;
        let Some(request) = self.find(number) else { return self.over(said.number(), is_last) };
        let mut held = lock(&request);
        let Some(open) = held.as_mut() else { return self.over(said.number(), is_last) };
        for lost in said.lost() {
            answer::note_lost_of(&open.inputs, &open.targets, &open.responder, lost);
        }
        let ended = response.map(|response| {
            open.responder.output_starts();
            answer::settle(&mut open.responder, &mut open.targets, Some(&response), &mut lock(&self.sizes))
        });
        if !is_last {
            let sent = ended.map_or(Ok(()), |ended| open.send(ended));
            if let Err(status) = sent {
                if let Some(open) = held.take() {
                    self.close(number, open, |open| open.fail(status));
                }
                return self.over(said.number(), is_last);
            }
            drop(held);
            return self.grant(number, said.number());
        }
        if let Some(open) = held.take() {
            drop(held);
            self.process.os_process.note_answer();
            self.close(number, open, |open| open.finish(ended));
        }
    }

    /// Answers a response whose wait has ended.
    pub(crate) fn go_on(self: &Arc<Calls>, waited: Waited) {
        if let Some(request) = self.find(waited.number) {
            lock(&request).iter_mut().for_each(|open| open.budget = waited.budget);
        }
        self.grant(waited.number, waited.call);
    }

    /// Answers a response with the memory for the next one, at once or when the next one may be sent.
    pub(crate) fn grant(self: &Arc<Calls>, number: u64, call: u64) {
        let Some(request) = self.find(number) else { return self.over(call, false) };
        let mut held = lock(&request);
        let Some(open) = held.as_mut() else { return self.over(call, false) };
        match self.next_response(number, call, open) {
            NextResponse::Send => {}
            NextResponse::Wait(_) => return,
            NextResponse::End(waits) => {
                if let Some(open) = held.take() {
                    drop(held);
                    self.shed(number, open, waits);
                }
                return self.over(call, false);
            }
        }
        let mut maps = Maps::default();
        let sizes = lock(&self.sizes);
        let (shares, blocks) = (&self.process.shares, &self.process.blocks);
        let mut planner = Planner {
            shares,
            blocks,
            sizes: &sizes,
            maps,
            is_decoupled: true,
            packet: BatchPacket::new(false),
            private_inputs: Vec::new(),
        };
        open.targets = planner.targets(&open.responder);
        maps = planner.maps;
        drop(sizes);
        let memory = NextOutputMemory { call, outputs: open.targets.iter().map(OutputTarget::memory), map: &maps.text }
            .to_string();
        self.answer(memory, maps);
    }

    /// Decides whether the next response to a request may be sent. If it must wait, the wait is noted, and this is called again later.
    fn next_response(self: &Arc<Calls>, number: u64, call: u64, open: &mut Open) -> NextResponse {
        let Some(window) = open.responder.window() else { return NextResponse::Send };
        if open.budget.has_waited() && window.is_half_free() {
            open.budget.note_half_free();
        }
        if window.has_room() {
            return NextResponse::Send;
        }
        if open.budget.may_keep(self.has_others()) {
            let next = window.next_response(open.responder.account().as_ref(), open.budget.left());
            if !matches!(next, NextResponse::Wait(_)) {
                return next;
            }
        }
        // The wait is noted first, because another thread may make room at once.
        self.waiting.add(Waited { number, call, budget: open.budget });
        let calls = Arc::downgrade(self);
        let has_room = move || {
            if let Some(calls) = calls.upgrade() {
                calls.queue(News::HasRoom { number, call });
            }
        };
        if window.on_room(has_room) {
            return NextResponse::Wait(open.budget.left());
        }
        self.waiting.forget(number);
        NextResponse::Send
    }

    /// Ends a request whose client does not read. If the model asks whether the request is cancelled, the answer is yes from now on.
    fn shed(&self, number: u64, open: Open, waits: Backlog) {
        let status = waits.status();
        log::info!("instance '{}': a request ends: {status}", self.process.instance);
        self.process.os_process.note_answer();
        self.close(number, open, |open| open.fail(status));
        self.process.side.give_up(number);
    }

    /// Finds memory for an output of an open request.
    pub(crate) fn output_memory(&self, call: u64, number: u64, name: &str, bytes: usize) {
        let Some(request) = self.find(number) else { return self.over(call, false) };
        let mut held = lock(&request);
        let Some(open) = held.as_mut() else { return self.over(call, false) };
        let (shares, blocks, mut maps) = (&self.process.shares, &self.process.blocks, Maps::default());
        let found = answer::find_output_memory(
            &mut open.responder,
            &mut open.targets,
            (name, bytes),
            shares,
            blocks,
            &mut maps,
        );
        drop(held);
        match found {
            Ok((location, capacity)) => {
                let found = MemoryFound { call, location, capacity, map: &maps.text }.to_string();
                self.answer(found, maps);
            }
            Err(status) => self.answer(CallFailed { call, why: &status.message }, maps),
        }
    }

    /// Answers that the client takes no further responses. There is no answer to a last response.
    fn over(&self, call: u64, is_last: bool) {
        if !is_last {
            self.answer(Over(call), Maps::default());
        }
    }
}
