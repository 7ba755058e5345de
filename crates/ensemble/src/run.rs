//! How does one request run through the steps?
//!
//! Each answer of a step is an event. One thread at a time takes the events of a request, and starts the steps that
//! follow from them. A step that answers before its start returns only adds an event, so a long chain of steps does not
//! grow the stack.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::{Job, Meter, Models, Times};
use nerite_locks::Mutex;
use nerite_memory::Slot;
use nerite_request::{
    Cancel, Client, Code, Deliver, InferResponse, InputMemory, Name, Output, Parameters, PeerAccount, PlaceQuery,
    Recycled, Reply, Request, RequestTrace, Response, ResponseWindow, Sequence, Status, Wanted, WantedOutputs,
};
use nerite_tensor::Tensor;
use smallvec::SmallVec;

use crate::flow::{Action, Branch, Flow};
use crate::outputs::{Outputs, Sent, Value};
use crate::plan::{Plan, TensorIndex};
use crate::readers::Readers;
use crate::sequence::SequenceOfSteps;

/// One request of an ensemble.
pub struct Run {
    plan: Arc<Plan>,
    ensemble: Arc<str>,
    models: Models,
    meter: Arc<dyn Meter>,
    rows: u64,
    /// The fields that the requests of all steps have in common.
    shared: Shared,
    outputs: Outputs,
    client: Cancel,
    /// The window of each step. A step that answers many times waits while the steps after it have not used its
    /// answers, or the client has not taken the responses. Empty if no step answers several times.
    windows: Vec<Arc<ResponseWindow>>,
    readers: Readers,
    state: Mutex<State>,
}

/// The fields of a request that the requests of its steps share.
struct Shared {
    id: Name,
    priority: u64,
    timeout_us: u64,
    client: Client,
    parameters: Parameters,
    /// The trace of the request, if it has one. Each step is a request of its own in it.
    trace: Option<Arc<RequestTrace>>,
    /// The account that is charged for what the steps leave behind.
    account: Option<PeerAccount>,
    /// Whether responses are delivered through functions of other code, which may wait. The thread of the last step
    /// delivers them.
    may_wait: bool,
}

struct State {
    /// `None` once the request has ended.
    flow: Option<Flow<Value>>,
    events: VecDeque<Event>,
    /// Whether a thread is taking the events.
    is_driven: bool,
    /// The steps that run, each with its cancel flag.
    running: HashMap<(Branch, usize), Cancel>,
    /// The sequence that the next steps belong to.
    sequence: SequenceOfSteps,
    times: Times,
}

/// The answer of a step.
struct Answer {
    outputs: Vec<(usize, Value)>,
    parameters: Parameters,
}

enum Event {
    /// A step answered.
    Answered { branch: Branch, step: usize, answer: Answer, is_last: bool, is_only: bool },
    /// A step ended without another answer.
    Ended { branch: Branch, step: usize },
    /// A step failed, or the request is to end early.
    Failed(Status),
}

impl Run {
    /// Takes a request and starts its first steps.
    pub fn start(plan: &Arc<Plan>, ensemble: &Arc<str>, models: &Models, meter: &Arc<dyn Meter>, job: Job) {
        let times = job.begin();
        let shared = Shared {
            id: job.id().into(),
            priority: job.priority(),
            timeout_us: job.timeout_us(),
            client: job.client(),
            parameters: job.parameters().clone(),
            trace: job.responder().trace().cloned(),
            account: job.responder().account(),
            may_wait: job.may_wait(),
        };
        if let Some(trace) = &shared.trace {
            trace.composes();
        }
        let sequence = SequenceOfSteps::of(job.sequence());
        let rows = u64::from(job.rows().max(1));
        let (inputs, mut responder) = job.divide();
        if plan.is_decoupled {
            responder.count_responses(times.start);
        }
        let indices: Vec<usize> = (0..inputs.len()).map(|position| inputs.index_of(position)).collect();
        let brought = indices.into_iter().zip(inputs).filter_map(|(index, tensor)| {
            let Tensor { datatype, shape, data, .. } = tensor;
            let value = Value { datatype, shape, data, placed: false, copies: None, _permit: None };
            Some((*plan.inputs.get(index)?, value))
        });
        let wanted = responder.wanted_outputs().indexed();
        let wanted = wanted.filter_map(|(index, _)| plan.outputs.get(index).copied()).collect();
        let flow = Flow::begin(Arc::clone(plan), brought.collect(), wanted);
        let (client, stop) = (responder.cancel().clone(), responder.stop().clone());
        let decoupled_steps = if plan.is_decoupled { plan.steps.as_slice() } else { &[] };
        let windows = decoupled_steps.iter().map(|_| ResponseWindow::within(responder.window())).collect();
        let run = Arc::new(Run {
            plan: Arc::clone(plan),
            ensemble: Arc::clone(ensemble),
            models: models.clone(),
            meter: Arc::clone(meter),
            rows,
            shared,
            state: Mutex::new(State {
                flow: Some(flow),
                events: VecDeque::new(),
                is_driven: true,
                running: HashMap::new(),
                sequence,
                times,
            }),
            outputs: Outputs::through(responder),
            client,
            windows,
            readers: Readers::new(plan, models),
        });
        let whom = Arc::downgrade(&run);
        let gone = || Event::Failed(Status::new(Code::Cancelled, ""));
        let is_wanted = stop.on_cancelled(move || {
            if let Some(run) = whom.upgrade() {
                run.take(gone());
            }
        });
        if !is_wanted {
            run.lock().events.push_back(Event::Failed(Status::new(Code::Cancelled, "")));
        }
        run.drive();
    }

