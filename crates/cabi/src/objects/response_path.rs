//! How are the responses of a request sent, from any thread of a backend?

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_backend::{Job, Outbox, Responder, Times};
use nerite_locks::Mutex;
use nerite_memory::{Place, Slot};
use nerite_request::{Cancel, Code, RequestTrace, Status};
use nerite_tensor::Tensor;

use super::{Counted, TraceObject, TraceOf, observed_handle};
use crate::fault::Fault;
use crate::table::Handle;

/// The interval at which a waiting response checks whether its client has gone.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The response path of one request. It lives as long as the request, a response or a factory of it.
pub struct ResponsePath {
    /// The backend's name, for errors.
    pub owner: Arc<str>,
    /// Whether the client has cancelled the request.
    pub cancel: Cancel,
    is_decoupled: bool,
    /// Without its inputs. `None` once the last response was sent.
    job: Mutex<Option<Job>>,
    times: Times,
    /// Responses that the backend reported.
    reported: AtomicU64,
    traced: Option<Arc<RequestTrace>>,
    /// The trace object that the backend sees. It is made when it is first asked for.
    trace: Mutex<Handle<TraceObject>>,
    // Dropped last, because the instance may end then.
    _counted: Counted,
}

impl ResponsePath {
    /// The path for a request of the backend called `owner`, whose run began at `times`. The inputs were taken from `job`.
    pub fn new(job: Job, counted: Counted, owner: Arc<str>, is_decoupled: bool, times: Times) -> ResponsePath {
        let traced = job.responder().trace().cloned();
        ResponsePath {
            owner,
            cancel: job.cancel().clone(),
            is_decoupled,
            job: Mutex::new(Some(job)),
            times,
            reported: AtomicU64::new(0),
            traced,
            trace: Mutex::default(),
            _counted: counted,
        }
    }

    /// Memory for an output.
    pub fn output(&self, name: &str, bytes: usize, preferred: Place) -> Result<Slot, Fault> {
        let mut way = self.lock();
        let job = way.as_mut().ok_or_else(|| self.over("an output"))?;
        job.responder_mut().output_beside(name, bytes, preferred).map_err(Fault::from)
    }

    /// The kind and size of the memory for an output.
    pub fn output_place(&self, name: &str) -> Option<(Place, Option<usize>)> {
        self.lock().as_ref().map(|job| job.output_place(name)).map(|found| (found.place, found.capacity))
    }

    /// Sends the response that `fill` makes, or its error.
    pub fn send(&self, is_last: bool, fill: impl FnOnce(&mut Responder) -> Result<(), Status>) -> Result<(), Fault> {
        if self.is_decoupled && !is_last {
            self.wait_for_room();
        }
        let mut way = self.lock();
        let mut job = way.take().ok_or_else(|| self.over("a response"))?;
        let responder = job.responder_mut();
        let filled = fill(responder);
        if is_last {
            // This call may run the code that answers the client, so no lock of this crate is held.
            drop(way);
            let mut times = self.times;
            times.infer_ends();
            job.finish(filled, times);
            return Ok(());
        }
        // Memory of the client was lost, which ends the request.
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
        let job = self.lock().take().ok_or_else(|| self.over("a response"))?;
        let mut times = self.times;
        times.infer_ends();
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
        way.as_mut().ok_or_else(|| self.over("the update of a state"))?.responder_mut().keep_state(state);
        Ok(())
    }

    /// Returns the request, to run again as the next one of its sequence.
    pub fn reschedule(&self, inputs: Vec<Tensor>) -> Result<(), Fault> {
        let mut way = self.lock();
        way.as_ref().ok_or_else(|| self.over("a reschedule"))?.responder().check_reschedule()?;
        let mut job = way.take().ok_or_else(|| self.over("a reschedule"))?;
        // It may run again before this returns, so no lock of this crate may be held.
        drop(way);
        let mut times = self.times;
        times.infer_ends();
        job.return_inputs(inputs.into());
        job.reschedule(times);
        Ok(())
    }

    /// Ends the request without another response.
    pub fn end(&self) -> Result<(), Fault> {
        let job = self.lock().take().ok_or_else(|| self.over("the end of the responses"))?;
        let mut times = self.times;
        times.infer_ends();
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

    /// Waits while the response window is full. Other threads of the backend can answer other requests meanwhile.
    fn wait_for_room(&self) {
        let Some(window) = self.lock().as_ref().and_then(|job| job.responder().window()) else { return };
        loop {
            let (sender, room) = channel();
            if self.cancel.is_cancelled() || !window.on_room(move || sender.send(()).unwrap_or_default()) {
                return;
            }
            if let Err(error) = Outbox::deliver_apart() {
                log::error!(
                    "backend '{}': no thread to answer others while a client does not read: {error}",
                    self.owner
                );
            }
            if room.recv_timeout(LOOK_AGAIN).is_ok() {
                continue;
            }
            // The window calls back once only. So this waits for the same call, and checks at intervals whether the client has gone.
            while !self.cancel.is_cancelled() {
                if room.recv_timeout(LOOK_AGAIN).is_ok() {
                    break;
                }
            }
        }
    }

    /// The trace of the request; NULL if it has none. It is deleted with this path.
    pub fn trace(&self, of: impl FnOnce() -> TraceOf) -> Result<Handle<TraceObject>, Fault> {
        let Some(traced) = &self.traced else { return Ok(Handle::NULL) };
        // The functions that the trace is reported to have its handle, and delete it.
        if let Some(handle) = observed_handle(traced) {
            return Ok(handle);
        }
        let mut made = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        if made.is_null() {
            *made = Handle::to(Arc::new(TraceObject::by_server(Arc::clone(traced), Some(of()))))?;
        }
        Ok(*made)
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
