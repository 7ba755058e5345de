//! Who starts the processes of models, and who hears what they say besides their answers?
//!
//! One thread for all of them. Processes die with the thread that started them (`PR_SET_PDEATHSIG` means the thread), so it is one that
//! lives as long as the server; and it is the one place where log lines and questions of any thread of any process arrive.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child as Process, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::MetricOwner;
use nerite_locks::Mutex;
use nerite_memory::Buffer;
use nerite_request::Cancel;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::blocks::Block;
use crate::body::Body;
use crate::channel::{Channel, Packet};
use crate::measured::measured;
use crate::packets::{Cancelled, Gone, LetGo, Log, SideSaid};
use crate::spawn::spawn;

/// The thread, as others see it.
#[derive(Clone)]
pub struct Supervisor {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
}

enum Order {
    Start { command: Box<Command>, cores: Option<CpuSet>, started: SyncSender<io::Result<Process>> },
    Hear(Kept),
}

/// The server's end of a channel for calls, until the first of them.
pub(crate) trait Caller: Send + Sync {
    /// Where they come.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// The process calls, or has ended. Said once.
    fn wake(self: Arc<Self>);
}

/// What is kept of a process: its words, until it has none any more, and its end.
struct Kept {
    side: Option<Arc<Side>>,
    body: Option<(Arc<Body>, OwnedFd)>,
    /// Its calls, until the first of them, which starts a thread that hears them.
    calls: Option<Arc<dyn Caller>>,
}

/// Where any thread of one process speaks to the server.
pub(crate) struct Side {
    channel: Channel,
    /// Flags of the requests that the process has, by their numbers.
    cancels: Mutex<HashMap<u64, Cancel>>,
    /// Memory that the model keeps arrays on, by its number: nobody else's until it has let go.
    kept: Mutex<HashMap<u64, Buffer>>,
    /// The metrics that the model made, where it may make some.
    metrics: Mutex<Option<MetricOwner>>,
    /// Whether the process listens: it is told when a client has gone.
    tells_gone: AtomicBool,
}

impl Side {
    /// This end of a fresh pair, and that of the process.
    pub(crate) fn pair() -> io::Result<(Arc<Side>, OwnedFd)> {
        let (channel, theirs) = Channel::pair()?;
        Ok((
            Arc::new(Side {
                channel,
                cancels: Mutex::default(),
                kept: Mutex::default(),
                metrics: Mutex::default(),
                tells_gone: AtomicBool::new(false),
            }),
            theirs,
        ))
    }

    /// The requests that the process may ask about now.
    pub(crate) fn watch(self: &Arc<Self>, cancels: impl Iterator<Item = (u64, Cancel)>) {
        for (number, cancel) in cancels {
            self.cancels().insert(number, cancel.clone());
            if self.tells_gone.load(Ordering::Relaxed) {
                let side = Arc::downgrade(self);
                let told = move || side.upgrade().iter().for_each(|side| side.has_gone(number));
                if !cancel.on_cancelled(told) {
                    self.has_gone(number);
                }
            }
        }
    }

    /// From now on the process is told of clients that go.
    pub(crate) fn tell_gone(&self) {
        self.tells_gone.store(true, Ordering::Relaxed);
    }

    /// The client of a request has gone. A process that does not listen is not waited for.
    fn has_gone(&self, number: u64) {
        let has_it = self.cancels().contains_key(&number);
        if has_it {
            self.reply(&Gone(number));
        }
    }

    /// It has none of them any more.
    pub(crate) fn unwatch_all(&self) {
        self.cancels().clear();
    }

    /// It has this one no more.
    pub(crate) fn unwatch(&self, number: u64) {
        self.cancels().remove(&number);
    }

    /// The model keeps arrays on this memory.
    pub(crate) fn keep(&self, block: &Block) {
        self.keep_buffer(block.segment(), block.buffer());
    }

    /// The same of memory by its number.
    pub(crate) fn keep_buffer(&self, segment: u64, buffer: Buffer) {
        self.kept().insert(segment, buffer);
    }