    /// Adds an event. This thread takes it, unless another one is taking events already.
    fn take(self: &Arc<Run>, event: Event) {
        {
            let mut state = self.lock();
            state.events.push_back(event);
            if std::mem::replace(&mut state.is_driven, true) {
                return;
            }
        }
        self.drive();
    }

    /// Takes events and acts on them, until there are none. The caller has set `is_driven`.
    fn drive(self: &Arc<Run>) {
        loop {
            let mut state = self.lock();
            let failure = state.events.pop_front().and_then(|event| state.apply(event));
            if let Some(failure) = failure {
                drop(state);
                self.fail(failure);
                continue;
            }
            let action = state.flow.as_mut().and_then(Flow::next_action);
            let is_done = state.flow.as_ref().is_some_and(Flow::is_done);
            match action {
                Some(Action::Start { branch, step, inputs }) => {
                    let begun = Begun { cancel: Cancel::new(), sequence: state.sequence.get() };
                    state.running.insert((branch, step), begun.cancel.clone());
                    drop(state);
                    self.begin_step(branch, step, inputs, begun);
                }
                Some(Action::Send(outputs)) => {
                    let last = is_done.then_some(state.times);
                    if last.is_some() {
                        state.flow = None;
                    }
                    // Triton adds the parameters once for each output, so a response without outputs has none.
                    let parameters = if outputs.is_empty() { Parameters::new() } else { state.sequence.parameters() };
                    drop(state);
                    self.send(outputs, last, parameters);
                }
                None if is_done && state.events.is_empty() => {
                    let sent = state.flow.take().map_or(0, |flow| flow.sent());
                    let times = state.times;
                    drop(state);
                    self.end(sent, times);
                }
                None if state.events.is_empty() => {
                    state.is_driven = false;
                    return;
                }
                None => {}
            }
        }
    }

    /// Sends a request to the model of a step. Its responses come through [`StepReply`], perhaps before this returns.
    fn begin_step(self: &Arc<Run>, branch: Branch, number: usize, inputs: Vec<(usize, Value)>, begun: Begun) {
        let step = &self.plan.steps[number];
        let inputs = inputs.into_iter().filter_map(|(position, value)| {
            let data = value.data_for(number).clone();
            let Value { datatype, shape, .. } = value;
            let input = step.inputs.get(position)?;
            Some(Tensor { name: input.name.as_str().into(), datatype, shape: input.batch.apply(shape), data })
        });
        let wanted = step.outputs.iter().map(|output| Wanted {
            name: output.name.as_str().into(),
            slot: self.plan.output_index(output.tensor).and_then(|output| self.outputs.take_place(output)),
        });
        let Shared { id, priority, timeout_us, client, parameters, trace, .. } = &self.shared;
        let trace = trace.as_ref().map(|trace| trace.child());
        let request = Request {
            id: id.clone(),
            priority: *priority,
            timeout_us: *timeout_us,
            sequence: begun.sequence,
            client: *client,
            parameters: parameters.clone(),
            cancel: begun.cancel,
            ..Request::new(
                inputs.collect::<nerite_request::Inputs>(),
                wanted.collect(),
                Reply::through(StepReply {
                    run: Arc::clone(self),
                    branch,
                    step: number,
                    indices: SmallVec::new(),
                    has_answered: false,
                    trace,
                }),
            )
        };
        self.models.infer(&step.model, step.version, request);
    }

