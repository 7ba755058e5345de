//! Where does a model write an output?

use nerite_memory::{Place, Slot};
use nerite_request::limits::SHARED_BYTES_MIN;
use nerite_request::{PlaceQuery, Status};
use nerite_tensor::{DataType, byte_size};

use super::Responder;
use crate::output_place::too_small;

impl Responder {
    /// Memory for an output of a fixed-size datatype: memory that the client named or that the reply offers, else fresh memory. Fill it, then call
    /// [`Responder::put`].
    pub fn output(&mut self, name: &str, datatype: DataType, shape: &[i64]) -> Result<Slot, Status> {
        let size = byte_size(datatype, shape).map_err(|e| Status::internal(format!("output '{name}': {e}")))?;
        let size = size.ok_or_else(|| {
            Status::internal(format!("output '{name}' is BYTES: its size is known only with its elements"))
        })?;
        self.output_bytes(name, size)
    }

    /// As [`Responder::output`], for an output of `size` bytes. For BYTES, whose size does not follow from the shape.
    pub fn output_bytes(&mut self, name: &str, size: usize) -> Result<Slot, Status> {
        self.output_near(name, size, Place::Host)
    }

    /// As [`Responder::output_bytes`], for a runtime that prefers to write the output at `preferred`. The slot says
    /// where it lies: the client's own memory stays where it is, and memory of this process is the host's.
    pub fn output_near(&mut self, name: &str, size: usize, preferred: Place) -> Result<Slot, Status> {
        let at = self.wanted.iter().position(|wanted| wanted.name == name);
        let Some((at, mut slot)) = at.and_then(|at| Some((at, self.wanted.get_mut(at)?.slot.take()?))) else {
            if let Some(have) = self.staged_capacity(name).filter(|have| *have < size) {
                return Err(too_small(name, have, size));
            }
            return self.measured(name, size, preferred);
        };
        if self.is_divided {
            self.again.extend(slot.again().map(|again| (at, again)));
        }
        if slot.len() < size {
            return Err(too_small(name, slot.len(), size));
        }
        slot.truncate(size);
        Ok(slot)
    }

    /// Memory for an output without memory of the client: memory that the reply offers, the input memory of the model that
    /// reads the output next, or else memory of this process.
    pub(crate) fn measured(&mut self, name: &str, size: usize, preferred: Place) -> Result<Slot, Status> {
        match self.offered_near(name, size, preferred)? {
            Some(slot) => Ok(slot),
            None => self.slot_at_reader(name, size).map_or_else(|| self.fresh(name, size), Ok),
        }
    }

    /// Input memory of the model that reads the output next.
    fn slot_at_reader(&self, name: &str, size: usize) -> Option<Slot> {
        if size < SHARED_BYTES_MIN || self.staged.is_some() {
            return None;
        }
        self.input_memory(name)?.slot(size)
    }

    /// Memory of this process for an output.
    fn fresh(&self, name: &str, size: usize) -> Result<Slot, Status> {
        match &self.staged {
            Some(staged) if staged.capacity(name).is_some() => staged.slot(size),
            _ => Slot::try_heap(size).map_err(|refused| Status::no_memory(format_args!("output '{name}'"), refused)),
        }
    }

    fn staged_capacity(&self, name: &str) -> Option<usize> {
        self.staged.as_ref()?.capacity(name)
    }

    /// As [`Responder::output_near`], for responses that are made side by side: each of them gets the slot that the
    /// client named.
    pub fn output_beside(&mut self, name: &str, size: usize, preferred: Place) -> Result<Slot, Status> {
        match self.output_slot(name).and_then(Slot::again) {
            Some(slot) if slot.len() < size => Err(too_small(name, slot.len(), size)),
            Some(mut slot) => {
                slot.truncate(size);
                Ok(slot)
            }
            None => self.output_near(name, size, preferred),
        }
    }

    pub(super) fn offered_near(
        &mut self,
        output: &str,
        bytes: usize,
        preferred: Place,
    ) -> Result<Option<Slot>, Status> {
        self.reply.place(&PlaceQuery { output, bytes, preferred })
    }
}
