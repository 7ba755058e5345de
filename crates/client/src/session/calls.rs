//! Which calls of a session wait for answers?

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use nerite_wire::proto::session::v1;
use v1::server_message::Answer as Reply;

use super::lease::Lease;
use super::limits::PACKET_BYTES_MAX;
use crate::Error;

/// The buffer that packets are received into.
pub(super) type Receiver = Box<[u8]>;

pub(super) fn receiver() -> Receiver {
    vec![0; PACKET_BYTES_MAX].into_boxed_slice()
}

/// An answer with its leases mapped.
pub(crate) enum Answer {
    Lease(Lease),
    Inference {
        response: Bytes,
        placed: Vec<OutputLease>,
    },
    Reply(Reply),
    /// An answer that cannot be used, with the reason.
    Unreadable(String),
}

/// An output in a lease that the server chose.
pub(crate) struct OutputLease {
    pub(crate) output: String,
    pub(crate) lease: Lease,
    pub(crate) offset: usize,
    pub(crate) byte_size: usize,
}

impl Answer {
    pub(crate) fn unexpected(self) -> Error {
        Error::Answer(match self {
            Answer::Unreadable(reason) => reason,
            _ => "the answer is of another kind than the call".to_owned(),
        })
    }
}

/// The calls of one session that wait for answers.
pub(super) struct Calls {
    state: Mutex<State>,
    pub(super) reader: tokio::sync::Mutex<Receiver>,
}

#[derive(Default)]
pub(super) struct State {
    /// The last id that was given to a call. Hello had the id 1.
    pub(super) last: u64,
    pub(super) waiting: HashMap<u64, Waiting>,
    pub(super) broken: Option<String>,
}

#[derive(Default)]
pub(super) struct Waiting {
    pub(super) answers: VecDeque<(Answer, bool)>,
    pub(super) waker: Option<Waker>,
}

impl Calls {
    pub(super) fn new(receiver: Receiver) -> Calls {
        let state = State { last: 1, ..State::default() };
        Calls { state: Mutex::new(state), reader: tokio::sync::Mutex::new(receiver) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the session is over, and wakes all waiting calls.
    pub(super) fn fail(&self, reason: &str) {
        let mut state = self.lock();
        state.broken.get_or_insert_with(|| reason.to_owned());
        state.waiting.values_mut().filter_map(|waiting| waiting.waker.take()).for_each(Waker::wake);
    }

    /// Passes an answer to its waiter. If there is no waiter, the answer is dropped outside the lock, because the drop returns its leases.
    pub(super) fn give(&self, id: u64, answer: Answer, more: bool) {
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
