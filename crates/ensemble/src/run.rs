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
    Cancel, Code, Deliver, InferResponse, InputMemory, Name, Output, Parameters, PeerAccount, PlaceQuery, Recycled,
    Reply, Request, RequestTrace, Response, ResponsePermit, ResponseWindow, Sequence, Status, Wanted,
};
use nerite_tensor::Tensor;

use crate::flow::{Action, Branch, Flow};
use crate::outputs::{Outputs, Value};
use crate::plan::{Plan, Step, TensorIndex};
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
    /// The window of each step. A step that answers many times waits while the steps after it have not used its
    /// answers, or the client has not taken the responses. Empty if no step answers several times.
    windows: Vec<Arc<ResponseWindow>>,
    state: Mutex<State>,
}

/// The state that the steps of a request share.
struct Shared {
    id: Name,
    priority: u64,
    timeout_us: u64,
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

enum Event {
    /// A step answered.
    Answered { branch: Branch, step: usize, answer: Recycled<InferResponse>, is_last: bool, is_only: bool },
    /// A step ended without another answer.
    Ended { branch: Branch, step: usize },
    /// A step failed, or the client went away.
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
        let brought = inputs.into_iter().filter_map(|tensor| {
            let Tensor { name, datatype, shape, data } = tensor;
            Some((plan.tensor(&name)?, Value { datatype, shape, data, placed: false, _permit: None }))
        });
        let wanted = responder.wanted().filter_map(|name| plan.tensor(name)).collect();
        let flow = Flow::begin(Arc::clone(plan), brought.collect(), wanted);
        let cancel = responder.cancel().clone();
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
            windows,
        });
        let whom = Arc::downgrade(&run);
        let gone = || Event::Failed(Status::new(Code::Cancelled, ""));
        let is_wanted = cancel.on_cancelled(move || {
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
            let failure = state.events.pop_front().and_then(|event| self.apply(&mut state, event));
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
                    let last = (is_done && !self.plan.is_decoupled).then_some(state.times);
                    if last.is_some() {
                        state.flow = None;
                    }
                    // Triton repeats the parameters once for each output.
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

    /// Applies an event, which may end the request.
    fn apply(&self, state: &mut State, event: Event) -> Option<Failure> {
        match event {
            Event::Answered { branch, step, mut answer, is_last, is_only } => {
                if is_last {
                    state.running.remove(&(branch, step));
                }
                state.sequence.take_over(&answer.parameters);
                let outputs = self.positioned(step, std::mem::take(&mut answer.outputs), answer.permit.as_ref());
                if let Some(flow) = &mut state.flow {
                    flow.answered(branch, step, outputs, is_last, is_only);
                }
                None
            }
            Event::Ended { branch, step } => {
                state.running.remove(&(branch, step));
                if let Some(flow) = &mut state.flow {
                    flow.ended(branch, step);
                }
                None
            }
            Event::Failed(error) => {
                state.flow = None;
                let others = state.running.drain().map(|(_, cancel)| cancel).collect();
                Some(Failure { error, times: state.times, others })
            }
        }
    }

    /// Sends a request to the model of a step. Its responses come through [`StepReply`], perhaps before this returns.
    fn begin_step(self: &Arc<Run>, branch: Branch, number: usize, inputs: Vec<(usize, Value)>, begun: Begun) {
        let step = &self.plan.steps[number];
        let inputs = inputs.into_iter().filter_map(|(position, value)| {
            let Value { datatype, shape, data, .. } = value;
            Some(Tensor { name: step.inputs.get(position)?.name.as_str().into(), datatype, shape, data })
        });
        let wanted = step.outputs.iter().map(|output| Wanted {
            name: output.name.as_str().into(),
            slot: self.outputs.take_place(&self.plan.tensors[output.tensor]),
        });
        let Shared { id, priority, timeout_us, parameters, trace, .. } = &self.shared;
        let trace = trace.as_ref().map(|trace| trace.child());
        let request = Request {
            id: id.clone(),
            priority: *priority,
            timeout_us: *timeout_us,
            sequence: begun.sequence,
            parameters: parameters.clone(),
            cancel: begun.cancel,
            ..Request::new(
                inputs.collect::<nerite_request::Inputs>(),
                wanted.collect(),
                Reply::through(StepReply { run: Arc::clone(self), branch, step: number, has_answered: false, trace }),
            )
        };
        self.models.infer(&step.model, step.version, request);
    }

    /// The input memory of the only model that will read this tensor.
    fn input_memory(&self, tensor: TensorIndex) -> Option<Arc<dyn InputMemory>> {
        let plan = &self.plan;
        // What is sent to the client must not lie where a process can still write to it.
        if !*plan.in_input_memory.get(tensor)? || self.outputs.wants(&plan.tensors[tensor]) {
            return None;
        }
        let will_run = |step: &usize| self.lock().flow.as_ref().is_some_and(|flow| flow.needs(*step));
        let mut readers = plan.readers[tensor].iter().filter(|step| will_run(step)).map(|step| &plan.steps[*step]);
        let Step { model, version, .. } = readers.next()?;
        // The reader's process can write there, so it must not be memory that another model reads.
        let is_only = readers.all(|other| other.model == *model && other.version == *version);
        is_only.then(|| self.models.input_memory(model, *version)).flatten()
    }

    /// The outputs of a step's answer that the ensemble uses.
    fn positioned(
        &self,
        step: usize,
        outputs: nerite_request::Outputs,
        permit: Option<&Arc<ResponsePermit>>,
    ) -> Vec<(usize, Value)> {
        let names = &self.plan.steps[step].outputs;
        let known = outputs.into_iter().filter_map(|output| {
            let Output { name, datatype, shape, data, placed } = output;
            let position = names.iter().position(|known| known.name == name)?;
            Some((position, Value { datatype, shape, data, placed, _permit: permit.cloned() }))
        });
        known.collect()
    }

    /// Sends a response with these outputs.
    fn send(self: &Arc<Run>, tensors: Vec<(TensorIndex, Value)>, last: Option<Times>, parameters: Parameters) {
        let tensors = tensors.into_iter().map(|(tensor, value)| (self.plan.tensors[tensor].as_str(), value));
        let sent = match last {
            None => self.outputs.send(tensors, parameters),
            Some(mut times) => {
                times.infer_ends();
                self.meter.batch(self.rows, &times);
                self.outputs.finish(tensors, parameters, times);
                Ok(())
            }
        };
        if let Err(error) = sent {
            self.lock().events.push_back(Event::Failed(error));
        }
    }

    /// Ends the request: nothing runs any more, and `sent` responses were sent.
    fn end(&self, sent: usize, mut times: Times) {
        times.infer_ends();
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
        times.infer_ends();
        self.outputs.fail(error, times);
        // A step that waits is answered within this call, so no lock may be held.
        others.iter().for_each(Cancel::cancel);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    has_answered: bool,
    trace: Option<Arc<RequestTrace>>,
}

impl Deliver for StepReply {
    fn deliver(&mut self, mut response: Response) {
        if let (Response::Part(answer), Some(window)) = (&mut response, self.window()) {
            answer.permit = Some(window.permit(answer.inline_bytes()));
        }
        let (branch, step) = (self.branch, self.step);
        let is_only = !std::mem::replace(&mut self.has_answered, true);
        self.run.take(match response {
            Response::Part(answer) => Event::Answered { branch, step, answer, is_last: false, is_only: false },
            Response::Final(answer) => Event::Answered { branch, step, answer, is_last: true, is_only },
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
        self.run.plan.may_share
    }

    fn input_memory(&self, output: &str) -> Option<Arc<dyn InputMemory>> {
        let outputs = &self.run.plan.steps[self.step].outputs;
        let output = outputs.iter().find(|known| known.name == output)?;
        self.run.input_memory(output.tensor)
    }

    fn window(&self) -> Option<Arc<ResponseWindow>> {
        // After the end of the request no window is needed.
        self.run.windows.get(self.step).filter(|_| self.run.outputs.is_open()).cloned()
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        let mut outputs = self.run.plan.steps[self.step].outputs.iter();
        match outputs.find(|output| output.name == query.output) {
            Some(output) => self.run.outputs.offered(&self.run.plan.tensors[output.tensor], query.bytes),
            None => Ok(None),
        }
    }
}
