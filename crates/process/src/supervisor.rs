//! How are the processes of models started, and how are their log lines and questions read?
//!
//! One thread does this for all processes. A process dies with the thread that started it (`PR_SET_PDEATHSIG` refers to the thread), so this thread
//! lives as long as the server. It also reads the side channels, for log lines and questions from any thread of any process.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child as Process, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use nerite_backend::{Meter, MetricOwner};
use nerite_locks::Mutex;
use nerite_memory::Buffer;
use nerite_request::Cancel;
use nerite_request::report::MemoryUsage;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::blocks::Block;
use crate::channel::{Channel, Packet, Received};
use crate::limits::{LOGGED_LOOK_EVERY, OUTPUT_READ_MAX, SIDE_BYTES_MAX};
use crate::logged::LoggedLines;
use crate::measured::measured;
use crate::os_process::OsProcess;
use crate::packets::{Cancelled, Gone, LetGo, Log, Responded, SideSaid};
use crate::placement::Placement;
use crate::spawn::spawn;

/// A handle of the thread.
#[derive(Clone)]
pub struct Supervisor {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
}

enum Order {
    Start { command: Box<Command>, placement: Box<Placement>, started: SyncSender<io::Result<Process>> },
    Watch(Kept),
}

/// The server's end of a channel for calls, until the first call.
pub(crate) trait Caller: Send + Sync {
    /// The socket of the channel.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Called once, when the process makes a call or has ended.
    fn wake(self: Arc<Self>);
}

/// The parts of a process that the thread watches: its side channel until it is closed, and its end.
struct Kept {
    side: Option<Arc<Side>>,
    os_process: Option<(Arc<OsProcess>, OwnedFd)>,
    /// Its calls, until the first one, which starts a thread that reads them.
    calls: Option<Arc<dyn Caller>>,
}

/// The side channel of one process, which any of its threads uses.
pub(crate) struct Side {
    channel: Channel,
    /// The cancel flags of the process's requests, by their numbers.
    cancels: Mutex<HashMap<u64, Cancel>>,
    /// Memory that the model's arrays use, by its number. It is not reused before the model has dropped them.
    kept: Mutex<HashMap<u64, Buffer>>,
    /// The metrics that the model made. `None` if it may make none.
    metrics: Mutex<Option<MetricOwner>>,
    /// Records the responses that the process reports. `None` if it may report none.
    meter: Mutex<Option<Arc<dyn Meter>>>,
    /// The memory that it has, as it reported last.
    memory: Mutex<Vec<MemoryUsage>>,
    /// Whether the process reads this channel, and learns from it that a client has gone.
    reports_gone: AtomicBool,
    /// Whether it is known that the process is ending.
    is_ending: AtomicBool,
    /// The last lines that it wrote to the log.
    logged: Mutex<LoggedLines>,
}

impl Side {
    /// A new pair: the server's end, and that of the process.
    pub(crate) fn pair() -> io::Result<(Arc<Side>, OwnedFd)> {
        let (channel, theirs) = Channel::pair()?;
        Ok((
            Arc::new(Side {
                channel,
                cancels: Mutex::default(),
                kept: Mutex::default(),
                metrics: Mutex::default(),
                meter: Mutex::default(),
                memory: Mutex::default(),
                reports_gone: AtomicBool::new(false),
                is_ending: AtomicBool::new(false),
                logged: Mutex::default(),
            }),
            theirs,
        ))
    }

    /// Adds requests that the process may ask about.
    pub(crate) fn watch(self: &Arc<Self>, cancels: impl Iterator<Item = (u64, Cancel)>) {
        for (number, cancel) in cancels {
            self.cancels().insert(number, cancel.clone());
            if self.reports_gone.load(Ordering::Relaxed) {
                let side = Arc::downgrade(self);
                let notify = move || side.upgrade().iter().for_each(|side| side.has_gone(number));
                if !cancel.on_cancelled(notify) {
                    self.has_gone(number);
                }
            }
        }
    }

    /// From now on, tells the process when clients have gone.
    pub(crate) fn report_gone(&self) {
        self.reports_gone.store(true, Ordering::Relaxed);
    }

    /// Tells the process that the client of a request has gone. It does not wait for a process that does not read.
    fn has_gone(&self, number: u64) {
        let has_it = self.cancels().contains_key(&number);
        if has_it {
            self.reply(&Gone(number));
        }
    }

    /// Removes all requests.
    pub(crate) fn unwatch_all(&self) {
        self.cancels().clear();
    }

    /// Removes this request.
    pub(crate) fn unwatch(&self, number: u64) {
        self.cancels().remove(&number);
    }

    /// From now on, answers the process that this request is cancelled.
    pub(crate) fn give_up(self: &Arc<Self>, number: u64) {
        let gone = Cancel::new();
        gone.cancel();
        self.watch(std::iter::once((number, gone)));
    }

    /// Keeps this memory, because the model's arrays use it.
    pub(crate) fn keep(&self, block: &Block) {
        self.keep_buffer(block.segment(), block.buffer());
    }

