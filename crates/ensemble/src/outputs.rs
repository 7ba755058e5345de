//! How are the outputs of an ensemble sent to its client?
//!
//! The step that makes an output gets the client's memory for it, or memory that the reply offers, and writes there
//! itself. If the step leaves an output in other memory, it is copied and the copy is counted.

use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::{Responder, Times};
use nerite_locks::Mutex;
use nerite_memory::{Access, Buffer, Reason, Slot};
use nerite_request::{Parameters, ResponsePermit, Status};
use nerite_tensor::{DataType, Shape, element_count, strings};

use crate::readers::Copies;

/// A tensor on its way between steps.
#[derive(Clone, Debug)]
pub struct Value {
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    /// Its bytes.
    pub data: Buffer,
    /// Whether the bytes lie in the memory that the client of the ensemble named.
    pub placed: bool,
    /// Copies of the bytes for other readers, if a step may write to the bytes and is not their only reader.
    pub copies: Option<Arc<Copies>>,
    /// For an answer that is not the last: its permit in the window of its step, held until no step needs the tensor any more.
    pub _permit: Option<Arc<ResponsePermit>>,
}

impl Value {
    /// The bytes that a step reads.
    pub fn data_for(&self, step: usize) -> &Buffer {
        self.copies.as_ref().and_then(|copies| copies.for_step(step)).unwrap_or(&self.data)
    }

    /// The bytes that the client gets.
    fn data_for_client(&self) -> &Buffer {
        self.copies.as_ref().and_then(|copies| copies.for_client()).unwrap_or(&self.data)
    }
}

/// A tensor that is sent to the client.
pub struct Sent<'n> {
    /// The index of the output in the configuration of the ensemble.
    pub index: usize,
    /// Its name, for errors.
    pub name: &'n str,
    /// The tensor.
    pub value: Value,
}

/// Sends the responses of one request to its client. Outputs are named by their indices in the configuration of the ensemble. This lock and that of
/// the run's state are never held together.
pub struct Outputs(Mutex<State>);

struct State {
    /// `None` once the last response was sent.
    responder: Option<Responder>,
}

impl Outputs {
    /// Sends through this responder.
    pub fn through(responder: Responder) -> Outputs {
        Outputs(Mutex::new(State { responder: Some(responder) }))
    }

    /// The client's memory for an output, for the step that makes it.
    pub fn take_place(&self, output: usize) -> Option<Slot> {
        // The responder keeps its slot: an output that the step leaves elsewhere is copied there.
        self.lock().responder.as_ref()?.output_slot(output)?.again()
    }

    /// Whether the client wants this output.
    pub fn wants(&self, output: usize) -> bool {
        self.lock().responder.as_ref().is_some_and(|responder| responder.wants(output))
    }

    /// Whether a response can still be sent.
    pub fn is_open(&self) -> bool {
        self.lock().responder.is_some()
    }

    /// Whether the reply may offer memory for an output without memory of the client.
    pub fn offers_places(&self) -> bool {
        self.lock().responder.as_ref().is_some_and(Responder::offers_places)
    }

    /// Memory of `bytes` bytes for an output without memory of the client; `None` if it may be anywhere.
    pub fn offered(&self, output: usize, bytes: usize) -> Result<Option<Slot>, Status> {
        match &mut self.lock().responder {
            Some(responder) if responder.wants(output) => responder.offered(output, bytes),
            _ => Ok(None),
        }
    }

    /// Sends one of several responses. If this fails, the caller must end the request with the error.
    pub fn send<'n>(&self, tensors: impl Iterator<Item = Sent<'n>>, parameters: Parameters) -> Result<(), Status> {
        let mut state = self.lock();
        let Some(responder) = &mut state.responder else { return Ok(()) };
        put(responder, tensors, parameters)?;
        responder.send()
    }

    /// Sends the last response.
    pub fn finish<'n>(&self, tensors: impl Iterator<Item = Sent<'n>>, parameters: Parameters, times: Times) {
        // The response is sent without the lock, because the client's next request may run on this thread.
        let Some(mut responder) = self.take() else { return };
        let result = put(&mut responder, tensors, parameters);
        responder.finish(result, times);
    }

    /// Reports that no response follows.
    pub fn end(&self, times: Times) {
        if let Some(responder) = self.take() {
            responder.end(times);
        }
    }

    /// Ends the request with an error.
    pub fn fail(&self, error: Status, times: Times) {
        if let Some(responder) = self.take() {
            responder.fail_elsewhere(error, times);
        }
    }

    fn take(&self) -> Option<Responder> {
        self.lock().responder.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes for the response itself. They must not change while they are sent, so they are copied if the process of a step
/// can still write them.
fn own(name: &str, data: Buffer) -> Result<Buffer, Status> {
    if data.access() == Access::Private || data.is_empty() || !data.place().is_host() {
        return Ok(data);
    }
    let copied = data.try_private(Reason::InlineResponse);
    copied.map_err(|refused| Status::no_memory(format_args!("output '{name}'"), refused))
}

/// Checks strings that a process could change until they were copied.
fn check_strings(name: &str, shape: &[i64], data: &Buffer) -> Result<(), Status> {
    let wrong = |why: String| Status::internal(format!("output '{name}': {why}"));
    let count = element_count(shape).map_err(|error| wrong(error.to_string()))?;
    strings::walk(data, count, |_| ()).map_err(|error| wrong(error.to_string()))
}

/// Puts outputs and parameters into a response.
fn put<'n>(
    responder: &mut Responder,
    tensors: impl Iterator<Item = Sent<'n>>,
    parameters: Parameters,
) -> Result<(), Status> {
    for Sent { index, name, value } in tensors {
        let data = value.data_for_client().clone();
        let may_change = value.data.access() == Access::Shared;
        let Value { datatype, shape, placed, .. } = value;
        if placed {
            responder.put_placed(index, datatype, shape, data);
            continue;
        }
        let slot = match responder.output_slot(index) {
            Some(_) => Some(responder.output_bytes(index, data.len())?),
            None => responder.offered(index, data.len())?,
        };
        let Some(mut slot) = slot else {
            let own = own(name, data)?;
            if may_change && datatype.size().is_none() {
                check_strings(name, &shape, &own)?;
            }
            responder.put_buffer(index, datatype, shape, own);
            continue;
        };
        slot.fill_from(0, &data, Reason::OutputPlacement).map_err(|fault| Status::internal(fault.to_string()))?;
        responder.put(index, datatype, shape, slot.filled());
    }
    responder.set_parameters(parameters);
    Ok(())
}
