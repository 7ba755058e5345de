//! How does a request go on that its model may answer many times?
//!
//! ```text
//!   process ── respond: outputs at their places ──► passed on to the client ── its window has room? ──► places of the next response ──► process
//! ```
//!
//! The answer to a response brings the places of the next one. It is given once the client's window has room, so a model that sends faster
//! than its client reads waits, and what waits for the client is bounded.

use std::sync::Arc;

use nerite_backend::{Job, Responder, Times};
use nerite_request::Status;
use nerite_tensor::Tensor;

use super::{Calls, News, lock};
use crate::answer::{self, Ended};
use crate::blocks::Block;
use crate::packets::{BatchPacket, CallSaid, Done, NoPlace, Over, Place, Places, Respond};
use crate::plan::{Home, Planned, Planner};
use crate::shares::Maps;

/// A request that the process has, and that has not ended.
pub(crate) struct Open {
    responder: Responder,
    inputs: Vec<Tensor>,
    /// Inputs that were copied to where the process reaches them.
    block: Option<Block>,
    /// Where the outputs of its next response go.
    homes: Vec<Home>,
    times: Times,
}

impl Open {
    pub(crate) fn new(planned: Planned, times: Times) -> Open {
        let Planned { job, inputs: block, homes, .. } = planned;
        let (inputs, responder) = Job::divide(job);
        Open { responder, inputs, block, homes, times }
    }

    /// The copies of its inputs that the server made.
    pub(crate) fn inputs_block(&self) -> Option<Block> {
        self.block.clone()
    }

    /// Ends it with an error.
    pub(crate) fn fail(self, status: Status) {
        let (responder, times) = self.release();
        responder.finish(Err(status), times);
    }

    /// The model can answer it no more and did not say that it has ended.
    pub(crate) fn abandon(self) {
        self.fail(Status::internal(
            "the model let go of this request and of its response sender without sending the final flag",
        ));
    }

    /// Gives it back to run again.
    pub(crate) fn reschedule(self) {
        let Open { responder, inputs, block, homes, times } = self;
        drop((block, homes));
        responder.reschedule(inputs, times);
    }

    /// Ends it as the model's last response says.
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

    /// Sends a response that others follow. An Err is the end of the request.
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

    /// Lets its memory go: the client may unregister a region as soon as it hears of the end.
    fn release(self) -> (Responder, Times) {
        let Open { responder, inputs, block, homes, mut times } = self;
        drop((inputs, block, homes));
        times.infer_ends();
        times.ends();
        (responder, times)
    }
}

fn no_response() -> Status {
    Status::internal("the model's process sent a response that is none")
}

impl Calls {
    /// Requests are to run again: each sent what it had to send in this run.
    pub(crate) fn again(&self, call: u64, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            self.end(number, Open::reschedule);
        }
        self.answer(Done { call, is: true }, Maps::default());
    }

    /// Passes a response on.
    pub(crate) fn respond(self: &Arc<Calls>, said: &CallSaid, respond: Respond) {
        let Respond { number, response, is_last } = respond;
        let Some(request) = self.find(number) else { return self.over(said.number(), is_last) };
        let mut held = lock(&request);
        let Some(open) = held.as_mut() else { return self.over(said.number(), is_last) };
        for lost in said.lost() {
            answer::note_lost_of(&open.inputs, &open.homes, &open.responder, lost);
        }
        let ended = response.map(|response| {
            answer::settle(&mut open.responder, &mut open.homes, Some(&response), &mut lock(&self.sizes))
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
            self.close(number, open, |open| open.finish(ended));
        }
    }

    /// Answers a response with the places of the next one, now or when the client has room for it.
    pub(crate) fn grant(self: &Arc<Calls>, number: u64, call: u64) {
        let Some(request) = self.find(number) else { return self.over(call, false) };
        let mut held = lock(&request);
        let Some(open) = held.as_mut() else { return self.over(call, false) };
        if let Some(window) = open.responder.window() {
            let calls = Arc::downgrade(self);
            let has_room = move || {
                if let Some(calls) = calls.upgrade() {
                    calls.tell(News::HasRoom { number, call });
                }
            };
            if window.on_room(has_room) {
                return;
            }
        }
        let mut maps = Maps::default();
        let sizes = lock(&self.sizes);
        let (shares, blocks) = (&self.process.shares, &self.process.blocks);
        let mut planner = Planner { shares, blocks, sizes: &sizes, maps, told: BatchPacket::new(false) };
        open.homes = open.responder.wanted().map(|name| planner.home(&open.responder, name)).collect();
        maps = planner.maps;
        drop(sizes);
        let places = Places { call, outputs: open.homes.iter().map(Home::told), map: &maps.text }.to_string();
        self.answer(places, maps);
    }

    /// Finds a place for an output of an open request.
    pub(crate) fn place(&self, call: u64, number: u64, name: &str, bytes: usize) {
        let Some(request) = self.find(number) else { return self.over(call, false) };
        let mut held = lock(&request);
        let Some(open) = held.as_mut() else { return self.over(call, false) };
        let (shares, blocks, mut maps) = (&self.process.shares, &self.process.blocks, Maps::default());
        let found = answer::find_place(&mut open.responder, &mut open.homes, (name, bytes), shares, blocks, &mut maps);
        drop(held);
        match found {
            Ok((spot, capacity)) => {
                let place = Place { call, spot, capacity, map: &maps.text }.to_string();
                self.answer(place, maps);
            }
            Err(status) => self.answer(NoPlace { call, why: &status.message }, maps),
        }
    }

    /// Nobody takes further responses to the request. Who sent the last one does not wait.
    fn over(&self, call: u64, is_last: bool) {
        if !is_last {
            self.answer(Over(call), Maps::default());
        }
    }
}
