//! How does a child answer one request?
//!
//! If the engine has finished with the request when the run ends, the answer is part of the packet that answers the batch. Otherwise it is sent by
//! calls. This concerns requests of decoupled models, those that the engine answers after the run, and those whose inputs it still reads.

mod answers;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

use nerite_backend::{Job, Noted, Reschedule};
use nerite_locks::Mutex;
use nerite_memory::{Buffer, Slot};
use nerite_process::packets::{MemoryCall, OutputMemory, Released, RescheduleCall, SendResponse};
use nerite_request::{Code, Deliver, ExactlyOne, InferResponse, PlaceQuery, Recycled, Response, Status};
use nerite_shm::SharedMapping;
use nerite_tensor::Tensor;

use super::calls::{CallAnswer, Calls, wait};
use super::memory::slot;
use super::server_channel::{OutputSpace, ServerChannel};

pub(super) use answers::Answered;

/// One request.
pub(super) struct WorkerRequest {
    server: Arc<ServerChannel>,
    number: u64,
    index: usize,
    is_decoupled: bool,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    targets: HashMap<String, OutputTarget>,
    /// The memory in which its tensors lie.
    used: BTreeMap<u64, SharedMapping>,
    one: ExactlyOne,
    response: Option<Result<Recycled<InferResponse>, Status>>,
    /// The states that its model kept for the next request of its sequence.
    states: Vec<Tensor>,
    /// What a compiled backend reported about it.
    noted: Option<Arc<Noted>>,
    /// Outputs whose memory the engine has: a second response gets memory of its own.
    taken: HashSet<String>,
    /// Whether it is answered by calls from now on.
    is_open: bool,
    /// The server's answer to the last response: where the outputs of the next one go. It arrives when the client's window has room for the next
    /// response.
    next: Option<Receiver<CallAnswer>>,
    /// Whether its responses are dropped: its client or the server has gone.
    is_over: bool,
    /// Whether its last response was sent.
    is_ended: bool,
    /// Whether it runs again, as another request of this process.
    is_again: bool,
    /// Whether the engine has dropped its inputs.
    is_released: bool,
}

/// The memory for an output.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputTarget {
    /// `None` if it has none yet.
    pub(super) space: Option<OutputSpace>,
    /// Whether the client named it, so that no other memory may replace it.
    pub(super) fixed: bool,
}

