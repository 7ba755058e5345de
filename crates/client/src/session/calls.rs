//! Who waits for which answer, and who reads the socket?
//!
//! No task stands between the socket and a caller: of those who wait, one reads, gives others what is theirs, and leaves the
//! reading to the next when its own answer has come. A lone caller is woken once per call, by the socket itself.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;
use nerite_wire::proto::session::{read_answer, v1};
use prost::Message as _;
use v1::client_message::Call;
use v1::server_message::Answer as Told;

use super::limits::PACKET_BYTES_MAX;
use super::socket::Packet;
use super::{Lease, Shared};
use crate::Error;

/// Where packets arrive.
pub(super) type Receiver = Box<[u8]>;

pub(super) fn receiver() -> Receiver {
    vec![0; PACKET_BYTES_MAX].into_boxed_slice()
}

/// An answer with its leases mapped.
pub(super) enum Answer {
    Lease(Lease),
    Inference {
        response: Bytes,
        placed: Vec<OutputLease>,
    },
    Told(Told),
    /// It came, and makes no sense.
    Unreadable(String),
}

/// An output in a lease that the server chose.
pub(super) struct OutputLease {
    pub(super) output: String,
    pub(super) lease: Lease,
    pub(super) offset: usize,
    pub(super) byte_size: usize,
}

impl Answer {
    pub(super) fn unexpected(self) -> Error {
        Error::Answer(match self {
            Answer::Unreadable(reason) => reason,
            _ => "an answer to another question".to_owned(),
        })
    }
}

/// The calls of one session that wait.
pub(super) struct Calls {
    state: Mutex<State>,
    reader: tokio::sync::Mutex<Receiver>,
}

#[derive(Default)]
struct State {
    /// Hello was 1.
    last: u64,
    waiting: HashMap<u64, Waiting>,
    broken: Option<String>,
}

#[derive(Default)]
struct Waiting {
    answers: VecDeque<(Answer, bool)>,
    waker: Option<Waker>,
}

impl Calls {
    pub(super) fn new(receiver: Receiver) -> Calls {
        let state = State { last: 1, ..State::default() };
        Calls { state: Mutex::new(state), reader: tokio::sync::Mutex::new(receiver) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session is over: everybody is told.
    fn fail(&self, reason: &str) {
        let mut state = self.lock();
        state.broken.get_or_insert_with(|| reason.to_owned());
        state.waiting.values_mut().filter_map(|waiting| waiting.waker.take()).for_each(Waker::wake);
    }

    /// Gives an answer to who waits for it; without such, its leases go back as it is dropped, outside the lock.
    fn give(&self, id: u64, answer: Answer, more: bool) {
        let mut state = self.lock();
        let Some(waiting) = state.waiting.get_mut(&id) else {
            drop(state);
            drop(answer);
            return;
        };
        waiting.answers.push_back((answer, more));
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }
}

/// One call that was or will be sent.
pub(super) struct Waiter {
    shared: Arc<Shared>,
    id: u64,
    /// Whether answers may still come.
    open: bool,
}

pub(super) fn begin(shared: &Arc<Shared>) -> Waiter {
    let mut state = shared.calls.lock();
    state.last += 1;
    let id = state.last;
    state.waiting.insert(id, Waiting::default());
    drop(state);
    Waiter { shared: Arc::clone(shared), id, open: false }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "call {} of {:?}", self.id, self.shared)
    }
}

impl Waiter {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn expects_answers(&mut self) {
        self.open = true;
    }

    /// The one answer of a call that has one. A model that gives several cannot be asked this way.
    pub(super) async fn answer(mut self) -> Result<Answer, Error> {
        let (answer, more) = self.next().await?;
        self.open = more;
        if more {
            return Err(Error::Session("the model gives several responses; ask it by infer_stream".to_owned()));
        }
        Ok(answer)
    }

    /// The next answer of a call that has any number; `None` after the last.
    pub(super) async fn next_answer(&mut self) -> Result<Option<Answer>, Error> {
        if !self.open {
            return Ok(None);
        }
        let (answer, more) = self.next().await.inspect_err(|_| self.open = false)?;
        self.open = more;
        Ok(Some(answer))
    }