    /// The input memory that this tensor should be written to.
    fn input_memory(&self, tensor: TensorIndex) -> Option<Arc<dyn InputMemory>> {
        self.readers.input_memory(tensor, |step| self.needs(step))
    }

    /// Whether a step has to run for this request.
    fn needs(&self, step: usize) -> bool {
        self.lock().flow.as_ref().is_some_and(|flow| flow.needs(step))
    }

    /// The part of a step's answer that the ensemble uses. Copies of tensors are made here. `position` returns the position of an output among those
    /// of the step.
    fn answer(
        &self,
        step: usize,
        mut answer: Recycled<InferResponse>,
        position: impl Fn(usize) -> Option<usize>,
    ) -> Result<Answer, Status> {
        let known = &self.plan.steps[step].outputs;
        let mut outputs = Vec::with_capacity(known.len());
        for Output { index, datatype, shape, data, placed, .. } in std::mem::take(&mut answer.outputs) {
            let found = position(index).and_then(|position| Some((position, known.get(position)?.tensor)));
            let Some((position, tensor)) = found else { continue };
            let is_for_client = self.plan.output_index(tensor).is_some_and(|output| self.outputs.wants(output));
            let will_run = |step| self.needs(step);
            let copies = self.readers.copies(tensor, &data, will_run, is_for_client)?;
            // A tensor in input memory does not count as placed, because other processes can write to it. The client gets a copy.
            let placed = placed && copies.is_none();
            let value = Value { datatype, shape, data, placed, copies, _permit: answer.permit.clone() };
            outputs.push((position, value));
        }
        Ok(Answer { outputs, parameters: std::mem::take(&mut answer.parameters) })
    }

    /// Sends a response with these outputs.
    fn send(self: &Arc<Run>, tensors: Vec<(TensorIndex, Value)>, last: Option<Times>, parameters: Parameters) {
        if log::log_enabled!(log::Level::Debug) {
            self.log_missing(&tensors);
        }
        let tensors = tensors.into_iter().filter_map(|(tensor, mut value)| {
            let index = self.plan.output_index(tensor)?;
            value.shape = self.plan.output_batches.get(index)?.apply(value.shape);
            Some(Sent { index, name: &self.plan.tensors[tensor], value })
        });
        let sent = match last {
            None => self.outputs.send(tensors, parameters),
            Some(mut times) => {
                times.mark_infer_end();
                self.meter.batch(self.rows, &times);
                self.outputs.finish(tensors, parameters, times);
                Ok(())
            }
        };
        if let Err(error) = sent {
            self.lock().events.push_back(Event::Failed(error));
        }
    }

    /// Logs in Triton's words which wanted outputs no step made.
    fn log_missing(&self, made: &[(TensorIndex, Value)]) {
        let is_made = |tensor: &TensorIndex| made.iter().any(|(known, _)| known == tensor);
        for (at, tensor) in self.plan.outputs.iter().enumerate().filter(|(_, tensor)| !is_made(tensor)) {
            if self.outputs.wants(at) {
                log::debug!("Composing models did not output tensor {}", self.plan.tensors[*tensor]);
            }
        }
    }

    /// Ends the request: nothing runs any more, and `sent` responses were sent.
    fn end(&self, sent: usize, mut times: Times) {
        times.mark_infer_end();
        self.meter.batch(self.rows, &times);
        if sent > 0 || self.plan.is_decoupled {
            return self.outputs.end(times);
        }
        let id = if self.shared.id.is_empty() { "<id_unknown>" } else { &self.shared.id };
        let text = format!(
            "in ensemble '{}', [request id: {id}] unexpected deadlock, at least one output is not set while no more ensemble steps can \
             be made",
            self.ensemble
        );
        self.outputs.fail(Status::invalid(text), times);
    }

