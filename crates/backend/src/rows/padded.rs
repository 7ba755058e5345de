//! How is a tensor padded to a larger one, and how is the result cut out again?
//!
//! ```text
//!   job 0: T [1,3] ─┐            ┌ a b c 0 ┐                ┌─► job 0: Y [1,3]
//!                   ├─► T [2,4] ─┤         ├─► Y [2,4] ─────┤   (cut back to the shape of T)
//!   job 1: T [1,2] ─┘            └ d e 0 0 ┘                └─► job 1: Y [1,2]
//! ```
//! Padding and cutting both copy runs. A run is a sequence of elements that are contiguous in the small tensor and in the large one.
//! [`nerite_config::Padding`] says which inputs are padded to which shapes.

use nerite_config::PaddedInput;
use nerite_memory::{Buffer, Extent, Reason, Slot, SlotError};
use nerite_request::Status;
use nerite_tensor::{DataType, Shape, Tensor, byte_size, show_shape};

use super::gather::gather;
use crate::Job;
use crate::output_place::too_small;

/// Bytes of padding that are written with one call.
const FILL_BYTES: usize = 4096;

/// Joins the parts of a padded input, with the rows of all jobs one after the other. After padding, the parts differ only in their number of rows.
pub(super) fn join(input: &Tensor, padded: &PaddedInput, parts: &[&Tensor]) -> Result<(Shape, Buffer), Status> {
    let mut shape = padded.padded(&input.shape);
    let rows = parts.iter().filter_map(|part| part.shape.first()).sum();
    if let Some(first) = shape.first_mut() {
        *first = rows;
    }
    if parts.iter().all(|part| part.shape.get(1..) == shape.get(1..)) {
        let data: Vec<&Buffer> = parts.iter().map(|part| &part.data).collect();
        let data = Buffer::joined(&data).map_or_else(|| gather(&input.name, &data), Ok)?;
        return Ok((shape, data));
    }
    if let Some(part) = parts.iter().find(|part| !part.data.place().is_host()) {
        return Err(Status::unsupported(format!(
            "input '{}' lies in {:?}: it cannot be padded there",
            input.name,
            part.data.place()
        )));
    }
    let element = padded.filler().len();
    let slot = Slot::try_heap(bytes_of(&input.name, input.datatype, &shape)?);
    let mut slot =
        slot.map_err(|refused| Status::no_memory(format_args!("input '{}', padded", input.name), refused))?;
    let mut filler = Filler::of(padded.filler());
    let mut at = 0;
    for part in parts {
        let whole = padded.padded(&part.shape);
        let whole_bytes = bytes_of(&input.name, input.datatype, &whole)?;
        let mut written = at;
        for run in Runs::new(&part.shape, &whole) {
            let to = at + run.large * element;
            filler.fill(&mut slot, written, to).map_err(internal)?;
            let from = slice(&part.data, run.small * element, run.len * element).map_err(internal)?;
            slot.fill_from(to, &from, Reason::BatchGather).map_err(internal)?;
            written = to + from.len();
        }
        at += whole_bytes;
        filler.fill(&mut slot, written, at).map_err(internal)?;
    }
    Ok((shape, slot.filled().into_buffer()))
}

/// An output, with the rows of all jobs.
pub(super) struct WholeOutput<'a> {
    /// Its index in the configuration.
    pub index: usize,
    pub name: &'a str,
    pub datatype: DataType,
    pub data: &'a Buffer,
}

