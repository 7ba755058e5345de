//! How do the requests of a batch become jobs of an engine?

use std::cell::Cell;
use std::sync::{Arc, PoisonError, Weak};

use nerite_backend::{Job, Jobs, ModelVersion, Reschedule, now_ns};
use nerite_locks::Mutex;
use nerite_memory::Buffer;
use nerite_process::packets::{Command, OutputMemory, RequestRead, TensorAt};
use nerite_request::names::ByName;
use nerite_request::{AdmittedRequest, InferResponse, Inputs, Name, Recycled, Reply, Response, Status, Wanted};
use nerite_tensor::Tensor;

use super::memory::{buffer, buffer_with, slot};
use super::server_channel::ServerChannel;
use super::worker_request::{InputsHeld, Way, WorkerRequest};

/// The requests of one packet, in its order.
pub(super) struct Requests {
    each: Vec<Arc<WorkerRequest>>,
    unread: Mutex<Vec<Option<Unread>>>,
}

/// A request that the engine does not have yet.
struct Unread {
    worker_request: Arc<WorkerRequest>,
    request: AdmittedRequest,
    /// Outputs that only the server wants: the states of sequences. Each has its index.
    states: Vec<(usize, Name)>,
}

/// The names of the tensors in a model's configuration. The position of a name is the index of its tensor.
pub(super) struct Names {
    pub(super) inputs: Vec<Name>,
    pub(super) outputs: Vec<Name>,
}

impl Requests {
    pub(super) fn read(server: &Arc<ServerChannel>, command: &Command, names: &Names, is_decoupled: bool) -> Requests {
        if let Some(first) = command.requests().next().filter(|_| server.calls().is_some()) {
            server.gone().have_come(first.number());
        }
        let (mut each, mut unread) = (Vec::new(), Vec::new());
        for (index, packet) in command.requests().enumerate() {
            let worker_request = WorkerRequest::new(server, packet.number(), index, is_decoupled);
            unread.push(match read(server, &worker_request, packet, names) {
                Ok(request) => Some(request),
                Err(status) => {
                    worker_request.take(Response::failed(status));
                    None
                }
            });
            each.push(worker_request);
        }
        Requests { each, unread: Mutex::new(unread) }
    }

    /// Takes the requests that could be read, as jobs. `repeats` says whether they may run again.
    pub(super) fn jobs(&self, version: &Arc<ModelVersion>, repeats: bool) -> Jobs {
        let requests = std::mem::take(&mut *self.unread.lock().unwrap_or_else(PoisonError::into_inner));
        let job = |unread| {
            let Unread { worker_request, request, states } = unread;
            let mut job = Job::new(request, version.begin(), now_ns());
            worker_request.set_noted(job.responder_mut().watch_note());
            if repeats {
                let whom: Weak<dyn Reschedule> = Arc::<WorkerRequest>::downgrade(&worker_request);
                // The number of the sequence's state is unused here. Only the server has it.
                job.may_run_again(whom, 0);
            }
            for (index, state) in &states {
                job.want(*index, state);
            }
            if !states.is_empty() {
                job.on_end(move |ended| {
                    worker_request.set_states(ended.states);
                    Ok(())
                });
            }
            job
        };
        requests.into_iter().flatten().map(job).collect()
    }

    /// Waits for the answer of each request.
    pub(super) fn answers(&self) -> impl Iterator<Item = (&WorkerRequest, Result<Recycled<InferResponse>, Status>)> {
        self.each.iter().map(|worker_request| (&**worker_request, worker_request.wait()))
    }

    /// All requests, in their order.
    pub(super) fn each(&self) -> &[Arc<WorkerRequest>] {
        &self.each
    }

    /// Segments whose memory was lost under the requests, and the offsets.
    pub(super) fn lost(&self) -> Vec<[u64; 2]> {
        self.each.iter().flat_map(|worker_request| worker_request.lost()).collect()
    }
}