impl WorkerRequest {
    pub(super) fn new(
        server: &Arc<ServerChannel>,
        number: u64,
        index: usize,
        is_decoupled: bool,
    ) -> Arc<WorkerRequest> {
        let state = Mutex::new(State { is_open: is_decoupled, ..State::default() });
        Arc::new(WorkerRequest {
            server: Arc::clone(server),
            number,
            index,
            is_decoupled,
            state,
            answered: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a response of the engine.
    pub(super) fn take(&self, response: Response) {
        if self.state().is_again {
            return;
        }
        match self.server.calls() {
            Some(calls) if self.is_decoupled => self.send(calls, response),
            calls => self.take_one(calls, response),
        }
    }

    fn take_one(&self, calls: Option<&Arc<Calls>>, response: Response) {
        let mut state = self.state();
        let Some(outcome) = state.one.take(response) else { return };
        let outcome = outcome.unwrap_or_else(|not_one| Err(not_one.into()));
        if let (true, Some(calls)) = (state.is_open, calls) {
            drop(state);
            return self.send_last(calls, Some(outcome));
        }
        state.response = Some(outcome);
        drop(state);
        self.answered.notify_all();
    }

    /// Waits for its answer.
    pub(super) fn wait(&self) -> Result<Recycled<InferResponse>, Status> {
        let mut state = self.state();
        loop {
            match state.response.take() {
                Some(response) => return response,
                None => state = self.answered.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Its answer after the run, if the request is finished. Otherwise it is answered by calls.
    pub(super) fn settle(&self) -> Option<Result<Recycled<InferResponse>, Status>> {
        let mut state = self.state();
        if state.is_released
            && !state.is_open
            && let Some(response) = state.response.take()
        {
            drop(state);
            self.server.gone().ends(self.number);
            return Some(response);
        }
        state.is_open = true;
        None
    }

    /// Sends the answer of a request that the engine answered during the run, but did not finish.
    pub(super) fn go_on(&self) {
        let response = self.state().response.take();
        if let (Some(response), Some(calls)) = (response, self.server.calls()) {
            self.send_last(calls, Some(response));
        }
    }

    /// Sends one of several responses.
    fn send(&self, calls: &Arc<Calls>, response: Response) {
        let is_last = response.is_last();
        let content = response.into_content();
        if content.is_some() && self.await_targets().is_err() && !is_last {
            return;
        }
        if is_last {
            return self.send_last(calls, content);
        }
        let Some(content) = content else { return };
        let answered = Answered::of(self, content);
        let sent = calls.send(|call| self.packet(call, Some(&answered), false));
        let mut state = self.state();
        state.is_over |= sent.is_err();
        state.next = sent.ok();
    }

    /// Sends the last response, or only that none follows.
    fn send_last(&self, calls: &Arc<Calls>, response: Option<Result<Recycled<InferResponse>, Status>>) {
        let answered = response.map(|response| Answered::of(self, response));
        // If this fails, the server is gone.
        let _ = calls.send_unanswered(&self.packet(0, answered.as_ref(), true));
        self.end();
    }

    /// Notes that no response of this request follows. If its backend has released it already, this is reported to the server.
    fn end(&self) {
        self.server.gone().ends(self.number);
        let mut state = self.state();
        state.is_ended = true;
        let is_released = state.is_released;
        drop(state);
        if is_released {
            self.report_released();
        }
    }

    fn packet(&self, call: u64, answered: Option<&Answered>, is_last: bool) -> String {
        let lost = self.lost();
        let (copied, unmapped) = (self.server.take_copied(), self.server.memory().take_unmapped());
        let response = answered.map(Answered::read);
        let (number, response) = (self.number, response.as_ref());
        SendResponse { call, number, response, is_last, lost: &lost, copied: &copied, unmapped: &unmapped }.to_string()
    }

    /// Returns the request to the server, which runs it again. This waits until the server has taken it, because the server takes it only while the
    /// present run continues.
    fn run_again(&self, calls: &Calls) {
        let number = self.number;
        let answer = calls.send(|call| RescheduleCall { call, number }.to_string());
        // If this fails, the server is gone.
        let _ = answer.and_then(|answer| wait(&answer));
        self.end();
    }

    /// Waits until its client can take the next response.
    fn await_targets(&self) -> Result<(), Status> {
        let over = || Status::new(Code::Cancelled, "nobody takes further responses of this request");
        let mut state = self.state();
        let next = state.next.take();
        if state.is_over {
            return Err(over());
        }
        drop(state);
        let Some(next) = next else { return Ok(()) };
        let answer = wait(&next);
        let mut state = self.state();
        let Some(answer) = answer.ok().filter(|answer| !answer.is_over()) else {
            state.is_over = true;
            return Err(over());
        };
        for memory in answer.output_memory().flatten() {
            state.targets.insert(memory.name.to_owned(), OutputTarget::of(memory));
        }
        Ok(())
    }

    /// The engine has dropped all of its inputs.
    fn released(&self) {
        let mut state = self.state();
        state.is_released = true;
        let is_to_end = state.is_open && state.is_ended;
        drop(state);
        if is_to_end {
            self.report_released();
        }
    }

    fn report_released(&self) {
        if let Some(calls) = self.server.calls() {
            // If this fails, the server is gone.
            let _ = calls.send_unanswered(&Released(self.number).to_string());
        }
    }

    /// Segments whose memory was lost under the request, and the offsets.
    pub(super) fn lost(&self) -> Vec<[u64; 2]> {
        let state = self.state();
        state.used.iter().filter_map(|(segment, one)| Some([*segment, one.lost_at()? as u64])).collect()
    }

    /// The segment of that number. It stays mapped until the request has been answered.
    pub(super) fn mapping(&self, segment: u64) -> Result<SharedMapping, Status> {
        let mapping = self.server.memory().get(segment, self.server.calls().is_some())?;
        self.state().used.insert(segment, mapping.clone());
        Ok(mapping)
    }

    /// Keeps the states of its model.
    pub(super) fn set_states(&self, states: Vec<Tensor>) {
        self.state().states = states;
    }

    /// Sets where a compiled backend's report about it is found.
    pub(super) fn set_noted(&self, noted: Arc<Noted>) {
        self.state().noted = Some(noted);
    }

    /// Whether a compiled backend reported it as a success. Then an error is the backend's answer.
    pub(super) fn is_noted_success(&self) -> bool {
        self.state().noted.as_ref().is_some_and(|noted| noted.is_success())
    }

    /// Takes the states of its model.
    pub(super) fn take_states(&self) -> Vec<Tensor> {
        std::mem::take(&mut self.state().states)
    }

    /// Sets the memory for an output.
    pub(super) fn set_target(&self, output: OutputMemory<'_>) -> OutputTarget {
        let target = OutputTarget::of(output);
        self.state().targets.insert(output.name.to_owned(), target);
        target
    }

    /// The memory for this output, as far as it is known.
    pub(super) fn target(&self, output: &str) -> Option<OutputTarget> {
        self.state().targets.get(output).copied()
    }

    /// Whether `data` begins where the space begins.
    pub(super) fn lies_in(&self, space: OutputSpace, data: &Buffer) -> bool {
        self.state()
            .used
            .get(&space.location.segment)
            .is_some_and(|mapping| mapping.starts(space.location.offset, data))
    }

    /// Memory of this many bytes for an output without memory of the client; `None` for 0 bytes.
    pub(super) fn space(&self, output: &str, bytes: usize) -> Result<Option<(OutputSpace, Slot)>, Status> {
        if bytes == 0 {
            return Ok(None);
        }
        let guess = self.target(output).and_then(|target| target.space).filter(|space| space.capacity >= bytes);
        let space = match (guess, self.server.calls()) {
            (Some(space), _) => space,
            (None, None) => self.server.request_space(self.index, output, bytes)?,
            (None, Some(calls)) => self.request_space(calls, output, bytes)?,
        };
        let slot = slot(&self.mapping(space.location.segment)?, space.location.offset, bytes)?;
        self.state().targets.insert(output.to_owned(), OutputTarget { space: Some(space), fixed: false });
        Ok(Some((space, slot)))
    }

    fn request_space(&self, calls: &Calls, name: &str, bytes: usize) -> Result<OutputSpace, Status> {
        let number = self.number;
        let answer = wait(&calls.send(|call| MemoryCall { call, number, name, bytes }.to_string())?)?;
        if let Some(error) = answer.error() {
            return Err(Status::unavailable(error));
        }
        if answer.is_over() {
            return Err(Status::new(Code::Cancelled, "the request is over"));
        }
        OutputSpace::read(&answer, bytes)
    }

    /// Memory for an output that the engine requests before it computes. Several responses may be made at the same time. Only one of them can have
    /// this memory.
    fn offer(&self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        let is_compiled = self.server.calls().is_some();
        if is_compiled && (self.is_decoupled || !self.state().taken.insert(query.output.to_owned())) {
            return Ok(None);
        }
        Ok(self.space(query.output, query.bytes)?.map(|(_, slot)| slot))
    }
}

impl Reschedule for WorkerRequest {
    fn again(self: Arc<Self>, job: Job, _: u64) {
        let Some(calls) = self.server.calls() else { return };
        let mut state = self.state();
        (state.is_again, state.is_open) = (true, true);
        drop(state);
        // The dropped job is answered with an error. `is_again` keeps that error from being sent.
        drop(job);
        self.run_again(calls);
    }
}

impl OutputTarget {
    fn of(memory: OutputMemory<'_>) -> OutputTarget {
        let OutputMemory { location, capacity, fixed, .. } = memory;
        OutputTarget { space: location.map(|location| OutputSpace { location, capacity }), fixed }
    }
}

/// Takes the responses of a request from the engine.
pub(super) struct Way(pub(super) Arc<WorkerRequest>);

impl Deliver for Way {
    fn deliver(&mut self, response: Response) {
        self.0.take(response);
    }

    fn offers_places(&self) -> bool {
        true
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        self.0.offer(query)
    }
}

/// Dropped with the last of a request's inputs.
pub(super) struct InputsHeld(pub(super) Arc<WorkerRequest>);

impl Drop for InputsHeld {
    fn drop(&mut self) {
        self.0.released();
    }
}
