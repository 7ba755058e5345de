//! Which part of a whole output belongs to which job?

use nerite_memory::{Buffer, Extent, Filled, Reason, Slot};
use nerite_request::Status;
use nerite_tensor::{DataType, Name, Shape, element_count};

use super::{Outcomes, Ragged, padded};
use crate::Job;
use crate::output_place::too_small;

/// A whole output, with the rows of all jobs.
pub(super) struct Made {
    /// Its index in the configuration.
    pub index: usize,
    pub name: Name,
    pub datatype: DataType,
    pub shape: Shape,
    pub whole: Whole,
}

/// Where a whole output lies.
pub(super) enum Whole {
    /// In a slot that the runtime requested.
    Slot(Slot<Filled>),
    /// In memory of the runtime.
    Buffer(Buffer),
    /// As BYTES elements, with the end of each. `ends` is empty if there is a single job.
    Strings { bytes: Buffer, ends: Vec<usize> },
}

impl Made {
    /// The same output. A slot is turned into a buffer, which several jobs can share.
    fn readable(self) -> Made {
        let whole = match self.whole {
            Whole::Slot(slot) => Whole::Buffer(slot.into_buffer()),
            other => other,
        };
        Made { whole, ..self }
    }

    /// The same output, for cutting out parts that are smaller than its rows.
    fn to_cut(&self) -> Result<padded::WholeOutput<'_>, Status> {
        match &self.whole {
            Whole::Buffer(data) => {
                Ok(padded::WholeOutput { index: self.index, name: &self.name, datatype: self.datatype, data })
            }
            Whole::Slot(_) | Whole::Strings { .. } => {
                Err(Status::internal(format!("output '{}' cannot be cut to the shape of a padded input", self.name)))
            }
        }
    }
}

/// Gives a single job its outputs. `spare` are slots that were taken for the job and not written, each with the index of its output.
pub(super) fn give_whole(
    job: &mut Job,
    made: impl IntoIterator<Item = Made>,
    mut spare: Vec<(usize, Slot)>,
    ragged: &Ragged,
) -> Result<(), Status> {
    for made in made {
        // An output that may be cut was not computed into the client's memory. Even if this one needs no cut, it must be copied there.
        let mut made = if ragged.is_cut(made.index) { made.readable() } else { made };
        if let Some(part) = ragged.cut(made.index, job).filter(|part| *part != made.shape) {
            let taken = spare.iter().position(|(whose, _)| *whose == made.index).map(|at| spare.swap_remove(at).1);
            padded::give_cut(job, &made.to_cut()?, 0, &made.shape, part, taken)?;
            continue;
        }
        let shape = match ragged.part(made.index, job) {
            Some(part) => {
                check_parts(&made, elements(&part)?)?;
                part
            }
            None => std::mem::take(&mut made.shape),
        };
        match made.whole {
            Whole::Slot(slot) => job.put(made.index, made.datatype, shape, slot),
            Whole::Buffer(ref data) | Whole::Strings { bytes: ref data, .. } => {
                let taken = spare.iter().position(|(whose, _)| *whose == made.index).map(|at| spare.swap_remove(at).1);
                give(job, &made, shape, data.clone(), taken, Reason::OutputPlacement)?;
            }
        }
    }
    Ok(())
}

/// Gives each of several jobs its rows of the outputs that it wants.
pub(super) fn give_rows(
    jobs: &mut [Job],
    made: impl IntoIterator<Item = Made>,
    ragged: &Ragged,
) -> Result<Outcomes, Status> {
    let rows: Vec<i64> = jobs.iter().map(rows_of).collect();
    let made: Vec<Made> = made.into_iter().map(Made::readable).collect();
    let parts: Vec<Vec<Shape>> = made.iter().map(|made| parts(made, jobs, &rows, ragged)).collect::<Result<_, _>>()?;
    let mut firsts = vec![0; made.len()];
    let mut results = Outcomes::with_capacity(jobs.len());
    for (at, job) in jobs.iter_mut().enumerate() {
        let mut result = Ok(());
        for ((made, parts), first) in made.iter().zip(&parts).zip(&mut firsts) {
            let (shape, from) = (parts[at].clone(), *first);
            *first += elements(&shape)?;
            if job.wants(made.index) {
                let cut = ragged.cut(made.index, job).filter(|cut| *cut != shape);
                result = result.and_then(|()| match cut {
                    Some(cut) => padded::give_cut(job, &made.to_cut()?, from, &shape, cut, None),
                    None => give_part(job, made, shape, from),
                });
            }
        }
        results.push(result);
    }
    Ok(results)
}

