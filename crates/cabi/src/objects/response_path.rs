//! Which way do the answers to a request go, from whichever thread of a backend?

use std::sync::mpsc::channel;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_backend::{EndNote, Outbox, Outcome, Responder, Times};
use nerite_locks::Mutex;
use nerite_memory::{Place, Slot};
use nerite_request::{Cancel, Status};

use super::Counted;
use crate::fault::Fault;

/// A response that waits for its client looks so often whether the client has gone.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The way back of one request, as long as the request, a response or a factory of it is held.
pub struct ResponsePath {
    /// The backend's name, for errors.
    pub owner: Arc<str>,
    /// Whether anybody waits for an answer.
    pub cancel: Cancel,
    is_decoupled: bool,
    responder: Mutex<Option<Responder>>,
    note: Mutex<Option<EndNote>>,
    times: Times,
    // Dropped last: the instance may end then.
    _counted: Counted,
}

impl ResponsePath {
    /// The way of a request of the backend called `owner`, whose run began at `times`.
    pub fn new(
        mut responder: Responder,
        counted: Counted,
        owner: Arc<str>,
        is_decoupled: bool,
        times: Times,
    ) -> ResponsePath {
        let note = responder.note_apart();
        ResponsePath {
            owner,
            cancel: responder.cancel().clone(),
            is_decoupled,
            responder: Mutex::new(Some(responder)),
            note: Mutex::new(note),
            times,
            _counted: counted,
        }
    }

    /// Memory for an output.
    pub fn output(&self, name: &str, bytes: usize, preferred: Place) -> Result<Slot, Fault> {
        let mut way = self.lock();
        let responder = way.as_mut().ok_or_else(|| self.over("an output"))?;
        responder.output_beside(name, bytes, preferred).map_err(Fault::from)
    }

    /// Where an output would go.
    pub fn output_place(&self, name: &str) -> Option<(Place, Option<usize>)> {
        self.lock().as_ref().map(|responder| responder.output_place(name)).map(|found| (found.place, found.capacity))
    }

    /// Sends what `fill` puts, or the error that came of it.
    pub fn send(&self, is_last: bool, fill: impl FnOnce(&mut Responder) -> Result<(), Status>) -> Result<(), Fault> {
        if self.is_decoupled && !is_last {
            self.wait_for_room();
        }
        let mut way = self.lock();
        let mut responder = way.take().ok_or_else(|| self.over("a response"))?;
        let filled = fill(&mut responder);
        if is_last {
            // The client may be answered by this call, so nothing of ours is locked.
            drop(way);
            let mut times = self.times;
            times.infer_ends();
            responder.finish(filled, times);
            return Ok(());
        }
        // What it answers with is lost memory: the end of the request.
        let ended = match filled {
            Ok(()) => responder.send().err(),
            Err(error) => {
                responder.send_error(error);
                None
            }
        };
        match ended {
            None => *way = Some(responder),
            Some(lost) => {
                drop(way);
                responder.finish(Err(lost), self.times);
            }
        }
        Ok(())
    }

    /// Says that no response follows.
    pub fn end(&self) -> Result<(), Fault> {
        let responder = self.lock().take().ok_or_else(|| self.over("the end of the responses"))?;
        let mut times = self.times;
        times.infer_ends();
        responder.end(times);
        Ok(())
    }

    /// The backend did nothing with the request, and says why.
    pub fn fail(&self, error: Status) {
        let taken = self.lock().take();
        if let Some(responder) = taken {
            responder.finish(Err(error), self.times);
        }
    }

    /// The backend says how long the parts of the work took.
    pub fn note(&self, times: Times, outcome: Outcome) {
        let note = self.note.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(note) = note {
            note.note(times, outcome);
        }
    }

    /// Waits while the client has not taken what was sent before. Another thread of the backend may answer other requests meanwhile.
    fn wait_for_room(&self) {
        let Some(window) = self.lock().as_ref().and_then(Responder::window) else { return };
        loop {
            let (told, room) = channel();
            if self.cancel.is_cancelled() || !window.on_room(move || told.send(()).unwrap_or_default()) {
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
            // Who waits is told once only, so a wait that found no room is not begun again before the client had time to go.
            while !self.cancel.is_cancelled() {
                if room.recv_timeout(LOOK_AGAIN).is_ok() {
                    break;
                }
            }
        }
    }

    fn over(&self, what: &str) -> Fault {
        Fault::misuse(format!("{what} after the final response of the request")).of(&self.owner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Responder>> {
        self.responder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ResponsePath {
    fn drop(&mut self) {
        let Some(responder) = self.lock().take() else { return };
        let id = if responder.id().is_empty() { "<id_unknown>" } else { responder.id() };
        log::error!("backend '{}': [request id: {id}] released without a final response", self.owner);
        // The responder tells the client.
    }
}
