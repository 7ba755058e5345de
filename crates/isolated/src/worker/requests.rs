//! How do the requests of a batch become jobs of an engine?

use std::sync::{Arc, Mutex, PoisonError, Weak};

use nerite_backend::{Job, Jobs, ModelVersion, Reschedule, now_ns};
use nerite_memory::Buffer;
use nerite_process::packets::{Command, OutputMemory, RequestRead, TensorAt};
use nerite_request::{AdmittedRequest, InferResponse, Name, Reply, Response, Status, Wanted};
use nerite_tensor::Tensor;

use super::asked::{Asked, InputsHeld, Way};
use super::memory::{buffer, buffer_with, slot};
use super::talk::Talk;

/// The requests of one packet, in its order.
pub(super) struct Requests {
    each: Vec<Arc<Asked>>,
    unread: Mutex<Vec<Option<Unread>>>,
}

/// A request that the engine does not have yet.
struct Unread {
    asked: Arc<Asked>,
    request: AdmittedRequest,
    /// Outputs that only the server wants: the states of sequences.
    states: Vec<Name>,
}

impl Requests {
    pub(super) fn read(talk: &Arc<Talk>, command: &Command, is_decoupled: bool) -> Requests {
        if let Some(first) = command.requests().next().filter(|_| talk.calls().is_some()) {
            talk.gone().have_come(first.number());
        }
        let (mut each, mut unread) = (Vec::new(), Vec::new());
        for (index, told) in command.requests().enumerate() {
            let asked = Asked::new(talk, told.number(), index, is_decoupled);
            unread.push(match read(talk, &asked, told) {
                Ok(request) => Some(request),
                Err(status) => {
                    asked.take(Response::failed(status));
                    None
                }
            });
            each.push(asked);
        }
        Requests { each, unread: Mutex::new(unread) }
    }

    /// Takes those that could be read. `repeats` says whether they may run again.
    pub(super) fn jobs(&self, version: &Arc<ModelVersion>, repeats: bool) -> Jobs {
        let requests = std::mem::take(&mut *self.unread.lock().unwrap_or_else(PoisonError::into_inner));
        let job = |unread| {
            let Unread { asked, request, states } = unread;
            let mut job = Job::new(request, version.begin(), now_ns());
            if repeats {
                let whom: Weak<dyn Reschedule> = Arc::<Asked>::downgrade(&asked);
                // The server keeps the number of the sequence's state.
                job.may_run_again(whom, 0);
            }
            for state in &states {
                job.want(state);
            }
            if !states.is_empty() {
                job.on_end(move |ended| {
                    asked.set_states(ended.states);
                    Ok(())
                });
            }
            job
        };
        requests.into_iter().flatten().map(job).collect()
    }

    /// Waits for the answer of each request.
    pub(super) fn answers(&self) -> impl Iterator<Item = (&Asked, Result<InferResponse, Status>)> {
        self.each.iter().map(|asked| (&**asked, asked.wait()))
    }

    /// All requests, in their order.
    pub(super) fn each(&self) -> &[Arc<Asked>] {
        &self.each
    }

    /// Segments whose memory was lost under the requests, and the offsets.
    pub(super) fn lost(&self) -> Vec<[u64; 2]> {
        self.each.iter().flat_map(|asked| asked.lost()).collect()
    }
}

fn read(talk: &Talk, asked: &Arc<Asked>, told: RequestRead<'_>) -> Result<Unread, Status> {
    let id = told.id();
    // A process without calls answers its whole batch at once, and does not report when the engine drops inputs.
    let held = talk.calls().map(|_| Arc::new(InputsHeld(Arc::clone(asked))));
    let inputs = told.inputs().map(|told| input(asked, held.as_ref(), told)).collect::<Result<_, Status>>()?;
    let mut wanted = told.outputs().map(|told| output(asked, told)).collect::<Result<Vec<_>, Status>>()?;
    let own = told.own().unwrap_or(wanted.len()).min(wanted.len());
    let states = wanted.split_off(own).into_iter().map(|wanted| wanted.name).collect();
    let reply = Reply::through(Way(Arc::clone(asked)));
    let request = AdmittedRequest {
        id: id.into(),
        rows: told.rows(),
        inputs,
        wanted: wanted.into_iter().collect(),
        priority: 0,
        timeout_us: told.timeout_us(),
        sequence: told.sequence(),
        parameters: told.parameters(),
        cancel: talk.gone().comes(told.number()),
        reply,
    };
    Ok(Unread { asked: Arc::clone(asked), request, states })
}

fn input(asked: &Asked, held: Option<&Arc<InputsHeld>>, told: Option<TensorAt<'_>>) -> Result<Tensor, Status> {
    let TensorAt { name, datatype, shape, location, bytes } = told.ok_or_else(senseless)?;
    let data = match (location, held) {
        (Some(location), Some(held)) => {
            buffer_with(&asked.mapping(location.segment)?, location.offset, bytes, Arc::<InputsHeld>::clone(held))?
        }
        (Some(location), None) => buffer(&asked.mapping(location.segment)?, location.offset, bytes)?,
        (None, _) if bytes == 0 => Buffer::empty(),
        (None, _) => return Err(senseless()),
    };
    Ok(Tensor { name: name.into(), datatype, shape, data })
}

fn output(asked: &Asked, told: Option<OutputMemory<'_>>) -> Result<Wanted, Status> {
    let told = told.ok_or_else(senseless)?;
    let target = asked.set_target(told);
    let own = target.space.filter(|_| target.fixed);
    let slot = own
        .map(|space| slot(&asked.mapping(space.location.segment)?, space.location.offset, space.capacity))
        .transpose()?;
    Ok(Wanted { name: told.name.into(), slot })
}

fn senseless() -> Status {
    Status::internal("the server told of a tensor in words that make no sense")
}
