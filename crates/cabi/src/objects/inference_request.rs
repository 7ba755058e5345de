//! What does a backend's request to another model consist of?

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Access, Buffer, Keep, Place, Reason, Slot};
use nerite_request::{Cancel, Parameters, Sequence, SequenceId, Status};
use nerite_tensor::{DataType, Shape, Tensor};

use super::callbacks::{Kept, RequestReleaseFn, RespondFn};
use super::{Allocating, Counted, InferenceResponse, ServerObject, c_text, object};
use crate::fault::Fault;

/// `TRITONSERVER_InferenceRequest`.
pub struct InferenceRequest {
    /// The models that it may be sent to.
    pub server: Arc<ServerObject>,
    /// The model that it is sent to.
    pub model: String,
    /// The version of the model; `None` for the highest.
    pub version: Option<i64>,
    asked: Mutex<Asked>,
    /// The flag of its last flight.
    cancel: Mutex<Cancel>,
    /// The number of its last flight.
    last_flight: AtomicU64,
    /// The number of its present flight, while it is the server's. 0 while it is the backend's.
    flight: AtomicU64,
    _held: Counted,
}

object!(InferenceRequest, 19, "inference request");

/// The content of such a request.
#[derive(Default)]
pub struct Asked {
    /// The backend's own name for it.
    pub id: CString,
    /// The sequence that it belongs to.
    pub sequence: Sequence,
    /// The sequence's name, if that is a text.
    pub sequence_text: CString,
    /// Priority, 0 for the model's default.
    pub priority: u64,
    /// Longest time in the queue, 0 for the model's default.
    pub timeout_us: u64,
    /// Its parameters.
    pub parameters: Parameters,
    /// Its inputs, in the backend's order.
    pub inputs: Vec<AskedInput>,
    /// The outputs that it wants; none for all.
    pub wanted: Vec<String>,
    /// The function that returns it to the backend.
    pub release: Option<(RequestReleaseFn<InferenceRequest>, Kept)>,
    /// The function that gets the responses.
    pub respond: Option<Respond>,
}

/// The function that gets the responses, and how memory for them is allocated.
#[derive(Clone)]
pub struct Respond {
    /// Allocates the memory of outputs.
    pub allocating: Allocating,
    /// The function.
    pub function: RespondFn<InferenceResponse>,
    /// The address that it gets.
    pub userp: Kept,
}

/// One input.
pub struct AskedInput {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    parts: Vec<Part>,
}

/// A part of an input's bytes. It stays the backend's until the request is returned.
struct Part {
    base: Kept,
    bytes: usize,
    place: Place,
}

impl InferenceRequest {
    /// A request for that version of a model.
    pub fn new(server: Arc<ServerObject>, model: String, version: Option<i64>) -> InferenceRequest {
        let held = server.held.add();
        InferenceRequest {
            server,
            model,
            version,
            asked: Mutex::default(),
            cancel: Mutex::default(),
            last_flight: AtomicU64::new(0),
            flight: AtomicU64::new(0),
            _held: held,
        }
    }

    /// The content, to read or to change.
    pub fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The flag of its last flight.
    pub fn cancel(&self) -> Cancel {
        self.cancel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Cancels its last flight. If the flight waits, it is answered on another thread, because the backend's functions
    /// may take a lock that the caller holds.
    pub fn cancel_flight(&self) {
        let Some(tell) = self.cancel().begin_cancel() else { return };
        if let Err(error) = std::thread::Builder::new().name("nerite-cancel".to_owned()).spawn(tell) {
            log::warn!(
                "no thread to answer a cancelled request to model '{}': {error}; it is answered when its turn comes; raise the limit on threads",
                self.model
            );
        }
    }

    /// Records that it is the server's from now on; an error if it is already. Returns the flight's number and flag.
    pub fn take_off(&self) -> Result<(u64, Cancel), Fault> {
        let number = self.last_flight.fetch_add(1, Ordering::Relaxed) + 1;
        if self.flight.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(self.in_flight());
        }
        let new = Cancel::new();
        *self.cancel.lock().unwrap_or_else(PoisonError::into_inner) = new.clone();
        Ok((number, new))
    }