    /// Ends the request with an error, and cancels the steps that still run.
    fn fail(&self, Failure { error, mut times, others }: Failure) {
        times.mark_infer_end();
        self.outputs.fail(error, times);
        // A step that waits is answered within this call, so no lock may be held.
        // If the client has gone, steps of sequences were already allowed to run on. `time_out` does not allow that once more.
        let end = if self.client.is_cancelled() { Cancel::time_out } else { Cancel::cancel };
        others.iter().for_each(end);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Applies an event, which may end the request.
    fn apply(&mut self, event: Event) -> Option<Failure> {
        match event {
            Event::Answered { branch, step, answer, is_last, is_only } => {
                if is_last {
                    self.running.remove(&(branch, step));
                }
                self.sequence.take_over(&answer.parameters);
                if let Some(flow) = &mut self.flow {
                    flow.answered(branch, step, answer.outputs, is_last, is_only);
                }
                None
            }
            Event::Ended { branch, step } => {
                self.running.remove(&(branch, step));
                if let Some(flow) = &mut self.flow {
                    flow.ended(branch, step);
                }
                None
            }
            Event::Failed(error) => {
                self.flow = None;
                let others = self.running.drain().map(|(_, cancel)| cancel).collect();
                Some(Failure { error, times: self.times, others })
            }
        }
    }
}

/// How a request ends without a result.
struct Failure {
    error: Status,
    times: Times,
    /// The steps that run.
    others: Vec<Cancel>,
}

/// The new parts of the request to each step.
struct Begun {
    cancel: Cancel,
    sequence: Sequence,
}

/// Takes the responses of one step.
struct StepReply {
    run: Arc<Run>,
    branch: Branch,
    step: usize,
    /// The index of each output of the step, in the configuration of its model.
    indices: SmallVec<[usize; 4]>,
    has_answered: bool,
    trace: Option<Arc<RequestTrace>>,
}

impl StepReply {
    /// The position of an output among those of the step. `None` if the step does not use it.
    fn position(&self, index: usize) -> Option<usize> {
        self.indices.iter().position(|known| *known == index)
    }

    /// The tensor of an output of the step.
    fn tensor(&self, index: usize) -> Option<TensorIndex> {
        Some(self.run.plan.steps[self.step].outputs.get(self.position(index)?)?.tensor)
    }
}

impl Deliver for StepReply {
    fn admitted(&mut self, wanted: &WantedOutputs) {
        // The request named the outputs of the step in their order.
        self.indices = wanted.indexed().map(|(index, _)| index).collect();
    }

    fn deliver(&mut self, mut response: Response) {
        if let (Response::Part(answer), Some(window)) = (&mut response, self.window()) {
            answer.permit = Some(window.permit(answer.inline_bytes()));
        }
        let (branch, step) = (self.branch, self.step);
        let is_only = !std::mem::replace(&mut self.has_answered, true);
        let answered = |answer, is_last, is_only| match self.run.answer(step, answer, |index| self.position(index)) {
            Ok(answer) => Event::Answered { branch, step, answer, is_last, is_only },
            Err(error) => Event::Failed(error),
        };
        self.run.take(match response {
            Response::Part(answer) => answered(answer, false, false),
            Response::Final(answer) => answered(answer, true, is_only),
            Response::End => Event::Ended { branch, step },
            Response::Failed { error, .. } => {
                let message = format!("in ensemble '{}', {}", self.run.ensemble, error.message);
                Event::Failed(Status::new(error.code, message))
            }
        });
    }

    fn account(&self) -> Option<PeerAccount> {
        self.run.shared.account.clone()
    }

    fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.trace.clone()
    }

    fn may_wait(&self) -> bool {
        self.run.shared.may_wait
    }

    fn offers_places(&self) -> bool {
        self.run.outputs.offers_places()
    }

    fn takes_shared(&self) -> bool {
        // Another step reads the output there. `Outputs` copies outputs that are sent to the client.
        self.run.plan.may_share.get(self.step).copied().unwrap_or_default()
    }

    fn input_memory(&self, output: usize) -> Option<Arc<dyn InputMemory>> {
        self.run.input_memory(self.tensor(output)?)
    }

    fn window(&self) -> Option<Arc<ResponseWindow>> {
        // No window is needed after the end of the request.
        self.run.windows.get(self.step).filter(|_| self.run.outputs.is_open()).cloned()
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        let output = self.tensor(query.index).and_then(|tensor| self.run.plan.output_index(tensor));
        output.map_or(Ok(None), |output| self.run.outputs.offered(output, query.bytes))
    }
}
