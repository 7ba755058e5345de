//! How do the outputs of an ensemble reach its client?
//!
//! The step that makes an output gets the place that the client named for it, or one that the reply offers, so it writes there itself. An
//! output that lies elsewhere all the same is copied, and counted.

use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::{Responder, Times};
use nerite_locks::Mutex;
use nerite_memory::{Access, Buffer, Reason, Slot};
use nerite_request::{Parameters, ResponsePermit, Status};
use nerite_tensor::{DataType, Shape};

/// A tensor on its way between steps.
#[derive(Clone, Debug)]
pub struct Value {
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    /// Its bytes.
    pub data: Buffer,
    /// Whether they lie where the client of the ensemble looks for them.
    pub placed: bool,
    /// Of an answer that others follow: its place in the window of its step, until no step needs it any more.
    pub _permit: Option<Arc<ResponsePermit>>,
}

/// The way back to the client of one request. Locked alone.
pub struct Outputs(Mutex<State>);

struct State {
    /// `None` once the last response was sent.
    responder: Option<Responder>,
}

impl Outputs {
    /// The way back through this responder.
    pub fn through(responder: Responder) -> Outputs {
        Outputs(Mutex::new(State { responder: Some(responder) }))
    }

    /// The client's own place for an output, for the step that makes it.
    pub fn take_place(&self, output: &str) -> Option<Slot> {
        // The responder keeps the place: what a step leaves elsewhere is copied there.
        self.lock().responder.as_ref()?.output_slot(output)?.again()
    }

    /// Whether anything can still be sent.
    pub fn is_open(&self) -> bool {
        self.lock().responder.is_some()
    }

    /// Whether there may be a place for an output that the client named no memory for.
    pub fn offers_places(&self) -> bool {
        self.lock().responder.as_ref().is_some_and(Responder::offers_places)
    }

    /// A place of `bytes` bytes for an output that the client named no memory for; `None` if it may lie anywhere.
    pub fn offered(&self, output: &str, bytes: usize) -> Result<Option<Slot>, Status> {
        match &mut self.lock().responder {
            Some(responder) if responder.wants(output) => responder.offered(output, bytes),
            _ => Ok(None),
        }
    }

    /// Sends one of several responses. An Err is to be the end of the request.
    pub fn send<'n>(
        &self,
        tensors: impl Iterator<Item = (&'n str, Value)>,
        parameters: Parameters,
    ) -> Result<(), Status> {
        let mut state = self.lock();
        let Some(responder) = &mut state.responder else { return Ok(()) };
        put(responder, tensors, parameters)?;
        responder.send()
    }

    /// Sends the last response.
    pub fn finish<'n>(&self, tensors: impl Iterator<Item = (&'n str, Value)>, parameters: Parameters, times: Times) {
        // Sent without the lock: what the client does next may happen on this thread.
        let Some(mut responder) = self.take() else { return };
        let result = put(&mut responder, tensors, parameters);
        responder.finish(result, times);
    }

    /// Says that nothing follows.
    pub fn end(&self, times: Times) {
        if let Some(responder) = self.take() {
            responder.end(times);
        }
    }

    /// Ends the request with an error.
    pub fn fail(&self, error: Status, times: Times) {
        if let Some(responder) = self.take() {
            responder.finish(Err(error), times);
        }
    }

    fn take(&self) -> Option<Responder> {
        self.lock().responder.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes for the response itself. They must not change while they are sent: the process of a step may still write where its output lies.
fn own(name: &str, data: Buffer) -> Result<Buffer, Status> {
    if data.access() == Access::Private || data.is_empty() || !data.place().is_host() {
        return Ok(data);
    }
    let copied = data.try_private(Reason::InlineResponse);
    copied.map_err(|refused| Status::no_memory(format_args!("output '{name}'"), refused))
}

/// Puts what a response brings.
fn put<'n>(
    responder: &mut Responder,
    tensors: impl Iterator<Item = (&'n str, Value)>,
    parameters: Parameters,
) -> Result<(), Status> {
    for (name, Value { datatype, shape, data, placed, .. }) in tensors {
        if placed {
            responder.put_placed(name, datatype, shape, data);
            continue;
        }
        let slot = match responder.output_slot(name) {
            Some(_) => Some(responder.output_bytes(name, data.len())?),
            None => responder.offered(name, data.len())?,
        };
        let Some(mut slot) = slot else {
            responder.put_buffer(name, datatype, shape, own(name, data)?);
            continue;
        };
        slot.fill_from(0, &data, Reason::OutputPlacement).map_err(|fault| Status::internal(fault.to_string()))?;
        responder.put(name, datatype, shape, slot.filled());
    }
    responder.say(parameters);
    Ok(())
}