    async fn next(&self) -> Result<(Answer, bool), Error> {
        loop {
            if let Some(answer) = self.take()? {
                return Ok(answer);
            }
            tokio::select! {
                biased;
                () = self.woken() => {}
                mut receiver = self.shared.calls.reader.lock() => return self.read(&mut receiver).await,
            }
        }
    }

    /// Reads for everybody until the own answer has come.
    async fn read(&self, receiver: &mut Receiver) -> Result<(Answer, bool), Error> {
        loop {
            if let Some(answer) = self.take()? {
                return Ok(answer);
            }
            match self.shared.socket.receive(receiver).await {
                Ok(Packet { bytes: Some(bytes), descriptors }) => self.shared.dispatch(bytes, descriptors),
                Ok(Packet { bytes: None, .. }) => self.shared.calls.fail("the server has closed the session"),
                Err(error) => self.shared.calls.fail(&error.to_string()),
            }
        }
    }

    fn take(&self) -> Result<Option<(Answer, bool)>, Error> {
        let mut state = self.shared.calls.lock();
        let answer = state.waiting.get_mut(&self.id).and_then(|waiting| waiting.answers.pop_front());
        match (answer, &state.broken) {
            (Some(answer), _) => Ok(Some(answer)),
            (None, Some(reason)) => Err(self.shared.broken(reason)),
            (None, None) => Ok(None),
        }
    }

    /// Ready when there is an answer, or none can come.
    async fn woken(&self) {
        poll_fn(|context| {
            let mut state = self.shared.calls.lock();
            let broken = state.broken.is_some();
            match state.waiting.get_mut(&self.id) {
                Some(waiting) if waiting.answers.is_empty() && !broken => {
                    waiting.waker = Some(context.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let gone = self.shared.calls.lock().waiting.remove(&self.id);
        // Leases in answers that nobody took go back here.
        drop(gone);
        if self.open {
            let cancel = Call::Cancel(v1::Cancel { id: self.id });
            let message = v1::ClientMessage { id: 0, returned: Vec::new(), call: Some(cancel) };
            // Best effort: an inference that is not cancelled is merely done for nothing.
            let _ = self.shared.socket.send_now(&message.encode_to_vec());
        }
    }
}

impl Shared {
    fn dispatch(self: &Arc<Shared>, bytes: Bytes, descriptors: Vec<std::os::fd::OwnedFd>) {
        let v1::ServerMessage { id, forgotten, more, answer } = match read_answer(bytes) {
            Ok(message) => message,
            Err(status) => return self.calls.fail(&status.message),
        };
        self.mapped.forget(&forgotten);
        let mut descriptors = descriptors.into_iter();
        let answer = match answer {
            None => return,
            // Of no call: why the session ends.
            Some(Told::Error(error)) if id == 0 => return self.calls.fail(&error.message),
            Some(Told::Leases(leases)) => {
                self.map_all(&leases, &mut descriptors).map(|()| Answer::Told(Told::Leases(leases)))
            }
            Some(Told::Lease(lease)) => self.adopt(lease, &mut descriptors).map(Answer::Lease),
            Some(Told::Inference(inference)) => {
                let place = |placed: v1::OutputLease| {
                    let v1::OutputLease { output, lease, offset, byte_size } = placed;
                    let lease = self.adopt(lease.unwrap_or_default(), &mut descriptors)?;
                    Ok(OutputLease { output, lease, offset: offset as usize, byte_size: byte_size as usize })
                };
                let placed: Result<Vec<_>, String> = inference.placed.into_iter().map(place).collect();
                placed.map(|placed| Answer::Inference { response: inference.response, placed })
            }
            Some(told) => Ok(Answer::Told(told)),
        };
        self.calls.give(id, answer.unwrap_or_else(Answer::Unreadable), more);
    }

    fn adopt(
        self: &Arc<Shared>,
        lease: v1::Lease,
        descriptors: &mut impl Iterator<Item = std::os::fd::OwnedFd>,
    ) -> Result<Lease, String> {
        let v1::Lease { name, byte_size, descriptor } = lease;
        let missing = "a lease came without its descriptor";
        let descriptor = descriptor.then(|| descriptors.next().ok_or(missing)).transpose()?;
        let memory = self.mapped.find(&name, descriptor, byte_size as usize)?;
        Ok(Lease::new(self, name, &memory))
    }
}
