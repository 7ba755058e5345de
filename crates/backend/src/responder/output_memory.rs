//! Where does a model write an output?

use std::sync::Arc;

use nerite_memory::{Place, Slot};
use nerite_request::limits::SHARED_BYTES_MIN;
use nerite_request::{InputMemory, OutputKey, PlaceQuery, Status};
use nerite_tensor::{DataType, Name, byte_size};

use super::Responder;
use crate::output_place::too_small;

impl Responder {
    /// Memory for an output of a fixed-size datatype: memory that the client named or that the reply offers, else newly allocated memory. The caller
    /// fills it, then calls [`Responder::put`].
    pub fn output(&mut self, output: impl OutputKey, datatype: DataType, shape: &[i64]) -> Result<Slot, Status> {
        let size = byte_size(datatype, shape)
            .map_err(|e| Status::internal(format!("output '{}': {e}", self.name_of(output))))?
            .ok_or_else(|| {
                let name = self.name_of(output);
                Status::internal(format!("output '{name}' is BYTES: its size is known only with its elements"))
            })?;
        self.output_bytes(output, size)
    }

    /// As [`Responder::output`], for an output of `size` bytes. Outputs of BYTES need this, because their size does not follow from the shape.
    pub fn output_bytes(&mut self, output: impl OutputKey, size: usize) -> Result<Slot, Status> {
        self.output_near(output, size, Place::Host)
    }

    /// As [`Responder::output_bytes`], for a runtime that prefers to write the output at `preferred`. The returned slot may lie elsewhere: memory
    /// that the client named stays where it is, and memory of this process lies on the host.
    pub fn output_near(&mut self, output: impl OutputKey, size: usize, preferred: Place) -> Result<Slot, Status> {
        let at = output.position(&self.wanted);
        let Some((at, mut slot)) = at.and_then(|at| Some((at, self.wanted.at_mut(at)?.slot.take()?))) else {
            if let Some(have) = self.staged_capacity(output).filter(|have| *have < size) {
                return Err(too_small(&self.name_of(output), have, size));
            }
            return self.measured(output, size, preferred);
        };
        if self.is_divided {
            self.again.extend(slot.again().map(|again| (at, again)));
        }
        if slot.len() < size {
            return Err(too_small(&self.name_of(output), slot.len(), size));
        }
        slot.truncate(size);
        Ok(slot)
    }

    /// Memory for an output without memory of the client: memory that the reply offers, the input memory of the model that
    /// reads the output next, or else memory of this process.
    pub(crate) fn measured(&mut self, output: impl OutputKey, size: usize, preferred: Place) -> Result<Slot, Status> {
        match self.offered_near(output, size, preferred)? {
            Some(slot) => Ok(slot),
            None => self.slot_at_reader(output, size).map_or_else(|| self.fresh(output, size), Ok),
        }
    }

    /// Input memory of the model that reads the output next.
    fn slot_at_reader(&self, output: impl OutputKey, size: usize) -> Option<Slot> {
        self.memory_at_reader(output, size)?.slot(size)
    }

    /// The input memory that an output of `size` bytes should be written to, for the model that reads it next.
    pub(crate) fn memory_at_reader(&self, output: impl OutputKey, size: usize) -> Option<Arc<dyn InputMemory>> {
        if size < SHARED_BYTES_MIN || self.staged.is_some() {
            return None;
        }
        self.input_memory(output)
    }

    /// Memory of this process for an output.
    fn fresh(&self, output: impl OutputKey, size: usize) -> Result<Slot, Status> {
        match &self.staged {
            Some(staged) if self.staged_capacity(output).is_some() => staged.slot(size),
            _ => Slot::try_heap(size)
                .map_err(|refused| Status::no_memory(format_args!("output '{}'", self.name_of(output)), refused)),
        }
    }

    fn staged_capacity(&self, output: impl OutputKey) -> Option<usize> {
        self.staged.as_ref()?.capacity(self.wanted.find(output)?.0)
    }

    /// As [`Responder::output_near`], for responses that are made concurrently, by code that may leave bytes unwritten. Each response gets the slot
    /// that the client named. Other memory is zeroed, because its earlier content may be another client's.
    pub fn output_beside(&mut self, output: impl OutputKey, size: usize, preferred: Place) -> Result<Slot, Status> {
        let named = self.output_slot(output);
        let is_named = named.is_some();
        match named.and_then(Slot::again) {
            Some(slot) if slot.len() < size => Err(too_small(&self.name_of(output), slot.len(), size)),
            Some(mut slot) => {
                slot.truncate(size);
                Ok(slot)
            }
            None => {
                let mut slot = self.output_near(output, size, preferred)?;
                if !is_named {
                    slot.truncate(size);
                    slot.clear();
                }
                Ok(slot)
            }
        }
    }

    pub(super) fn offered_near(
        &mut self,
        output: impl OutputKey,
        bytes: usize,
        preferred: Place,
    ) -> Result<Option<Slot>, Status> {
        let Some((index, wanted)) = self.wanted.find(output) else { return Ok(None) };
        self.reply.place(&PlaceQuery { index, output: &wanted.name, bytes, preferred })
    }

    /// The output's name, for an error.
    pub(crate) fn name_of(&self, output: impl OutputKey) -> Name {
        self.wanted.find(output).map_or_else(|| output.text(), |(_, wanted)| wanted.name.clone())
    }
}
