//! What are the requests of a batch, as an engine of the server's takes them?

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nerite_backend::{Job, Jobs, ModelVersion, now_ns};
use nerite_memory::{Buffer, Slot};
use nerite_process::packets::{Command, PlaceFor, RequestRead, TensorAt};
use nerite_request::{
    AdmittedRequest, Deliver, ExactlyOne, InferResponse, PlaceQuery, Reply, Response, Status, Wanted,
};
use nerite_shm::SharedMapping;
use nerite_tensor::Tensor;

use super::memory::{buffer, slot};
use super::talk::{OutputSpace, Talk};

/// The requests of one packet, in its order.
pub(super) struct Requests {
    each: Vec<Arc<Asked>>,
    unread: Mutex<Vec<Option<AdmittedRequest>>>,
}

/// One request while the engine has it.
pub(super) struct Asked {
    talk: Arc<Talk>,
    index: usize,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    places: HashMap<String, OutputPlace>,
    /// The memory in which its tensors lie.
    used: BTreeMap<u64, SharedMapping>,
    one: ExactlyOne,
    response: Option<Result<InferResponse, Status>>,
}

/// Where an output goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputPlace {
    /// Nowhere yet, if there is none.
    pub(super) space: Option<OutputSpace>,
    /// Whether it is the client's own, for which there is no other.
    pub(super) fixed: bool,
}

impl Requests {
    pub(super) fn read(talk: &Arc<Talk>, command: &Command) -> Requests {
        let (mut each, mut unread) = (Vec::new(), Vec::new());
        for (index, told) in command.requests().enumerate() {
            let (talk, state, answered) = (Arc::clone(talk), Mutex::default(), Condvar::new());
            let asked = Arc::new(Asked { talk, index, state, answered });
            unread.push(match asked.read(told) {
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

    /// Those that could be read, once.
    pub(super) fn jobs(&self, version: &Arc<ModelVersion>) -> Jobs {
        let requests = std::mem::take(&mut *self.unread.lock().unwrap_or_else(PoisonError::into_inner));
        let job = |request| Job::new(request, version.begin(), now_ns());
        requests.into_iter().flatten().map(job).collect()
    }

    /// Each of them, with its answer, which is waited for.
    pub(super) fn answers(&self) -> impl Iterator<Item = (&Asked, Result<InferResponse, Status>)> {
        self.each.iter().map(|asked| (&**asked, asked.wait()))
    }

    /// Memory that was found missing under what the requests named, and where.
    pub(super) fn lost(&self) -> Vec<[u64; 2]> {
        let of = |asked: &Arc<Asked>| {
            let state = asked.state();
            let lost = state.used.iter().filter_map(|(segment, one)| Some([*segment, one.lost_at()? as u64]));
            lost.collect::<Vec<_>>()
        };
        self.each.iter().flat_map(of).collect()
    }
}

impl Asked {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A response is there.
    fn take(&self, response: Response) {
        let mut state = self.state();
        if let Some(outcome) = state.one.take(response) {
            state.response = Some(outcome.unwrap_or_else(|not_one| Err(not_one.into())));
        }
        drop(state);
        self.answered.notify_all();
    }

    fn wait(&self) -> Result<InferResponse, Status> {
        let mut state = self.state();
        loop {
            match state.response.take() {
                Some(response) => return response,
                None => state = self.answered.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The memory of that number, which stays mapped until the batch has been answered.
    fn mapping(&self, segment: u64) -> Result<SharedMapping, Status> {
        let mapping = self.talk.memory().get(segment)?.clone();
        self.state().used.insert(segment, mapping.clone());
        Ok(mapping)
    }

    /// Where this output goes, as far as it is known.
    pub(super) fn place(&self, output: &str) -> Option<OutputPlace> {
        self.state().places.get(output).copied()
    }

    /// Whether `data` begins where the space is.
    pub(super) fn lies_in(&self, space: OutputSpace, data: &Buffer) -> bool {
        self.state().used.get(&space.spot.segment).is_some_and(|mapping| mapping.starts(space.spot.offset, data))
    }

    /// Memory for so many bytes of an output that the client named no place for; `None` for no bytes.
    pub(super) fn space(&self, output: &str, bytes: usize) -> Result<Option<(OutputSpace, Slot)>, Status> {
        if bytes == 0 {
            return Ok(None);
        }
        let guess = self.place(output).and_then(|place| place.space).filter(|space| space.capacity >= bytes);
        let space = match guess {
            Some(space) => space,
            None => self.talk.ask_for_space(self.index, output, bytes)?,
        };
        let slot = slot(&self.mapping(space.spot.segment)?, space.spot.offset, bytes)?;
        self.state().places.insert(output.to_owned(), OutputPlace { space: Some(space), fixed: false });
        Ok(Some((space, slot)))
    }

    fn read(self: &Arc<Asked>, told: RequestRead<'_>) -> Result<AdmittedRequest, Status> {
        let id = told.id();
        let inputs = told.inputs().map(|input| self.input(input)).collect::<Result<_, Status>>()?;
        let wanted = told.outputs().map(|output| self.output(output)).collect::<Result<_, Status>>()?;
        let reply = Reply::through(Way(Arc::clone(self)));
        Ok(AdmittedRequest {
            id: id.into(),
            rows: told.rows(),
            inputs,
            wanted,
            priority: 0,
            timeout_us: told.timeout_us(),
            sequence: told.sequence(),
            parameters: told.parameters(),
            cancel: self.talk.gone().comes(told.number()),
            reply,
        })
    }

    fn input(&self, told: Option<TensorAt<'_>>) -> Result<Tensor, Status> {
        let TensorAt { name, datatype, shape, spot, bytes } = told.ok_or_else(senseless)?;
        let data = match spot {
            Some(spot) => buffer(&self.mapping(spot.segment)?, spot.offset, bytes)?,
            None if bytes == 0 => Buffer::empty(),
            None => return Err(senseless()),
        };
        Ok(Tensor { name: name.into(), datatype, shape, data })
    }

    fn output(&self, told: Option<PlaceFor<'_>>) -> Result<Wanted, Status> {
        let PlaceFor { name, spot, capacity, fixed } = told.ok_or_else(senseless)?;
        let place = OutputPlace { space: spot.map(|spot| OutputSpace { spot, capacity }), fixed };
        self.state().places.insert(name.to_owned(), place);
        let own = place.space.filter(|_| place.fixed);
        let slot =
            own.map(|space| slot(&self.mapping(space.spot.segment)?, space.spot.offset, space.capacity)).transpose()?;
        Ok(Wanted { name: name.into(), slot })
    }
}

/// The way back to the packet.
struct Way(Arc<Asked>);

impl Deliver for Way {
    fn deliver(&mut self, response: Response) {
        self.0.take(response);
    }

    fn offers_places(&self) -> bool {
        true
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        Ok(self.0.space(query.output, query.bytes)?.map(|(_, slot)| slot))
    }
}

fn senseless() -> Status {
    Status::internal("the server told of a tensor in words that make no sense")
}
