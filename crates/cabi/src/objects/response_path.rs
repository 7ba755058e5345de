//! How are the responses of a request sent, from any thread of a backend?

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nerite_backend::{Job, Outbox, Responder, Times, now_ns};
use nerite_config::ModelConfig;
use nerite_locks::Mutex;
use nerite_memory::{Place, Slot};
use nerite_request::{Backlog, Cancel, Code, NextResponse, RequestTrace, Status};
use nerite_tensor::Tensor;

use super::{Counted, Outstanding, TraceObject, TraceOf, c_cow, observed_handle, request_prefix};
use crate::fault::Fault;
use crate::run_waits;
use crate::table::Handle;

/// The interval at which a waiting response checks whether its client has gone.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The response path of one request. It lives as long as the request, a response or a factory of it.
pub struct ResponsePath {
    /// The backend's name, for errors.
    pub owner: Arc<str>,
    cancel: Cancel,
    /// The configuration of its model.
    config: Arc<ModelConfig>,
    is_decoupled: bool,
    /// Whether the request was ended because its client does not read. What the backend sends to it afterwards is dropped.
    is_shed: AtomicBool,
    /// The request without its inputs. `None` once the last response was sent.
    job: Mutex<Option<Job>>,
    times: Times,
    /// Responses that the backend reported.
    reported: AtomicU64,
    traced: Option<Arc<RequestTrace>>,
    /// The trace object that the backend sees. It is made when the backend first requests it.
    trace: Mutex<Handle<TraceObject>>,
    // Dropped last, because the instance may end then.
    counted: Counted,
}

impl ResponsePath {
    /// The path for a request of the backend called `owner`, whose run began at `times`. The inputs were taken from `job`.
    pub fn new(job: Job, counted: Counted, owner: Arc<str>, config: Arc<ModelConfig>, times: Times) -> ResponsePath {
        let traced = job.responder().trace().cloned();
        ResponsePath {
            owner,
            cancel: job.cancel().clone(),
            is_decoupled: config.decoupled(),
            config,
            is_shed: AtomicBool::new(false),
            job: Mutex::new(Some(job)),
            times,
            reported: AtomicU64::new(0),
            traced,
            trace: Mutex::default(),
            counted,
        }
    }

    /// Refuses an output that its model does not have.
    pub fn check_output(&self, name: &str) -> Result<(), Fault> {
        let ModelConfig { name: model, output, .. } = &*self.config;
        if output.iter().any(|known| known.name == name) {
            return Ok(());
        }
        Err(Fault::misuse(format!("unexpected inference output '{name}' for model '{model}'")).of(&self.owner))
    }

    /// Memory for an output.
    pub fn output(&self, name: &str, bytes: usize, preferred: Place) -> Result<Slot, Fault> {
        let mut way = self.lock();
        if way.is_none() && self.is_shed() {
            // The backend may be about to make another response, which is dropped.
            let slot = Slot::try_heap(bytes);
            let mut slot = slot.map_err(|refused| Status::no_memory(format_args!("output '{name}'"), refused))?;
            slot.clear();
            return Ok(slot);
        }
        let job = way.as_mut().ok_or_else(|| self.over("an output"))?;
        job.responder_mut().output_beside(name, bytes, preferred).map_err(Fault::from)
    }

    /// The kind and size of the memory for an output.
    pub fn output_place(&self, name: &str) -> Option<(Place, Option<usize>)> {
        self.lock().as_ref().map(|job| job.output_place(name)).map(|found| (found.place, found.capacity))
    }

