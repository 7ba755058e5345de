//! How does the server answer calls from any thread of a model's process?
//!
//! A decoupled model answers its requests from any thread, also after `execute` has returned. Its responses come on a separate channel. The first
//! packet on the channel starts a thread of the server that reads it, so a process that never calls needs no thread. Each process has a thread of its
//! own, so a process that waits for a slow client delays no other process.

mod control;
mod inputs;
mod nested;
mod open;
mod readiness;
mod waiting;

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use nerite_locks::Mutex;
use nerite_request::Status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::answer;
use crate::blocks::{Block, Blocks};
use crate::channel::{Channel, Packet, Received};
use crate::child::{Silence, how_it_ended, last_lines_of_run};
use crate::limits::LAST_PACKETS_MAX;
use crate::os_process::OsProcess;
use crate::packets::{Call, CallFailed, CallSaid};
use crate::plan::{Planned, Sizes};
use crate::process_output::ProcessOutput;
use crate::shares::{Maps, Shares};
use crate::supervisor::{Caller, Side};
use inputs::BatchInputs;
pub use nested::Callees;
use nested::NestedRequests;
use open::Open;
use readiness::ReadinessQuestion;
use waiting::WaitingResponses;

/// The server's end of the channel for calls, and the open requests of the process.
pub(crate) struct Calls {
    channel: Channel,
    bell: OwnedFd,
    pub(crate) process: Process,
    pub(crate) sizes: Sizes,
    /// Requests that have not ended, and whose responses may come here.
    open: Mutex<HashMap<u64, OpenRequest>>,
    /// Inputs of requests that have ended. They are kept until the model drops them.
    inputs: Mutex<HashMap<u64, Block>>,
    /// Requests of the process to other models. `space` has memory for the inputs of further ones.
    nested: NestedRequests,
    space: Mutex<HashMap<u64, Block>>,
    question: Mutex<ReadinessQuestion>,
    pub(crate) batch_inputs: BatchInputs,
    waiting: WaitingResponses,
    news: Mutex<Vec<News>>,
    /// Whether its model is being initialized, so the load of the model waits for its calls.
    is_initializing: AtomicBool,
    /// Held by the thread that receives and handles a packet. It may be any thread, and packets are handled in order.
    reading: Mutex<()>,
    /// Packets that could not be sent at once, in order.
    unsent: Mutex<VecDeque<(String, Vec<OwnedFd>)>>,
}

/// The parts of a process that its calls need.
pub(crate) struct Process {
    /// The instance's name.
    pub(crate) instance: String,
    /// Makes the error text of a process that does not answer, with a reason.
    pub(crate) unhealthy: Box<dyn Fn(&str) -> String + Send + Sync>,
    pub(crate) shares: Arc<Shares>,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) side: Arc<Side>,
    pub(crate) os_process: Arc<OsProcess>,
    pub(crate) output: Option<ProcessOutput>,
    /// Whether the server counts the responses of each request one by one.
    pub(crate) counts_responses: bool,
    pub(crate) callees: Callees,
}

/// An open request. It is locked while a response of it is passed on, so that its responses keep their order. `None` once it has ended.
pub(crate) type OpenRequest = Arc<Mutex<Option<Open>>>;

/// An event that another thread reports to the thread that serves these calls.
pub(crate) enum News {
    /// The window of this request has space for another response. The call `call` waits for that, unless it was answered before.
    HasRoom { number: u64, call: u64 },
    /// The process has ended. This is the error of its open requests.
    Ended(Status),
}