fn read(
    server: &ServerChannel,
    worker_request: &Arc<WorkerRequest>,
    packet: RequestRead<'_>,
    names: &Names,
) -> Result<Unread, Status> {
    let id = packet.id();
    // A process without calls answers its whole batch at once, and does not report when the engine drops inputs.
    let held = server.calls().map(|_| Arc::new(InputsHeld(Arc::clone(worker_request))));
    let inputs = packet
        .inputs()
        .map(|tensor| input(worker_request, held.as_ref(), tensor))
        .collect::<Result<Inputs, Status>>()?;
    let inputs = arranged(inputs, &names.inputs)?;
    let indices = Indices::of(&names.outputs);
    let wanted = packet.outputs().map(|memory| {
        let wanted = output(worker_request, memory)?;
        Ok((indices.next(&wanted.name), wanted))
    });
    let mut wanted = wanted.collect::<Result<Vec<_>, Status>>()?;
    let own = packet.own().unwrap_or(wanted.len()).min(wanted.len());
    let states = wanted.split_off(own).into_iter().map(|(index, wanted)| (index, wanted.name)).collect();
    let reply = Reply::through(Way(Arc::clone(worker_request)));
    let request = AdmittedRequest {
        id: id.into(),
        rows: packet.rows(),
        inputs,
        wanted: wanted.into_iter().collect(),
        timeout_us: packet.timeout_us(),
        sequence: packet.sequence(),
        parameters: packet.parameters(),
        ..AdmittedRequest::cancelled_by(server.gone().begin(packet.number()), reply)
    };
    Ok(Unread { worker_request: Arc::clone(worker_request), request, states })
}

/// Puts the inputs in the order of the configuration. The server leaves out those that the client left out, and puts those that it adds at the end,
/// so the names decide.
fn arranged(inputs: Inputs, names: &[Name]) -> Result<Inputs, Status> {
    let indices = Indices::of(names);
    inputs.arranged(names.len(), |input| Ok(indices.next(&input.name)))
}

/// Assigns indices to tensors. Tensors that are not in the configuration get the indices that follow.
struct Indices<'n> {
    known: ByName<'n, Name>,
    next_other: Cell<usize>,
}

impl Indices<'_> {
    fn of(names: &[Name]) -> Indices<'_> {
        Indices { known: ByName::new(names, |name: &Name| name.as_str()), next_other: Cell::new(names.len()) }
    }

    /// The index of a tensor of this name that has none yet.
    fn next(&self, name: &str) -> usize {
        self.known.index_of(name).unwrap_or_else(|| self.next_other.replace(self.next_other.get() + 1))
    }
}

fn input(
    worker_request: &WorkerRequest,
    held: Option<&Arc<InputsHeld>>,
    tensor: Option<TensorAt<'_>>,
) -> Result<Tensor, Status> {
    let TensorAt { name, datatype, shape, location, bytes } = tensor.ok_or_else(senseless)?;
    let data = match (location, held) {
        (Some(location), Some(held)) => buffer_with(
            &worker_request.mapping(location.segment)?,
            location.offset,
            bytes,
            Arc::<InputsHeld>::clone(held),
        )?,
        (Some(location), None) => buffer(&worker_request.mapping(location.segment)?, location.offset, bytes)?,
        (None, _) if bytes == 0 => Buffer::empty(),
        (None, _) => return Err(senseless()),
    };
    Ok(Tensor { name: name.into(), datatype, shape, data })
}

fn output(worker_request: &WorkerRequest, memory: Option<OutputMemory<'_>>) -> Result<Wanted, Status> {
    let memory = memory.ok_or_else(senseless)?;
    let target = worker_request.set_target(memory);
    let own = target.space.filter(|_| target.fixed);
    let slot = own
        .map(|space| slot(&worker_request.mapping(space.location.segment)?, space.location.offset, space.capacity))
        .transpose()?;
    Ok(Wanted { name: memory.name.into(), slot })
}

fn senseless() -> Status {
    Status::internal("the server told of a tensor in words that make no sense")
}

#[cfg(test)]
mod tests {
    use nerite_tensor::{DataType, Shape};

    use super::*;

    #[test]
    fn inputs_have_the_indices_that_they_have_in_the_server() {
        let tensor = |name: &str| Tensor {
            name: name.into(),
            datatype: DataType::Fp32,
            shape: Shape::new(),
            data: Buffer::empty(),
        };
        let names = ["A", "B", "C"].map(Name::from);
        let inputs = arranged(["A", "C", "START", "STATE"].map(tensor).into_iter().collect(), &names);
        let inputs = inputs.expect("each has an index");
        let found: Vec<_> = (0..6).map(|at| inputs.at(at).map(|input| input.name.as_str())).collect();
        assert_eq!(found, [Some("A"), None, Some("C"), Some("START"), Some("STATE"), None]);
    }
}