    /// What is kept of that memory.
    pub(crate) fn kept_buffer(&self, segment: u64) -> Option<Buffer> {
        self.kept().get(&segment).cloned()
    }

    /// It keeps none on these any more. Returns those that were kept.
    pub(crate) fn let_go(&self, segments: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut kept = self.kept();
        segments.filter(|segment| kept.remove(segment).is_some()).collect()
    }

    /// From now on the model may make metrics.
    pub(crate) fn measure(&self, metrics: MetricOwner) {
        *self.metrics() = Some(metrics);
    }

    /// The process is no more.
    pub(crate) fn let_all_go(&self) {
        self.kept().clear();
        self.unmeasure();
    }

    /// The model has no metrics any more.
    fn unmeasure(&self) {
        let metrics = self.metrics().take();
        drop(metrics);
    }

    fn metrics(&self) -> MutexGuard<'_, Option<MetricOwner>> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<u64, Buffer>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancels(&self) -> MutexGuard<'_, HashMap<u64, Cancel>> {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one packet. An error means that there will be no more.
    fn hear(&self, packet: &mut Packet) -> io::Result<()> {
        let text = self.channel.receive(packet)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        // A model's code can reach the socket: what makes no sense is passed over.
        let Ok(said) = SideSaid::read(text) else { return Ok(()) };
        if let Some(line) = said.log() {
            note(line);
        }
        if let Some(number) = said.cancelled() {
            let is = self.cancels().get(&number).is_some_and(Cancel::is_cancelled);
            self.reply(&Cancelled(is));
        }
        if let Some(segments) = said.let_go() {
            self.reply(&LetGo(&self.let_go(segments)));
        }
        if let Some(question) = said.metric() {
            self.reply(&measured(self.metrics().as_mut(), question));
        }
        if let (Some(families), Some(metrics)) = (said.unmeasured(), self.metrics().as_mut()) {
            families.for_each(|family| metrics.drop_family(family));
        }
        Ok(())
    }

    /// A process that asks and does not listen for the answer must not keep the others waiting.
    fn reply(&self, answer: &dyn Display) {
        let _ = self.channel.try_send(&answer.to_string());
    }
}

/// Logs a line of a model's, with the place in the model's code that wrote it, where there is one.
fn note(line: Log<'_>) {
    let Log { level, text, at } = line;
    let level = match level {
        "ERROR" => log::Level::Error,
        "WARNING" => log::Level::Warn,
        "VERBOSE" => log::Level::Debug,
        _ => log::Level::Info,
    };
    let (file, line) = if at.0.is_empty() { (file!(), line!()) } else { at };
    let logger = log::logger();
    let arguments = format_args!("{text}");
    let record = log::Record::builder()
        .level(level)
        .target(module_path!())
        .file(Some(file))
        .line(Some(line))
        .args(arguments)
        .build();
    if logger.enabled(record.metadata()) {
        logger.log(&record);
    }
}

impl Supervisor {
    /// Starts the thread, under this name.
    pub fn start(name: &str) -> io::Result<Supervisor> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, ordered) = channel();
        let heard = Arc::clone(&bell);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || keep(&ordered, &heard))?;
        Ok(Supervisor { orders, bell })
    }

    /// Starts a process, which lives no longer than the server. It runs on the cores of the thread that asks for it.
    pub(crate) fn spawn(&self, command: Command) -> io::Result<Process> {
        let (started, process) = sync_channel(1);
        self.order(Order::Start { command: Box::new(command), cores: sched_getaffinity(None).ok(), started })?;
        process.recv().map_err(|_| gone())?
    }

    /// Has a process's words heard, and the process buried when it has ended, whether or not somebody wants to use it then.
    pub(crate) fn hear(&self, side: Arc<Side>, body: Option<Arc<Body>>) -> io::Result<()> {
        // Where the end cannot be watched, who uses the process next will find out.
        let body = body.and_then(|body| body.watch().ok().map(|end| (body, end)));
        self.order(Order::Hear(Kept { side: Some(side), body, calls: None }))
    }

    /// Has a process's calls heard, from the first one on.
    pub(crate) fn hear_calls(&self, calls: Arc<dyn Caller>) -> io::Result<()> {
        self.order(Order::Hear(Kept { side: None, body: None, calls: Some(calls) }))
    }

    fn order(&self, order: Order) -> io::Result<()> {
        self.orders.send(order).map_err(|_| gone())?;
        self.ring();
        Ok(())
    }

    fn ring(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for Supervisor {
    /// The thread finds out whether this was the last.
    fn drop(&mut self) {
        drop(std::mem::replace(&mut self.orders, channel().0));
        self.ring();
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that keeps the processes of models has ended")
}

/// The thread's life: until nobody can give orders and no process is left.
fn keep(ordered: &Receiver<Order>, bell: &OwnedFd) {
    let (mut all, mut packet) = (Vec::<Kept>::new(), Packet::default());
    let mut open = true;
    while open || !all.is_empty() {
        let (rings, ready) = wait(bell, &all);
        for (kept, ready) in all.iter_mut().zip(ready) {
            kept.attend(ready, &mut packet);
        }
        all.retain(|kept| kept.side.is_some() || kept.body.is_some() || kept.calls.is_some());
        if rings {
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
            open = obey(ordered, &mut all);
        }
    }
}

/// Who has something: whether the bell rings, and of each process whether it speaks, has ended, or calls.
fn wait(bell: &OwnedFd, all: &[Kept]) -> (bool, Vec<[bool; 3]>) {
    let each: Vec<[Option<BorrowedFd<'_>>; 3]> = all.iter().map(Kept::descriptors).collect();
    let polled = std::iter::once(bell.as_fd()).chain(each.iter().flatten().flatten().copied());
    let mut polled: Vec<_> = polled.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    // Interrupted: nobody has anything, and it is waited again.
    let _ = poll(&mut polled, None);
    let mut ready = polled.iter().map(|one| !one.revents().is_empty());
    let rings = ready.next().unwrap_or(false);
    let mut of = |descriptor: &Option<BorrowedFd<'_>>| descriptor.is_some() && ready.next().unwrap_or(false);
    (rings, each.iter().map(|[side, end, calls]| [of(side), of(end), of(calls)]).collect())
}

impl Kept {
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 3] {
        let side = self.side.as_ref().map(|side| side.channel.as_fd());
        let calls = self.calls.as_ref().map(|calls| calls.descriptor());
        [side, self.body.as_ref().map(|(_, end)| end.as_fd()), calls]
    }

    /// Hears what it says. When it has ended, the last words come first.
    fn attend(&mut self, [speaks, ended, calls]: [bool; 3], packet: &mut Packet) {
        if let Some(calls) = self.calls.take_if(|_| calls) {
            calls.wake();
        }
        if speaks && self.side.as_ref().is_some_and(|side| side.hear(packet).is_err()) {
            self.side.take().iter().for_each(|side| side.unmeasure());
        }
        if ended
            && !speaks
            && let Some((body, _)) = self.body.take()
        {
            body.bury_ended();
        }
    }
}

/// Carries out what was ordered. `false` once nobody can order any more.
fn obey(ordered: &Receiver<Order>, all: &mut Vec<Kept>) -> bool {
    use std::sync::mpsc::TryRecvError;
    loop {
        match ordered.try_recv() {
            Ok(Order::Start { mut command, cores, started }) => {
                drop(started.send(on_cores(cores.as_ref(), || spawn(&mut command))));
            }
            Ok(Order::Hear(kept)) => all.push(kept),
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => return false,
        }
    }
}

/// Does `work` on these cores: what it starts begins there.
fn on_cores<T>(cores: Option<&CpuSet>, work: impl FnOnce() -> T) -> T {
    let own = sched_getaffinity(None).ok();
    let moved = own.as_ref().zip(cores).filter(|(own, cores)| own != cores);
    // Where this fails the process runs where the server does.
    let moved = moved.filter(|(_, cores)| sched_setaffinity(None, cores).is_ok());
    let done = work();
    if let Some((own, _)) = moved {
        let _ = sched_setaffinity(None, own);
    }
    done
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_process_is_started_and_its_questions_are_answered() {
        let supervisor = Supervisor::start("nerite-test").unwrap();
        let mut command = Command::new("true");
        command.env_clear();
        assert!(supervisor.spawn(command).unwrap().wait().unwrap().success());
        assert!(supervisor.spawn(Command::new("/nonexistent/program")).is_err());

        let (side, theirs) = Side::pair().unwrap();
        let theirs = Channel::from(theirs);
        let (yes, no) = (Cancel::new(), Cancel::new());
        yes.cancel();
        side.watch([(1, yes), (2, no)].into_iter());
        supervisor.hear(Arc::clone(&side), None).unwrap();
        let mut got = Packet::default();
        for (number, expect) in [(1, true), (2, false), (3, false)] {
            theirs.send("nonsense", &[]).unwrap();
            theirs.send(format!(r#"{{"cancelled":{number}}}"#), &[]).unwrap();
            let text = theirs.receive(&mut got).unwrap().unwrap();
            assert_eq!(text, format!(r#"{{"cancelled":{expect}}}"#).as_bytes());
        }
        side.unwatch(1);
        theirs.send(r#"{"cancelled":1}"#, &[]).unwrap();
        assert_eq!(theirs.receive(&mut got).unwrap(), Some(&br#"{"cancelled":false}"#[..]));
    }

    #[test]
    fn a_process_that_listens_is_told_who_has_gone() {
        let (side, theirs) = Side::pair().unwrap();
        let (theirs, mut got) = (Channel::from(theirs), Packet::default());
        let (before, silent, after, done) = (Cancel::new(), Cancel::new(), Cancel::new(), Cancel::new());
        side.watch([(1, silent.clone())].into_iter());
        side.tell_gone();
        before.cancel();
        side.watch([(2, before), (3, after.clone()), (4, done.clone())].into_iter());
        side.unwatch(4);
        [silent, done, after].iter().for_each(Cancel::cancel);
        for expect in [2, 3] {
            let text = theirs.receive(&mut got).unwrap().unwrap();
            assert_eq!(String::from_utf8_lossy(text), format!(r#"{{"gone":{expect}}}"#));
        }
        assert!(!theirs.wait(std::time::Duration::ZERO).unwrap_or(false), "nobody else was asked for");
    }

    #[test]
    fn memory_that_an_idle_model_lets_go_of_is_free_again() {
        let account = nerite_shm::Pools::new(nerite_shm::LeaseLimits::default());
        let blocks = crate::blocks::Blocks::new(&account);
        let (supervisor, (side, theirs)) = (Supervisor::start("nerite-test").unwrap(), Side::pair().unwrap());
        let (theirs, mut got) = (Channel::from(theirs), Packet::default());
        supervisor.hear(Arc::clone(&side), None).unwrap();
        let block = blocks.take(100).unwrap();
        let number = block.segment();
        side.keep(&block);
        drop(block);
        assert_ne!(blocks.take(100).unwrap().segment(), number);
        for expect in [format!("[{number}]"), "[]".to_owned()] {
            theirs.send(format!(r#"{{"let_go":[{},{number}]}}"#, number + 1000), &[]).unwrap();
            let text = theirs.receive(&mut got).unwrap().unwrap();
            assert_eq!(String::from_utf8_lossy(text), format!(r#"{{"let_go":{expect}}}"#));
        }
        let again: Vec<_> = (0..2).map(|_| blocks.take(100).unwrap()).collect();
        assert!(again.iter().any(|block| block.segment() == number));
    }

    #[test]
    fn the_thread_ends_with_its_last_keeper_and_the_last_process() {
        let supervisor = Supervisor::start("nerite-test").unwrap();
        let (side, theirs) = Side::pair().unwrap();
        let watch = Arc::downgrade(&side);
        supervisor.clone().hear(side, None).unwrap();
        drop(supervisor);
        drop(theirs);
        while watch.upgrade().is_some() {
            std::thread::yield_now();
        }
    }
}