    /// Keeps the memory with this number.
    pub(crate) fn keep_buffer(&self, segment: u64, buffer: Buffer) {
        self.kept().insert(segment, buffer);
    }

    /// The kept memory with this number.
    pub(crate) fn kept_buffer(&self, segment: u64) -> Option<Buffer> {
        self.kept().get(&segment).cloned()
    }

    /// Releases these segments, because the model's arrays do not use them any more. Returns those that were kept.
    pub(crate) fn release_segments(&self, segments: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut kept = self.kept();
        segments.filter(|segment| kept.remove(segment).is_some()).collect()
    }

    /// Allows the model to make metrics.
    pub(crate) fn measure(&self, metrics: MetricOwner) {
        *self.metrics() = Some(metrics);
    }

    /// Reports the responses of the process to this meter.
    pub(crate) fn report_to(&self, meter: &Arc<dyn Meter>) {
        *self.meter.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(meter));
    }

    /// The memory that the process has, as it reported last.
    pub(crate) fn memory(&self) -> Vec<MemoryUsage> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that the process has closed one of its channels. It gets no further requests: the kernel closes the channels of a process that was killed
    /// one after another, so the one for requests may still be open.
    pub(crate) fn note_ending(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Whether it is known that the process is ending.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// The lines that the process has written to the log in the run with this number, or all lines. Waits for those that were sent and not read yet, for a
    /// limited time.
    pub(crate) fn logged_lines(&self, run: Option<u64>) -> String {
        let until = Instant::now() + OUTPUT_READ_MAX;
        loop {
            let logged = self.logged();
            // The lock is held, so each packet is either unread in the channel or counted in these lines.
            let is_all = logged.is_over || self.channel.unread_bytes() == 0;
            if is_all || Instant::now() > until {
                return logged.text(run);
            }
            drop(logged);
            std::thread::park_timeout(LOGGED_LOOK_EVERY);
        }
    }

    fn logged(&self) -> MutexGuard<'_, LoggedLines> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases everything, because the process has ended.
    pub(crate) fn release_all(&self) {
        self.kept().clear();
        self.unmeasure();
    }

    /// Removes the model's metrics.
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

    /// Reads and handles one packet. An error means that no more packets will come.
    fn receive(&self, packet: &mut Packet) -> io::Result<()> {
        let long;
        let mut logged = self.logged();
        let text = match self.channel.try_receive(packet) {
            Ok(Received::End) => {
                logged.is_over = true;
                self.note_ending();
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(Received::Text(text)) => text,
            Ok(Received::Long(text)) => {
                // This thread reads for all processes.
                let Some(text) = text.read_up_to(SIDE_BYTES_MAX)? else { return Ok(()) };
                long = text;
                &long
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        // A model's code can write to the socket, so invalid packets are ignored.
        let Ok(said) = SideSaid::read(text) else { return Ok(()) };
        if let Some(line) = said.log() {
            logged.add(said.log_of(), line.text);
        }
        // Writing to the log may block this thread.
        drop(logged);
        if let Some(line) = said.log() {
            note(line);
        }
        if let Some(number) = said.cancelled() {
            let is = self.cancels().get(&number).is_some_and(Cancel::is_cancelled);
            self.reply(&Cancelled(is));
        }
        if let Some(segments) = said.let_go() {
            self.reply(&LetGo(&self.release_segments(segments)));
        }
        if let Some(question) = said.metric() {
            self.reply(&measured(self.metrics().as_mut(), question));
        }
        if let (Some(families), Some(metrics)) = (said.unmeasured(), self.metrics().as_mut()) {
            families.for_each(|family| metrics.drop_family(family));
        }
        if let Some(Responded(index, durations)) = said.responded() {
            let meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(meter) = meter {
                meter.response(index, &durations);
            }
        }
        if let Some(memory) = said.memory() {
            *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
        }
        Ok(())
    }

    /// Sends an answer without blocking, because a process that does not read its answers must not delay others.
    fn reply(&self, answer: &dyn Display) {
        let _ = self.channel.try_send(&answer.to_string());
    }
}

/// Logs a line of a model, with the line of the model's code, if it is known.
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

    /// Starts a process, which lives no longer than the server. It runs on the cores of the calling thread, and prefers memory as that one does.
    pub(crate) fn spawn(&self, command: Command) -> io::Result<Process> {
        let (started, process) = sync_channel(1);
        let placement = Box::new(Placement::of_thread());
        self.order(Order::Start { command: Box::new(command), placement, started })?;
        process.recv().map_err(|_| gone())?
    }

    /// Watches a process: its side channel is read, and it is reaped when it has ended, even if no request uses it
    /// then.
    pub(crate) fn watch(&self, side: Arc<Side>, os_process: Option<Arc<OsProcess>>) -> io::Result<()> {
        // If the end of the process cannot be watched, the next request notices it.
        let os_process = os_process.and_then(|os_process| os_process.watch().ok().map(|end| (os_process, end)));
        self.order(Order::Watch(Kept { side: Some(side), os_process, calls: None }))
    }

    /// Reads a process's calls, from the first one on.
    pub(crate) fn hear_calls(&self, calls: Arc<dyn Caller>) -> io::Result<()> {
        self.order(Order::Watch(Kept { side: None, os_process: None, calls: Some(calls) }))
    }

    fn order(&self, order: Order) -> io::Result<()> {
        self.orders.send(order).map_err(|_| gone())?;
        self.ring();
        Ok(())
    }

    fn ring(&self) {
        // The write fails only if the counter is full. The thread is being woken then.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for Supervisor {
    /// Wakes the thread, which checks whether this was the last handle.
    fn drop(&mut self) {
        drop(std::mem::replace(&mut self.orders, channel().0));
        self.ring();
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that keeps the processes of models has ended")
}

/// The loop of the thread, until all handles are dropped and no process is left.
fn keep(ordered: &Receiver<Order>, bell: &OwnedFd) {
    let (mut all, mut packet) = (Vec::<Kept>::new(), Packet::default());
    let mut open = true;
    while open || !all.is_empty() {
        let (rings, ready) = wait(bell, &all);
        for (kept, ready) in all.iter_mut().zip(ready) {
            kept.attend(ready, &mut packet);
        }
        all.retain(|kept| kept.side.is_some() || kept.os_process.is_some() || kept.calls.is_some());
        if rings {
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
            open = obey(ordered, &mut all);
        }
    }
}

/// Waits for events. Returns whether there are orders, and for each process whether it has a packet, has ended, or makes a call.
fn wait(bell: &OwnedFd, all: &[Kept]) -> (bool, Vec<[bool; 3]>) {
    let each: Vec<[Option<BorrowedFd<'_>>; 3]> = all.iter().map(Kept::descriptors).collect();
    let polled = std::iter::once(bell.as_fd()).chain(each.iter().flatten().flatten().copied());
    let mut polled: Vec<_> = polled.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    // If it was interrupted, no event is reported, and it waits again.
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
        [side, self.os_process.as_ref().map(|(_, end)| end.as_fd()), calls]
    }

    /// Reads its packets. When it has ended, the remaining packets are read before it is reaped. The end is noted before the model's metrics are
    /// removed: a client that no longer sees them may send a request at once, and it must not go to this process.
    fn attend(&mut self, [speaks, ended, calls]: [bool; 3], packet: &mut Packet) {
        if let Some(calls) = self.calls.take_if(|_| calls) {
            calls.wake();
        }
        if speaks && self.side.as_ref().is_some_and(|side| side.receive(packet).is_err()) {
            self.side.take().iter().for_each(|side| side.unmeasure());
        }
        if ended
            && !speaks
            && let Some((os_process, _)) = self.os_process.take()
        {
            os_process.reap_ended();
        }
    }
}

/// Carries out the orders. `false` once all handles are dropped.
fn obey(ordered: &Receiver<Order>, all: &mut Vec<Kept>) -> bool {
    use std::sync::mpsc::TryRecvError;
    loop {
        match ordered.try_recv() {
            Ok(Order::Start { mut command, placement, started }) => {
                drop(started.send(placement.within(|| spawn(&mut command))));
            }
            Ok(Order::Watch(kept)) => all.push(kept),
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => return false,
        }
    }
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
        supervisor.watch(Arc::clone(&side), None).unwrap();
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
        side.give_up(2);
        theirs.send(r#"{"cancelled":2}"#, &[]).unwrap();
        assert_eq!(theirs.receive(&mut got).unwrap(), Some(&br#"{"cancelled":true}"#[..]));
    }

    #[test]
    fn a_line_that_takes_long_to_read_is_left_out() {
        let (side, theirs) = Side::pair().unwrap();
        let (theirs, mut packet) = (Channel::from(theirs), Packet::default());
        let line = |bytes: usize| format!(r#"{{"cancelled":7,"more":"{}"}}"#, "x".repeat(bytes));
        for (bytes, is_heard) in [(SIDE_BYTES_MAX, false), (SIDE_BYTES_MAX / 2, true)] {
            theirs.send(line(bytes), &[]).unwrap();
            side.receive(&mut packet).unwrap();
            assert_eq!(theirs.wait(std::time::Duration::ZERO).unwrap(), is_heard);
        }
        side.receive(&mut packet).unwrap();
    }

    #[test]
    fn a_process_that_reads_is_notified_which_clients_have_gone() {
        let (side, theirs) = Side::pair().unwrap();
        let (theirs, mut got) = (Channel::from(theirs), Packet::default());
        let (before, silent, after, done) = (Cancel::new(), Cancel::new(), Cancel::new(), Cancel::new());
        side.watch([(1, silent.clone())].into_iter());
        side.report_gone();
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
        supervisor.watch(Arc::clone(&side), None).unwrap();
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
    fn the_thread_ends_with_its_last_handle_and_the_last_process() {
        let supervisor = Supervisor::start("nerite-test").unwrap();
        let (side, theirs) = Side::pair().unwrap();
        let watch = Arc::downgrade(&side);
        supervisor.clone().watch(side, None).unwrap();
        drop(supervisor);
        drop(theirs);
        while watch.upgrade().is_some() {
            std::thread::yield_now();
        }
    }
}
