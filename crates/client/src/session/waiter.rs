//! Which caller waits for which answer, and which one reads the socket?
//!
//! There is no task between the socket and the callers. One of the waiting callers reads the socket, and passes the other callers their answers. When its own
//! answer has arrived, another caller reads. A single caller is woken once per call, by the socket itself.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use nerite_wire::proto::session::v1;
use prost::Message as _;
use v1::client_message::Call;

use super::calls::{Answer, Receiver, State, Waiting};
use super::link::Shared;
use super::socket::Packet;
use crate::Error;

/// One call that was or will be sent.
pub(crate) struct Waiter {
    shared: Arc<Shared>,
    id: u64,
    /// Whether answers may still arrive.
    open: bool,
}

pub(super) fn begin(shared: &Arc<Shared>) -> Waiter {
    let mut state = shared.calls.lock();
    begin_in(shared, &mut state)
}

/// Begins `count` calls of one packet, with consecutive ids.
pub(super) fn begin_many(shared: &Arc<Shared>, count: usize) -> Vec<Waiter> {
    let mut state = shared.calls.lock();
    (0..count).map(|_| begin_in(shared, &mut state)).collect()
}

fn begin_in(shared: &Arc<Shared>, state: &mut State) -> Waiter {
    state.last += 1;
    let id = state.last;
    state.waiting.insert(id, Waiting::default());
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

    /// The answer of a call that has only one. If the model sends several responses, this is an error.
    pub(crate) async fn answer(mut self) -> Result<Answer, Error> {
        let (answer, more) = self.next().await?;
        self.open = more;
        if more {
            return Err(Error::Session("the model gives several responses; ask it by infer_stream".to_owned()));
        }
        Ok(answer)
    }

    /// The next answer of a call that may have any number. `None` after the last one.
    pub(crate) async fn next_answer(&mut self) -> Result<Option<Answer>, Error> {
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

    /// Reads packets for all callers, until the answer of this call has arrived.
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

    /// Waits until there is an answer, or until no answer can arrive any more.
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
        // This returns the leases in answers that were not taken.
        drop(gone);
        if self.open {
            let cancel = Call::Cancel(v1::Cancel { id: self.id });
            let message = v1::ClientMessage { id: 0, returned: Vec::new(), call: Some(cancel) };
            // Best effort: if the inference is not cancelled, it only does useless work.
            let _ = self.shared.socket.send_now(&message.encode_to_vec());
        }
    }
}
