//! What becomes of calls that any thread of a model's process makes, whatever its main thread does?
//!
//! A decoupled model answers its requests from any thread, also after `execute` has returned. Its responses come on a channel of their own,
//! which a thread of its own serves from the first packet on. So a process that never calls costs no thread, and a process that waits
//! for a slow client holds nobody up but itself.

mod control;
mod inputs;
mod nested;
mod open;
mod readiness;

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::Status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::blocks::{Block, Blocks};
use crate::body::Body;
use crate::channel::{Channel, Packet};
use crate::child::{Silence, how_it_ended};
use crate::packets::{Call, CallSaid};
use crate::plan::{Planned, Sizes};
use crate::shares::{Maps, Shares};
use crate::supervisor::{Caller, Side};
use inputs::BatchInputs;
pub use nested::Callees;
use nested::NestedRequests;
use open::Open;
use readiness::ReadinessQuestion;

/// The server's end of the channel for calls, and the requests that are open in the process.
pub(crate) struct Calls {
    channel: Channel,
    bell: OwnedFd,
    pub(crate) process: Process,
    pub(crate) sizes: Sizes,
    /// Decoupled requests that have not ended.
    open: Mutex<HashMap<u64, OpenRequest>>,
    /// Inputs of requests that have ended, until the model lets go of them.
    inputs: Mutex<HashMap<u64, Block>>,
    /// Requests that the process made of other models, and memory that it has for the inputs of more.
    nested: NestedRequests,
    space: Mutex<HashMap<u64, Block>>,
    question: Mutex<ReadinessQuestion>,
    pub(crate) batch_inputs: BatchInputs,
    news: Mutex<Vec<News>>,
    /// What the process did not take at once, in order.
    unsent: Mutex<VecDeque<(String, Vec<OwnedFd>)>>,
}

/// What its calls need of a process.
pub(crate) struct Process {
    /// The instance's name.
    pub(crate) instance: String,
    /// What is said of one that gives no answer, for this reason.
    pub(crate) unhealthy: Box<dyn Fn(&str) -> String + Send + Sync>,
    pub(crate) shares: Arc<Shares>,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) side: Arc<Side>,
    pub(crate) body: Arc<Body>,
    pub(crate) callees: Callees,
}

/// Locked while a response of it is passed on, so that its responses keep their order. `None` once it has ended.
pub(crate) type OpenRequest = Arc<Mutex<Option<Open>>>;

