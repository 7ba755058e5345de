//! What are the requests of a batch, as an engine of the server's takes them?

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nerite_backend::{Job, now_ns};
use nerite_memory::{Buffer, Slot};
use nerite_process::parameters_of;
use nerite_request::{Cancel, Parameters, Reply, Request, Response, Sequence, SequenceId, Status, Wanted};
use nerite_shm::SharedMapping;
use nerite_tensor::{DataType, Shape, Tensor};
use serde_json::Value;

use super::answers;
use super::memory::{buffer, slot};
use super::talk::{OutputSpace, Talk};

/// The requests of one packet, in its order.
pub(super) struct Requests {
    each: Vec<Arc<Asked>>,
    unread: Mutex<Vec<Option<Request>>>,
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
    response: Option<Response>,
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
    pub(super) fn read(talk: &Arc<Talk>, told: Option<&Value>) -> Requests {
        let told = told.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let (mut each, mut unread) = (Vec::new(), Vec::new());
        for (index, told) in told.iter().enumerate() {
            let (talk, state, answered) = (Arc::clone(talk), Mutex::default(), Condvar::new());
            let asked = Arc::new(Asked { talk, index, state, answered });
            unread.push(match asked.read(told) {
                Ok(request) => Some(request),
                Err(status) => {
                    asked.take(Response::failed("", status));
                    None
                }
            });
            each.push(asked);
        }
        Requests { each, unread: Mutex::new(unread) }
    }

    /// Those that could be read, once.
    pub(super) fn jobs(&self, model: &Arc<str>, version: &Arc<str>) -> Vec<Job> {
        let requests = std::mem::take(&mut *self.unread.lock().unwrap_or_else(PoisonError::into_inner));
        let job = |request| Job::new(request, Arc::clone(model), Arc::clone(version), now_ns());
        requests.into_iter().flatten().map(job).collect()
    }

    /// Waits until all have been answered, and tells the answers.
    pub(super) fn answers(&self) -> Vec<Value> {
        self.each.iter().map(|asked| answers::told(asked, asked.wait())).collect()
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

    /// The answer is there.
    fn take(&self, response: Response) {
        let mut state = self.state();
        if state.response.is_none() {
            state.response = Some(response);
        }
        drop(state);
        self.answered.notify_all();
    }

    fn wait(&self) -> Response {
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
        self.state().used.get(&space.segment).is_some_and(|mapping| mapping.starts(space.offset, data))
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
        let slot = slot(&self.mapping(space.segment)?, space.offset, bytes)?;
        self.state().places.insert(output.to_owned(), OutputPlace { space: Some(space), fixed: false });
        Ok(Some((space, slot)))
    }

    fn read(self: &Arc<Asked>, told: &Value) -> Result<Request, Status> {
        let list = |key: &str| told.get(key).and_then(Value::as_array).into_iter().flatten();
        let number = |key: &str| told.get(key).and_then(Value::as_u64).unwrap_or_default();
        let id = told.get("id").and_then(Value::as_str).unwrap_or_default();
        let inputs = list("inputs").map(|input| self.input(input)).collect::<Result<_, Status>>()?;
        let wanted = list("outputs").map(|output| self.output(output)).collect::<Result<_, Status>>()?;
        let parameters = told.get("parameters").and_then(Value::as_object);
        let (sink, offer) = (Arc::clone(self), Arc::clone(self));
        let reply = Reply::new(id, move |response| sink.take(response))
            .offering(move |output, bytes| Ok(offer.space(output, bytes)?.map(|(_, slot)| slot)));
        Ok(Request {
            id: id.into(),
            rows: number("rows") as u32,
            inputs,
            wanted,
            priority: 0,
            timeout_us: number("timeout"),
            sequence: sequence(told.get("correlation"), number("flags")),
            parameters: parameters.map_or_else(Parameters::new, parameters_of),
            cancel: Cancel::new(),
            reply,
        })
    }

    fn input(&self, told: &Value) -> Result<Tensor, Status> {
        let read = || {
            let [name, datatype, shape, segment, offset, bytes] = told.as_array()?.as_slice() else { return None };
            let shape: Option<Vec<i64>> = shape.as_array()?.iter().map(Value::as_i64).collect();
            let place = segment.as_u64().zip(offset.as_u64());
            Some((name.as_str()?, DataType::from_name(datatype.as_str()?)?, shape?, place, bytes.as_u64()? as usize))
        };
        let (name, datatype, shape, place, bytes) = read().ok_or_else(senseless)?;
        let data = match place {
            Some((segment, offset)) => buffer(&self.mapping(segment)?, offset as usize, bytes)?,
            None if bytes == 0 => Buffer::empty(),
            None => return Err(senseless()),
        };
        Ok(Tensor { name: name.into(), datatype, shape: Shape::from_slice(&shape), data })
    }

    fn output(&self, told: &Value) -> Result<Wanted, Status> {
        let read = || {
            let [name, segment, offset, capacity, fixed] = told.as_array()?.as_slice() else { return None };
            let (offset, capacity) = (offset.as_u64()? as usize, capacity.as_u64()? as usize);
            let space = segment.as_u64().map(|segment| OutputSpace { segment, offset, capacity });
            Some((name.as_str()?, OutputPlace { space, fixed: fixed.as_bool()? }))
        };
        let (name, place) = read().ok_or_else(senseless)?;
        self.state().places.insert(name.to_owned(), place);
        let own = place.space.filter(|_| place.fixed);
        let slot = own.map(|space| slot(&self.mapping(space.segment)?, space.offset, space.capacity)).transpose()?;
        Ok(Wanted { name: name.into(), slot })
    }
}

fn sequence(correlation: Option<&Value>, flags: u64) -> Sequence {
    let id = match correlation {
        Some(Value::String(text)) if !text.is_empty() => SequenceId::Text(text.clone()),
        Some(value) => value.as_u64().filter(|number| *number > 0).map_or(SequenceId::None, SequenceId::Number),
        None => SequenceId::None,
    };
    Sequence { id, start: flags & 1 != 0, end: flags & 2 != 0 }
}

fn senseless() -> Status {
    Status::internal("the server told of a tensor in words that make no sense")
}