impl Calls {
    pub(crate) fn new(channel: Channel, process: Process, sizes: Sizes) -> io::Result<Arc<Calls>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (open, inputs, news, unsent) = (Mutex::default(), Mutex::default(), Mutex::default(), Mutex::default());
        let (nested, space, question) = (Mutex::default(), Mutex::default(), Mutex::default());
        let batch_inputs = BatchInputs::default();
        Ok(Arc::new(Calls {
            channel,
            bell,
            process,
            sizes,
            open,
            inputs,
            nested,
            space,
            question,
            batch_inputs,
            waiting: WaitingResponses::default(),
            news,
            is_initializing: AtomicBool::new(true),
            reading: Mutex::default(),
            unsent,
        }))
    }

    /// Notes that its model is initialized.
    pub(crate) fn note_initialized(&self) {
        self.is_initializing.store(false, Ordering::Relaxed);
    }

    /// Opens the requests of a batch and sends it with `send`. From then on responses may arrive. Returns the batch if
    /// it was not sent, with the reason, or without a reason if `send` could not send it at once. `send` must not wait,
    /// because the supervisor takes the same lock.
    pub(crate) fn begin(
        &self,
        planned: Vec<Planned>,
        times: nerite_backend::Times,
        send: impl FnOnce() -> Result<bool, Silence>,
    ) -> Result<Vec<u64>, (Vec<Planned>, Option<Silence>)> {
        self.batch_inputs.add_open(&planned);
        let mut open = lock(&self.open);
        match send() {
            Ok(true) => {}
            Ok(false) => return Err((planned, None)),
            Err(silence) => return Err((planned, Some(silence))),
        }
        let begin = |planned: Planned| {
            let number = planned.number;
            open.insert(number, Arc::new(Mutex::new(Some(Open::new(planned, times, self.process.counts_responses)))));
            number
        };
        let numbers = planned.into_iter().map(begin).collect();
        drop(open);
        if !self.waiting.is_empty() {
            // These requests may have to wait for a thread of the model that waits for another client.
            self.ring();
        }
        Ok(numbers)
    }

    /// Whether the process has more than one request, of clients and of its own.
    pub(crate) fn has_others(&self) -> bool {
        lock(&self.open).len() > 1 || !lock(&self.nested).is_empty()
    }

    /// Whether the process has requests that have not ended.
    pub(crate) fn has_open(&self) -> bool {
        !lock(&self.open).is_empty()
    }

    /// Ends these requests with an error, if they are open.
    pub(crate) fn fail(&self, numbers: &[u64], status: &Status) {
        for number in numbers {
            self.end(*number, |open| open.fail(status.clone()));
        }
    }

    /// Handles what the process sent before it ended, and then ends all open requests with an error.
    pub(crate) fn end_all(self: &Arc<Calls>, status: Status) {
        if self.read_rest() {
            self.fail_all(&status);
        } else {
            // A thread is handling a packet. This may be the current thread. That thread does the rest afterwards.
            self.queue(News::Ended(status));
        }
    }

    /// Handles the packets that an ended process left. Returns false if a packet is being handled.
    fn read_rest(self: &Arc<Calls>) -> bool {
        let _reading = match self.reading.try_lock() {
            Ok(reading) => reading,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if self.channel.has_ended() {
            return true;
        }
        let mut packet = Packet::default();
        // The number is limited because processes that the model started may have the channel too, and continue to
        // send.
        for _ in 0..LAST_PACKETS_MAX {
            if !self.receive(&mut packet).unwrap_or_default() {
                break;
            }
        }
        true
    }

    /// Ends all open requests with an error, because the process has ended.
    fn fail_all(&self, status: &Status) {
        let numbers: Vec<u64> = lock(&self.open).keys().copied().collect();
        self.fail(&numbers, status);
        lock(&self.inputs).clear();
        self.batch_inputs.clear();
        self.cancel_all();
        self.end_readiness();
    }

    /// The loop of the thread, until the process closes the channel.
    fn serve(self: &Arc<Calls>) {
        let mut packet = Packet::default();
        while self.turn(&mut packet).is_ok() {}
        self.process.side.note_ending();
        // Either an earlier packet could not be sent, or there are more packets to read.
        if !self.read_rest() {
            // Another thread reads them, and ends all requests.
            return;
        }
        self.cancel_all();
        self.end_readiness();
        if lock(&self.open).is_empty() {
            return;
        }
        let why = format!("{} while it had this request; it is started anew", how_it_ended(&self.process.os_process));
        let lines = last_lines_of_run(self.process.output.as_ref(), &self.process.side);
        self.fail_all(&Status::internal((self.process.unhealthy)(&why) + &lines));
    }

    fn turn(self: &Arc<Calls>, packet: &mut Packet) -> io::Result<()> {
        let [speaks, rings] = self.wait(self.end_waits())?;
        if rings {
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
            let news = std::mem::take(&mut *lock(&self.news));
            for news in news {
                self.obey(news);
            }
        }
        if speaks {
            let _reading = lock(&self.reading);
            self.receive(packet)?;
        }
        self.send_unsent()
    }

    /// Receives and handles a packet that is there already. Returns whether there was one. The caller holds `reading`.
    fn receive(self: &Arc<Calls>, packet: &mut Packet) -> io::Result<bool> {
        let long;
        let text = match self.channel.try_receive(packet) {
            Ok(Received::Text(text)) => text,
            Ok(Received::Long(text)) => {
                long = text.read()?;
                &long
            }
            Ok(Received::End) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        match CallSaid::read(text) {
            Ok(said) => self.handle(&said),
            Err(error) => self.handle_unreadable(text, &error),
        }
        Ok(true)
    }

    /// Handles a packet that cannot be parsed. If nobody answered it, a thread of the model could wait for ever. A model's code can write to the socket,
    /// so this can happen.
    fn handle_unreadable(&self, text: &[u8], error: &serde_json::Error) {
        if let Some(call) = CallSaid::number_of_unreadable(text) {
            let why = format!("the server cannot read the call: {error}");
            return self.answer(CallFailed { call, why: &why }, Maps::default());
        }
        let os_process = &self.process.os_process;
        if os_process.killed_because().is_none() && !os_process.is_reaped() {
            let why = format!("its process was killed, because it sent a packet that the server cannot read: {error}");
            log::error!("model instance '{}': {why}", self.process.instance);
            os_process.kill(why);
        }
    }

    /// Answers the responses that have waited for their clients for as long as they may. Returns the time until further responses may be due.
    fn end_waits(self: &Arc<Calls>) -> Option<Timespec> {
        if self.waiting.is_empty() {
            return None;
        }
        let (due, next) = self.waiting.take_due(self.has_others(), Instant::now());
        for waited in due {
            self.go_on(waited);
        }
        next.and_then(|next| Timespec::try_from(next).ok())
    }

    /// Waits at most `timeout` for a packet or an event. Returns whether there is a packet, and whether there is an event.
    fn wait(&self, timeout: Option<Timespec>) -> io::Result<[bool; 2]> {
        let is_behind = !lock(&self.unsent).is_empty();
        let flags = if is_behind { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut polled = [PollFd::new(&self.channel, flags), PollFd::new(&self.bell, PollFlags::IN)];
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let speaks = polled[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        Ok([speaks, !polled[1].revents().is_empty()])
    }

    fn obey(self: &Arc<Calls>, news: News) {
        match news {
            News::HasRoom { number, call } => {
                if let Some(waited) = self.waiting.take(number, call, Instant::now()) {
                    self.go_on(waited);
                }
            }
            News::Ended(status) => self.end_all(status),
        }
    }

    fn handle(self: &Arc<Calls>, said: &CallSaid) {
        self.process.shares.disown(said.unmapped());
        self.process.side.release_segments(said.let_go());
        answer::note_copied(said.copied());
        match said.call() {
            Some(Call::Respond(respond)) => self.respond(said, respond),
            Some(Call::OutputMemory { number, name, bytes }) => self.output_memory(said.number(), number, name, bytes),
            Some(Call::Again) => self.again(said.number(), said.again()),
            Some(Call::Space(bytes)) => self.space(said.number(), bytes),
            Some(Call::Infer(call_read)) => self.infer(said.number(), call_read),
            Some(Call::Load { model, config, files }) => self.load(said.number(), model, config, files),
            Some(Call::Unload(model, dependents)) => self.unload(said.number(), model, dependents),
            Some(Call::Config(model, version)) => self.answer_config(said.number(), model, version),
            Some(Call::IsReady(model, version)) => self.answer_ready(said.number(), model, version),
            Some(Call::Readiness(answer)) => self.hear_ready(said.number(), answer),
            None => self.refuse_unknown(said),
        }
        if let Some(call) = said.taken() {
            self.taken(call);
        }
        if let Some(call) = said.cancelled() {
            self.cancel(call);
        }
        if let Some(call) = said.waited_for() {
            self.wait_for(call);
        }
        if let Some(release) = said.release() {
            self.release(release.number, said);
        }
    }

    /// Answers a call of an unknown kind, or with an invalid part. A thread of the model waits for the answer.
    fn refuse_unknown(&self, said: &CallSaid) {
        if let Some(call) = said.answered_as() {
            let why = "the server does not know the call, or a part of it is invalid";
            self.answer(CallFailed { call, why }, Maps::default());
        }
    }

    /// Handles a request that the model has dropped. If it is open, it cannot be ended any more.
    fn release(&self, number: u64, said: &CallSaid) {
        self.end(number, Open::abandon);
        self.process.side.unwatch(number);
        self.batch_inputs.remove(&[number]);
        let block = lock(&self.inputs).remove(&number);
        if let Some(block) = block
            && said.held().any(|segment| segment == block.segment())
        {
            self.process.side.keep(&block);
        }
    }

    /// Queues an event for the thread.
    pub(crate) fn queue(&self, news: News) {
        lock(&self.news).push(news);
        self.ring();
    }

    fn ring(&self) {
        // The write fails only if the counter is full. The thread is being woken then.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Answers a call.
    pub(crate) fn answer(&self, answer: impl Display, maps: Maps) {
        let mut unsent = lock(&self.unsent);
        unsent.push_back((answer.to_string(), maps.descriptors));
        drop(unsent);
        // The thread gets the same error, and then ends.
        let _ = self.send_unsent();
        if !lock(&self.unsent).is_empty() {
            // The thread sends the rest when the process reads.
            self.ring();
        }
    }

    /// Sends waiting packets, as far as the process reads them.
    fn send_unsent(&self) -> io::Result<()> {
        let mut unsent = lock(&self.unsent);
        while let Some((text, descriptors)) = unsent.front() {
            match self.channel.try_send_all(text, descriptors) {
                Ok(()) => drop(unsent.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    unsent.clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The request, if it has not ended.
    pub(crate) fn find(&self, number: u64) -> Option<OpenRequest> {
        lock(&self.open).get(&number).cloned()
    }

    /// Ends a request, if it has not ended. `how` answers it.
    pub(crate) fn end(&self, number: u64, how: impl FnOnce(Open)) {
        let request = lock(&self.open).remove(&number);
        let open = request.and_then(|request| lock(&request).take());
        if let Some(open) = open {
            self.close(number, open, how);
        }
    }

    /// As [`Calls::end`], for a caller that has taken the request already.
    pub(crate) fn close(&self, number: u64, open: Open, how: impl FnOnce(Open)) {
        self.forget(number);
        // The model may still read its inputs. They are kept before the answer, because the model may drop them right after it.
        if let Some(block) = open.inputs_block() {
            lock(&self.inputs).insert(number, block);
        }
        how(open);
    }
}

impl Calls {
    /// Removes a request that is not open any more.
    fn forget(&self, number: u64) {
        lock(&self.open).remove(&number);
        self.waiting.forget(number);
        self.process.side.unwatch(number);
    }
}

impl Caller for Calls {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Starts the thread that reads the calls.
    fn wake(self: Arc<Calls>) {
        if self.channel.has_ended() && lock(&self.open).is_empty() {
            self.process.side.note_ending();
            self.end_readiness();
            return;
        }
        let calls = Arc::clone(&self);
        if let Err(error) = std::thread::Builder::new().name("nerite-calls".to_owned()).spawn(move || calls.serve()) {
            let why = format!("no thread for the calls of its process: {error}; raise the limit on threads");
            let status = Status::unavailable((self.process.unhealthy)(&why));
            log::error!("{status}");
            self.channel.end();
            self.fail_all(&status);
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