    /// Whether nobody waits for further responses: the client has cancelled the request, or did not read.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled() || self.is_shed()
    }

    fn is_shed(&self) -> bool {
        self.is_shed.load(Ordering::Relaxed)
    }

    /// The text for the log about the request, if it is counted in `outstanding` and was not answered completely.
    pub fn describe_if_unanswered(&self, outstanding: &Arc<Outstanding>) -> Option<String> {
        if !self.counted.is_in(outstanding) {
            return None;
        }
        let way = self.lock();
        let id = request_prefix(&c_cow(way.as_ref()?.id()));
        let seconds = now_ns().saturating_sub(self.times.start) / 1_000_000_000;
        Some(format!("backend '{}': {id}has had the request for {seconds} s", self.owner))
    }

    /// Sends the response that `fill` makes, or its error.
    pub fn send(&self, is_last: bool, fill: impl FnOnce(&mut Responder) -> Result<(), Status>) -> Result<(), Fault> {
        if self.is_decoupled && !is_last {
            self.wait_for_room();
        }
        let mut way = self.lock();
        if way.is_none() && self.is_shed() {
            return Ok(());
        }
        let mut job = way.take().ok_or_else(|| self.over("a response"))?;
        let responder = job.responder_mut();
        let filled = fill(responder);
        if is_last {
            // This call may run the code that answers the client, so no lock of this crate is held.
            drop(way);
            let mut times = self.times;
            times.mark_infer_end();
            job.finish(filled, times);
            return Ok(());
        }
        // An error of `send` says that memory of the client was lost, which ends the request.
        let ended = match filled {
            Ok(()) => responder.send().err(),
            Err(error) => {
                responder.send_error(error);
                None
            }
        };
        match ended {
            None => *way = Some(job),
            Some(lost) => {
                drop(way);
                job.finish(Err(lost), self.times);
            }
        }
        Ok(())
    }

    /// Ends the request with an error that is the backend's own answer. As in Triton, the backend reports whether the request counts as a success.
    pub fn answer_error(&self, error: Status) -> Result<(), Fault> {
        let Some(job) = self.take("a response")? else { return Ok(()) };
        let mut times = self.times;
        times.mark_infer_end();
        if error.code == Code::Cancelled {
            job.finish(Err(error), times);
        } else {
            job.answer_error(error, times);
        }
        Ok(())
    }

    /// Keeps a state for the next request of the sequence.
    pub fn keep_state(&self, state: Tensor) -> Result<(), Fault> {
        let mut way = self.lock();
        if way.is_none() && self.is_shed() {
            return Ok(());
        }
        way.as_mut().ok_or_else(|| self.over("the update of a state"))?.responder_mut().keep_state(state);
        Ok(())
    }

    /// Returns the request, to run again as the next one of its sequence. A request that was ended because its client does not read does not run
    /// again, but this succeeds, so that the backend can release it.
    pub fn reschedule(&self, inputs: Vec<Tensor>) -> Result<(), Fault> {
        let mut way = self.lock();
        if way.is_none() && self.is_shed() {
            return Ok(());
        }
        way.as_ref().ok_or_else(|| self.over("a reschedule"))?.responder().check_reschedule()?;
        let mut job = way.take().ok_or_else(|| self.over("a reschedule"))?;
        // It may run again before this returns, so no lock of this crate may be held.
        drop(way);
        let mut times = self.times;
        times.mark_infer_end();
        job.return_inputs(inputs.into());
        job.reschedule(times);
        Ok(())
    }

    /// Ends the request without another response.
    pub fn end(&self) -> Result<(), Fault> {
        let Some(job) = self.take("the end of the responses")? else { return Ok(()) };
        let mut times = self.times;
        times.mark_infer_end();
        job.end(times);
        Ok(())
    }

    /// Fails a request that the backend did not use.
    pub fn fail(&self, error: Status) {
        let taken = self.lock().take();
        if let Some(job) = taken {
            job.finish(Err(error), self.times);
        }
    }

    /// The position of the response that the backend reports now. As in Triton, it counts reports, even if they name
    /// different factories of the request.
    pub fn next_reported(&self) -> u64 {
        self.reported.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits while the response window is full. Other threads of the backend can answer other requests meanwhile. Within a run, others may wait for the
    /// instance: there the responses may exceed the window, and a client that leaves too many of them loses its request.
    fn wait_for_room(&self) {
        let found = self.lock().as_ref().map(|job| (job.responder().window(), job.responder().account()));
        let Some((Some(window), account)) = found else { return };
        loop {
            let left = run_waits::left();
            if self.is_cancelled() {
                return;
            }
            match left.map(|left| window.next_response(account.as_ref(), left)) {
                None | Some(NextResponse::Wait(_)) => {}
                Some(NextResponse::Send) => return,
                Some(NextResponse::End(waits)) => return self.shed(waits),
            }
            let (sender, room) = channel();
            if !window.on_room(move || sender.send(()).unwrap_or_default()) {
                return;
            }
            if let Err(error) = Outbox::deliver_apart() {
                log::error!(
                    "backend '{}': no thread to answer others while a client does not read: {error}",
                    self.owner
                );
            }
            let began = Instant::now();
            let has_room = self.wait_for(&room, left.map(|left| began + left));
            run_waits::spend(began.elapsed());
            if !has_room && left.is_none() {
                return;
            }
        }
    }

    /// Waits for the callback that reports room, until this time at most. The window calls it only once. So this waits for the same call, and checks
    /// at intervals whether the client has gone.
    fn wait_for(&self, room: &Receiver<()>, until: Option<Instant>) -> bool {
        loop {
            let left = until.map_or(LOOK_AGAIN, |until| until.saturating_duration_since(Instant::now()));
            if room.recv_timeout(left.min(LOOK_AGAIN)).is_ok() {
                return true;
            }
            if self.is_cancelled() || until.is_some_and(|until| until <= Instant::now()) {
                return false;
            }
        }
    }

    /// Ends the request, whose client does not read.
    fn shed(&self, waits: Backlog) {
        let mut way = self.lock();
        let Some(job) = way.take() else { return };
        self.is_shed.store(true, Ordering::Relaxed);
        drop(way);
        let error = waits.status();
        log::info!("backend '{}': a request ends: {error}", self.owner);
        job.finish(Err(error), self.times);
    }

    /// The trace of the request; NULL if it has none. It is deleted with this path.
    pub fn trace(&self, of: impl FnOnce() -> TraceOf) -> Result<Handle<TraceObject>, Fault> {
        let Some(traced) = &self.traced else { return Ok(Handle::NULL) };
        // If the trace is reported to functions, they have its handle already, and delete it.
        if let Some(handle) = observed_handle(traced) {
            return Ok(handle);
        }
        let mut made = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        if made.is_null() {
            *made = Handle::to(Arc::new(TraceObject::by_server(Arc::clone(traced), Some(of()))))?;
        }
        Ok(*made)
    }

    /// Takes the job, to end the request by `what`. `None` if it was ended before because its client does not read.
    fn take(&self, what: &str) -> Result<Option<Job>, Fault> {
        let job = self.lock().take();
        if job.is_none() && !self.is_shed() { Err(self.over(what)) } else { Ok(job) }
    }

    fn over(&self, what: &str) -> Fault {
        Fault::misuse(format!("{what} after the final response of the request")).of(&self.owner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Job>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ResponsePath {
    fn drop(&mut self) {
        let trace = *self.trace.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !trace.is_null() {
            // It is missing only if the backend deleted an object that is not its own.
            drop(trace.take());
        }
        let Some(job) = self.job.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let id = if job.id().is_empty() { "<id_unknown>" } else { job.id() };
        log::error!("backend '{}': [request id: {id}] released without a final response", self.owner);
        // The drop of the job reports the error to the client.
    }
}