    /// Records that it is the backend's again, if it is on this flight. Memory of a refused flight may still be in use
    /// when the next flight has begun.
    pub fn land(&self, flight: u64) {
        let _ = self.flight.compare_exchange(flight, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Refuses if it is the server's.
    pub fn check_landed(&self) -> Result<(), Fault> {
        if self.flight.load(Ordering::Acquire) != 0 { Err(self.in_flight()) } else { Ok(()) }
    }

    fn in_flight(&self) -> Fault {
        Fault::misuse(format!(
            "the inference request to model '{}' is the server's until its release function is called",
            self.model
        ))
        .of(&self.server.owner)
    }
}

impl Asked {
    /// Sets the id of its sequence, if that is a text.
    pub fn set_sequence_text(&mut self, id: String) {
        self.sequence_text = c_text(&id);
        self.sequence.id = if id.is_empty() { SequenceId::None } else { SequenceId::Text(id) };
    }

    /// Adds an input.
    pub fn add_input(&mut self, name: String, datatype: DataType, shape: Shape) -> Result<(), Fault> {
        if self.inputs.iter().any(|input| input.name == name) {
            return Err(Status::invalid(format!("input '{name}' already exists in request")).into());
        }
        self.inputs.push(AskedInput { name, datatype, shape, parts: Vec::new() });
        Ok(())
    }

    /// The input of this name.
    pub fn input(&mut self, name: &str) -> Result<&mut AskedInput, Fault> {
        let found = self.inputs.iter_mut().find(|input| input.name == name);
        found.ok_or_else(|| Status::invalid(format!("input '{name}' does not exist in request")).into())
    }

    /// Its inputs as tensors over the backend's memory, which `keep` keeps.
    pub fn tensors(&self, keep: &Arc<dyn Keep>) -> Result<Vec<Tensor>, Status> {
        self.inputs.iter().map(|input| input.tensor(keep)).collect()
    }
}

impl AskedInput {
    /// Appends bytes.
    pub fn append(&mut self, base: Kept, bytes: usize, memory: (u32, i64)) -> Result<(), Fault> {
        let place = match memory.0 {
            0 => Place::Host,
            1 => Place::Pinned,
            2 => {
                return Err(Status::unsupported(format!(
                    "input '{}' lies on GPU {}; inputs of requests that compiled backends make must lie in the host's memory in this version of \
                     nerite",
                    self.name, memory.1
                ))
                .into());
            }
            other => return Err(Fault::misuse(format!("there is no memory type {other}"))),
        };
        if base.0.is_null() && bytes > 0 {
            return Err(Fault::misuse(format!("the {bytes} bytes of input '{}' are at NULL", self.name)));
        }
        if bytes > 0 {
            self.parts.push(Part { base, bytes, place });
        }
        Ok(())
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.parts.clear();
    }

    fn tensor(&self, keep: &Arc<dyn Keep>) -> Result<Tensor, Status> {
        let data = match &self.parts[..] {
            [] => Buffer::empty(),
            [only] => only.buffer(keep),
            parts => joined(&self.name, parts, keep)?,
        };
        Ok(Tensor { name: self.name.as_str().into(), datatype: self.datatype, shape: self.shape.clone(), data })
    }
}

impl Part {
    fn buffer(&self, keep: &Arc<dyn Keep>) -> Buffer {
        let Some(base) = NonNull::new(self.base.0.cast::<u8>()) else { return Buffer::empty() };
        // SAFETY: by the contract of `TRITONSERVER_InferenceRequestAppendInputData` `bytes` initialised bytes lie at `base` and stay there
        // until the request's release function is called, which is when `keep` is dropped. They may be a client's region, which others
        // write, so they count as shared, and no slice of them is made.
        unsafe { Buffer::from_raw(base, self.bytes, self.place, Access::Shared, Arc::clone(keep)) }
    }
}

/// Copies the parts to one piece of memory, because a model takes each input as one piece.
fn joined(name: &str, parts: &[Part], keep: &Arc<dyn Keep>) -> Result<Buffer, Status> {
    let what = format!("input '{name}'");
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.bytes));
    let total = total.ok_or_else(|| Status::invalid(format!("{what} has more bytes than there are")))?;
    let mut slot = Slot::try_heap(total).map_err(|refused| Status::no_memory(&what, refused))?;
    let mut at = 0;
    for part in parts {
        let copied = slot.fill_from(at, &part.buffer(keep), Reason::ModelRequest);
        copied.map_err(|error| Status::internal(format!("{what}: {error}")))?;
        at += part.bytes;
    }
    Ok(slot.filled().into_buffer())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_backend::Models;

    use super::*;

    fn request() -> InferenceRequest {
        InferenceRequest::new(Arc::new(ServerObject::new(&Arc::from("b"), Models::none(), None)), "m".to_owned(), None)
    }

    #[test]
    fn the_end_of_a_flight_does_not_land_the_next_one() {
        let request = request();
        let (refused, _) = request.take_off().unwrap();
        assert!(request.check_landed().is_err() && request.take_off().is_err());
        request.land(refused);
        assert!(request.check_landed().is_ok());
        let (next, _) = request.take_off().unwrap();
        request.land(refused);
        assert!(request.check_landed().is_err(), "it is the server's");
        request.land(next);
        assert!(request.check_landed().is_ok());
    }

    #[test]
    fn a_cancelled_flight_is_not_answered_by_the_thread_that_cancels_it() {
        let request = request();
        let (to, told) = std::sync::mpsc::channel();
        assert!(request.take_off().unwrap().1.on_cancelled(move || to.send(std::thread::current().id()).unwrap()));
        request.cancel_flight();
        assert!(request.cancel().is_cancelled());
        assert_ne!(told.recv().unwrap(), std::thread::current().id());
    }
}