/// What happened elsewhere and is to be told to the process.
pub(crate) enum News {
    /// The client has room for another response to this request, for which this call waits.
    HasRoom { number: u64, call: u64 },
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
            news,
            unsent,
        }))
    }

    /// Gives a batch to the process: by `tell`, after which its responses may come. What it does not take comes back.
    pub(crate) fn begin(
        &self,
        planned: Vec<Planned>,
        times: nerite_backend::Times,
        tell: impl FnOnce() -> Result<(), Silence>,
    ) -> Result<Vec<u64>, (Vec<Planned>, Silence)> {
        self.batch_inputs.add(&planned);
        let mut open = lock(&self.open);
        if let Err(silence) = tell() {
            return Err((planned, silence));
        }
        let begin = |planned: Planned| {
            let number = planned.number;
            open.insert(number, Arc::new(Mutex::new(Some(Open::new(planned, times)))));
            number
        };
        Ok(planned.into_iter().map(begin).collect())
    }

    /// Ends those of the requests that are open with an error.
    pub(crate) fn fail(&self, numbers: &[u64], status: &Status) {
        for number in numbers {
            self.end(*number, |open| open.fail(status.clone()));
        }
    }

    /// Ends all requests that are open with an error: the process is no more.
    pub(crate) fn fail_all(&self, status: &Status) {
        let numbers: Vec<u64> = lock(&self.open).keys().copied().collect();
        self.fail(&numbers, status);
        lock(&self.inputs).clear();
        self.batch_inputs.clear();
        self.cancel_all();
        self.end_readiness();
    }

    /// The thread's life: until the process closes the channel.
    fn serve(self: &Arc<Calls>) {
        let mut packet = Packet::default();
        while self.turn(&mut packet).is_ok() {}
        self.cancel_all();
        self.end_readiness();
        if lock(&self.open).is_empty() {
            return;
        }
        let why =
            format!("{} while it had this request; the next request starts it anew", how_it_ended(&self.process.body));
        self.fail_all(&Status::internal((self.process.unhealthy)(&why)));
    }

    fn turn(self: &Arc<Calls>, packet: &mut Packet) -> io::Result<()> {
        let [speaks, rings] = self.wait()?;
        if rings {
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
            let news = std::mem::take(&mut *lock(&self.news));
            for news in news {
                self.obey(news);
            }
        }
        if speaks {
            let text = self.channel.receive(packet)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            // A model's code can reach the socket: what makes no sense is passed over.
            if let Ok(said) = CallSaid::read(text) {
                self.hear(&said);
            }
        }
        self.send_unsent()
    }

    /// Whether the process speaks, and whether there are news.
    fn wait(&self) -> io::Result<[bool; 2]> {
        let is_behind = !lock(&self.unsent).is_empty();
        let flags = if is_behind { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut polled = [PollFd::new(&self.channel, flags), PollFd::new(&self.bell, PollFlags::IN)];
        match poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let speaks = polled[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        Ok([speaks, !polled[1].revents().is_empty()])
    }

    fn obey(self: &Arc<Calls>, news: News) {
        match news {
            News::HasRoom { number, call } => self.grant(number, call),
        }
    }

    fn hear(self: &Arc<Calls>, said: &CallSaid) {
        self.process.shares.disown(said.unmapped());
        self.process.side.let_go(said.let_go());
        match said.call() {
            Some(Call::Respond(respond)) => self.respond(said, respond),
            Some(Call::Place { number, name, bytes }) => self.place(said.number(), number, name, bytes),
            Some(Call::Again) => self.again(said.number(), said.again()),
            Some(Call::Space(bytes)) => self.space(said.number(), bytes),
            Some(Call::Infer(asked)) => self.infer(said.number(), asked),
            Some(Call::Load { model, config, files }) => self.load(said.number(), model, config, files),
            Some(Call::Unload(model, dependents)) => self.unload(said.number(), model, dependents),
            Some(Call::IsReady(model, version)) => self.tell_ready(said.number(), model, version),
            Some(Call::Readiness(answer)) => self.hear_ready(said.number(), answer),
            None => {}
        }
        if let Some(call) = said.taken() {
            self.taken(call);
        }
        if let Some(call) = said.cancelled() {
            self.cancel(call);
        }
        if let Some(release) = said.release() {
            self.release(release.number, said);
        }
    }

    /// The model has let go of a request. One that it did not end gets no end any more.
    fn release(&self, number: u64, said: &CallSaid) {
        self.end(number, Open::abandon);
        self.batch_inputs.remove(&[number]);
        let block = lock(&self.inputs).remove(&number);
        if let Some(block) = block
            && said.held().any(|segment| segment == block.segment())
        {
            self.process.side.keep(&block);
        }
    }

    /// Tells the thread of something.
    pub(crate) fn tell(&self, news: News) {
        lock(&self.news).push(news);
        self.ring();
    }

    fn ring(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Answers a call.
    pub(crate) fn answer(&self, answer: impl Display, maps: Maps) {
        let mut unsent = lock(&self.unsent);
        unsent.push_back((answer.to_string(), maps.descriptors));
        drop(unsent);
        // An error is met again by the thread, which then ends.
        let _ = self.send_unsent();
        if !lock(&self.unsent).is_empty() {
            // It waits until the process takes it.
            self.ring();
        }
    }

    /// Sends what waits, as far as the process takes it.
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

    /// Ends a request, if it has not ended: `how` answers it.
    pub(crate) fn end(&self, number: u64, how: impl FnOnce(Open)) {
        let request = lock(&self.open).remove(&number);
        let open = request.and_then(|request| lock(&request).take());
        if let Some(open) = open {
            self.close(number, open, how);
        }
    }

    /// The rest of that, for who holds the request already.
    pub(crate) fn close(&self, number: u64, open: Open, how: impl FnOnce(Open)) {
        lock(&self.open).remove(&number);
        self.process.side.unwatch(number);
        // The model may still read its inputs. Kept first: it may let go of them the moment it is answered.
        if let Some(block) = open.inputs_block() {
            lock(&self.inputs).insert(number, block);
        }
        how(open);
    }
}

impl Caller for Calls {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Starts the thread that hears them.
    fn wake(self: Arc<Calls>) {
        if self.channel.has_ended() && lock(&self.open).is_empty() {
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
