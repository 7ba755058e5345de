//! How does a child answer requests at any time, from any thread of its engine?
//!
//! Calls have a channel of their own, beside the one for commands. A call has a number, and its answer has the same
//! number. A thread reads the answers and passes each to its caller.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;

use nerite_locks::Mutex;
use nerite_process::packets::Command;
use nerite_process::{Channel, Packet};
use nerite_request::Status;

use super::memory::Memory;

/// The child's end of the channel.
pub(super) struct Calls {
    channel: Channel,
    last: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
}

/// The caller that waits for answers.
struct Waiting {
    sender: Sender<CallAnswer>,
    /// Whether further answers may follow the first.
    for_each: bool,
}

/// An answer, or the reason why its memory cannot be used.
pub(super) type CallAnswer = Result<Command, Status>;

impl Calls {
    pub fn new(channel: OwnedFd) -> Arc<Calls> {
        Arc::new(Calls { channel: Channel::from(channel), last: AtomicU64::new(0), waiting: Mutex::default() })
    }

    /// Starts a thread that reads answers until the server closes the channel.
    pub fn listen(self: &Arc<Self>, memory: Arc<Memory>) -> io::Result<()> {
        let calls = Arc::clone(self);
        let listen = move || {
            let (mut packet, mut descriptors) = (Packet::default(), Vec::new());
            while let Ok(Some(text)) = calls.channel.receive_all(&mut packet, &mut descriptors) {
                let Ok(answer) = Command::read(text) else { continue };
                let mapped = memory.map(answer.map(), std::mem::take(&mut descriptors)).map_err(Status::unavailable);
                let worker_request = answer.call().and_then(|call| calls.waiting(call, &answer));
                if let Some(worker_request) = worker_request {
                    // If the caller has stopped waiting, the answer is dropped.
                    let _ = worker_request.send(mapped.map(|()| answer));
                }
            }
            // All callers get an error, because no answer will come.
            calls.lock().clear();
        };
        thread::Builder::new().name("nerite-answers".to_owned()).spawn(listen).map(drop)
    }

    /// Makes a call. `packet` writes it with its number. The answer arrives through the receiver.
    pub fn send(&self, packet: impl FnOnce(u64) -> String) -> Result<Receiver<CallAnswer>, Status> {
        self.begin(false, packet).map(|(_, answer)| answer)
    }

    /// Makes a call that may have several answers. The last one says so. Returns its number as well.
    pub fn send_each(&self, packet: impl FnOnce(u64) -> String) -> Result<(u64, Receiver<CallAnswer>), Status> {
        self.begin(true, packet)
    }

    fn begin(&self, for_each: bool, packet: impl FnOnce(u64) -> String) -> Result<(u64, Receiver<CallAnswer>), Status> {
        let call = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = channel();
        self.lock().insert(call, Waiting { sender, for_each });
        if let Err(error) = self.send_unanswered(&packet(call)) {
            self.lock().remove(&call);
            return Err(error);
        }
        Ok((call, answer))
    }

    /// The caller that waits for this answer. It is removed unless another answer may follow.
    fn waiting(&self, call: u64, answer: &Command) -> Option<Sender<CallAnswer>> {
        let mut waiting = self.lock();
        match waiting.get(&call) {
            Some(Waiting { sender, for_each: true }) if !answer.is_final() && !answer.is_unknown() => {
                Some(sender.clone())
            }
            _ => waiting.remove(&call).map(|waiting| waiting.sender),
        }
    }

    /// Sends a packet that has no answer.
    pub fn send_unanswered(&self, packet: &str) -> Result<(), Status> {
        self.channel.send(packet, &[]).map_err(|error| gone(&error))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the answer to a call.
pub(super) fn wait(answer: &Receiver<CallAnswer>) -> CallAnswer {
    answer.recv().unwrap_or_else(|_| Err(gone(&io::ErrorKind::UnexpectedEof.into())))
}

fn gone(error: &io::Error) -> Status {
    Status::unavailable(format!("the server cannot be told: {error}"))
}