/// The shape of each job's part of this output. Fails unless all parts together are the whole output.
fn parts(made: &Made, jobs: &[Job], rows: &[i64], ragged: &Ragged) -> Result<Vec<Shape>, Status> {
    let scattered: Option<Vec<Shape>> = jobs.iter().map(|job| ragged.part(made.index, job)).collect();
    if let Some(parts) = scattered {
        let all = parts.iter().try_fold(0u64, |all, part| Ok::<_, Status>(all.saturating_add(elements(part)?)))?;
        check_parts(made, all)?;
        return Ok(parts);
    }
    check_rows(made, rows.iter().sum())?;
    let part = |rows: &i64| {
        let mut shape = made.shape.clone();
        shape[0] = *rows;
        shape
    };
    Ok(rows.iter().map(part).collect())
}

fn elements(shape: &[i64]) -> Result<u64, Status> {
    element_count(shape).map_err(|e| Status::internal(e.to_string()))
}

fn check_parts(made: &Made, wanted: u64) -> Result<(), Status> {
    let have = elements(&made.shape)?;
    if have == wanted {
        return Ok(());
    }
    Err(Status::internal(format!(
        "output '{}' has {have} elements, but the requests of the batch want {wanted} by the shapes of their inputs",
        made.name
    )))
}

/// The rows of a job for the model: the first dimension of its inputs.
pub(super) fn rows_of(job: &Job) -> i64 {
    job.inputs().first().and_then(|input| input.shape.first().copied()).unwrap_or(i64::from(job.rows()))
}

fn check_rows(made: &Made, rows: i64) -> Result<(), Status> {
    if made.shape.first() == Some(&rows) {
        return Ok(());
    }
    Err(Status::internal(format!(
        "output '{}' has shape {}, but the batch has {rows} rows: the model does not keep its batch dimension",
        made.name,
        nerite_tensor::show_shape(&made.shape)
    )))
}

/// Gives the job a part of this shape, which begins at the element `first`.
fn give_part(job: &mut Job, made: &Made, shape: Shape, first: u64) -> Result<(), Status> {
    let (from, to) = (first as usize, first.saturating_add(elements(&shape)?) as usize);
    let (data, from, to) = match &made.whole {
        Whole::Slot(_) => return Err(Status::internal(format!("output '{}' was not made readable", made.name))),
        Whole::Buffer(data) => (data.clone(), from, to),
        Whole::Strings { bytes, ends } => {
            let end = |elements: usize| elements.checked_sub(1).and_then(|last| ends.get(last).copied()).unwrap_or(0);
            (bytes.clone(), end(from), end(to))
        }
    };
    let size = made.datatype.size().unwrap_or(1);
    let extent = Extent::new(from * size, (to - from) * size, data.len());
    let extent = extent.map_err(|e| Status::internal(format!("output '{}' {e}", made.name)))?;
    give(job, made, shape, data.slice(extent), None, Reason::BatchScatter)
}

/// Gives the job `data` as this output. The data is copied unless it can be sent in the response or already lies where the client wants it.
fn give(
    job: &mut Job,
    &Made { index, ref name, datatype, .. }: &Made,
    shape: Shape,
    data: Buffer,
    taken: Option<Slot>,
    reason: Reason,
) -> Result<(), Status> {
    // A response is sent from memory of this host.
    let is_sendable = data.place().is_host() && taken.is_none();
    if is_sendable && job.output_place(index).capacity.is_none() {
        job.put_buffer(index, datatype, shape, data);
        return Ok(());
    }
    let mut slot = match taken {
        Some(slot) if slot.len() < data.len() => return Err(too_small(name, slot.len(), data.len())),
        Some(slot) => slot,
        None => job.output_bytes(index, data.len())?,
    };
    slot.truncate(data.len());
    // The data need not be copied if the rows of a batch were computed into the clients' memory.
    if !slot.begins_at(&data) {
        let reason = reason.between(data.place(), slot.place());
        slot.fill_from(0, &data, reason).map_err(|e| Status::internal(e.to_string()))?;
    }
    job.put(index, datatype, shape, slot.filled());
    Ok(())
}