/// Gives the job its part of a whole output. The job's rows begin at the element `first` and have the shape `whole`. The shape `part` is cut out of
/// them. `taken` is the client's slot, if it was taken from the job already.
pub(super) fn give_cut(
    job: &mut Job,
    made: &WholeOutput<'_>,
    first: u64,
    whole: &[i64],
    part: Shape,
    taken: Option<Slot>,
) -> Result<(), Status> {
    let WholeOutput { index, name, datatype, data } = *made;
    let Some(element) = datatype.size() else {
        return Err(Status::internal(format!("output '{name}' cannot be cut back to the shape {}", show_shape(&part))));
    };
    if part.len() != whole.len() || part.iter().zip(whole).any(|(part, whole)| part > whole) {
        return Err(Status::internal(format!(
            "output '{name}' has shape {}, but the input that it is cut back by leaves {}",
            show_shape(whole),
            show_shape(&part)
        )));
    }
    let size = bytes_of(name, datatype, &part)?;
    let is_placed = taken.is_some() || job.output_place(index).capacity.is_some();
    let mut slot = match taken {
        Some(slot) if slot.len() < size => return Err(too_small(name, slot.len(), size)),
        Some(slot) => slot,
        None if is_placed => job.output_bytes(index, size)?,
        None => Slot::try_heap(size).map_err(|refused| Status::no_memory(format_args!("output '{name}'"), refused))?,
    };
    slot.truncate(size);
    for run in Runs::new(&part, whole) {
        let from = slice(data, (first as usize + run.large) * element, run.len * element).map_err(internal)?;
        slot.fill_from(run.small * element, &from, Reason::BatchScatter).map_err(internal)?;
    }
    if is_placed {
        job.put(index, datatype, part, slot.filled());
    } else {
        job.put_buffer(index, datatype, part, slot.filled().into_buffer());
    }
    Ok(())
}

fn bytes_of(name: &str, datatype: DataType, shape: &[i64]) -> Result<usize, Status> {
    let size = byte_size(datatype, shape).map_err(|e| Status::invalid(format!("'{name}', padded: {e}")))?;
    size.ok_or_else(|| Status::internal(format!("'{name}' has elements without a size of their own")))
}

fn slice(data: &Buffer, at: usize, len: usize) -> Result<Buffer, nerite_memory::ExtentError> {
    Extent::new(at, len, data.len()).map(|extent| data.slice(extent))
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

/// Writes one element repeatedly.
struct Filler(Vec<u8>);

impl Filler {
    fn of(element: &[u8]) -> Filler {
        Filler(element.repeat(FILL_BYTES / element.len().max(1)))
    }

    /// Fills the bytes from `from` to `to`, which must be a whole number of elements.
    fn fill(&mut self, slot: &mut Slot, mut from: usize, to: usize) -> Result<(), SlotError> {
        while from < to {
            let bytes = &self.0[..(to - from).min(self.0.len())];
            slot.write(from, bytes, Reason::BatchGather)?;
            from += bytes.len();
        }
        Ok(())
    }
}

/// A run of contiguous elements: its first element in the small tensor and in the large one, and the number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    small: usize,
    large: usize,
    len: usize,
}

/// The runs of a tensor that lies in the corner of a larger one with the same number of dimensions, in ascending order.
struct Runs {
    /// For each dimension before the innermost one that differs: its size in the small tensor, and its stride in the large one, in elements.
    outer: Vec<(usize, usize)>,
    at: Vec<usize>,
    next: Option<Run>,
}

impl Runs {
    fn new(small: &[i64], large: &[i64]) -> Runs {
        let size = |dim: &i64| usize::try_from(*dim).unwrap_or(0);
        let inner = small.iter().zip(large).rposition(|(small, large)| small != large).unwrap_or(0);
        let len = small.get(inner..).unwrap_or_default().iter().map(size).product();
        let mut step: usize = large.get(inner..).unwrap_or_default().iter().map(size).product();
        let mut outer = Vec::with_capacity(inner);
        for (small, large) in small.iter().zip(large).take(inner).rev() {
            outer.push((size(small), step));
            step *= size(large);
        }
        outer.reverse();
        let is_empty = len == 0 || outer.iter().any(|(size, _)| *size == 0);
        let at = vec![0; outer.len()];
        Runs { outer, at, next: (!is_empty).then_some(Run { small: 0, large: 0, len }) }
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let run = self.next?;
        self.next = None;
        for (at, (size, _)) in self.at.iter_mut().zip(&self.outer).rev() {
            *at += 1;
            if *at < *size {
                let large = self.at.iter().zip(&self.outer).map(|(at, (_, step))| at * step).sum();
                self.next = Some(Run { small: run.small + run.len, large, len: run.len });
                break;
            }
            *at = 0;
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests;
