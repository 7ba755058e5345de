//! What is the process of one model's instance?

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nerite_backend::MetricOwner;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::body::{Body, Parent};
use crate::channel::{Channel, Packet};
use crate::limits::CLOSED_MAX;
use crate::packets::{FINALIZE, Said};
use crate::supervisor::{Side, Supervisor};

/// A running process. Dropped, it is asked to finalize its model, and killed if it does not.
pub struct Child {
    pub(crate) body: Arc<Body>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) side: Arc<Side>,
    packet: Packet,
    /// Whether it has a model that wants to be finalized.
    has_model: bool,
    patience: Patience,
}

/// The server's end of a side channel.
pub struct SideEnd(Arc<Side>);

impl SideEnd {
    /// This end of a fresh pair, and that of the process.
    pub fn pair() -> io::Result<(SideEnd, OwnedFd)> {
        let (side, theirs) = Side::pair()?;
        Ok((SideEnd(side), theirs))
    }
}

/// How long a process may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// To answer its first command, with a start and a model's load before it.
    pub first: Duration,
    /// To finalize its model.
    pub last: Duration,
}

/// Why a process gives no answer.
#[derive(Debug)]
pub enum Silence {
    /// It never got the question.
    Unasked,
    /// It had no answer in the time it was given.
    TimedOut,
    /// It has closed the channel.
    Closed,
    /// It ended, or said what cannot be read; the text says which.
    Ended(String),
}

impl std::fmt::Display for Silence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Silence::Unasked => "its process ended before it was asked",
            Silence::TimedOut => "its process does not answer",
            Silence::Closed => "its process has closed the channel to the server",
            Silence::Ended(why) => why,
        })
    }
}

impl Child {
    /// Starts `command`, whose standard input becomes its end of the channel, in a process group of its own: a terminal's interrupt is
    /// for the server, which stops its models itself. The first packet that it gets is `greeting`, with the descriptor of its end of the
    /// side channel before the `others`.
    pub fn start(
        supervisor: &Supervisor,
        mut command: Command,
        patience: Patience,
        greeting: &str,
        others: Vec<OwnedFd>,
    ) -> io::Result<Child> {
        let (channel, theirs) = Channel::pair()?;
        let (side, side_theirs) = Side::pair()?;
        command.stdin(Stdio::from(theirs)).process_group(0);
        let body = Arc::new(Body::new(supervisor.spawn(command)?));
        let child =
            Child { body, channel: Arc::new(channel), side, packet: Packet::default(), has_model: false, patience };
        let descriptors: Vec<_> = std::iter::once(side_theirs).chain(others).collect();
        match child.channel.send(greeting, &descriptors) {
            // It has ended already. Who asks it first is told how.
            Err(error) if is_broken(&error) => {}
            sent => sent?,
        }
        supervisor.hear(Arc::clone(&child.side), Some(Arc::clone(&child.body)))?;
        Ok(child)
    }

    /// A process that another one has forked, which has the other ends of these channels: the server speaks to it as to one that it started.
    /// It runs on the cores of the thread that asks for it.
    pub fn adopt(
        supervisor: &Supervisor,
        pid: u32,
        parent: Arc<dyn Parent>,
        (channel, side): (Channel, SideEnd),
        patience: Patience,
    ) -> io::Result<Child> {
        let body = Arc::new(Body::forked(pid, parent)?);
        if let Ok(cores) = sched_getaffinity(None) {
            // Where this fails it runs where the process does that forked it.
            let _ = sched_setaffinity(body.pid(), &cores);
        }
        let (channel, side) = (Arc::new(channel), side.0);
        let child = Child { body, channel, side, packet: Packet::default(), has_model: false, patience };
        supervisor.hear(Arc::clone(&child.side), Some(Arc::clone(&child.body)))?;
        Ok(child)
    }

    /// The same, but for no longer than that. After [`Silence::TimedOut`] nothing more may be asked: the answer may come late.
    pub fn ask_within(&mut self, command: &str, descriptors: &[OwnedFd], at_most: Duration) -> Result<Said, Silence> {
        let patience = |channel: &Channel, how_long| {
            channel.set_patience(how_long).map_err(|error| Silence::Ended(error.to_string()))
        };
        patience(&self.channel, Some(at_most))?;
        let answer = self.ask(command, descriptors);
        patience(&self.channel, None)?;
        answer
    }

    /// If it ends by itself, the log says this.
    pub fn says_when_it_ends(&self, text: String) {
        self.body.says_when_it_ends(text);
    }

    /// Its number; 0 if the system gave it one that cannot be.
    pub fn pid(&self) -> u32 {
        self.body.pid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Whether it has ended, as far as that was noticed.
    pub fn has_ended(&self) -> bool {
        self.body.is_buried()
    }

    /// Lets its model make metrics, which go with it.
    pub fn measure(&self, metrics: MetricOwner) {
        self.side.measure(metrics);
    }

    /// Sends a command and waits for its answer.
    pub fn ask(&mut self, command: &str, descriptors: &[OwnedFd]) -> Result<Said, Silence> {
        self.tell(command, descriptors)?;
        self.answer()
    }

    /// Sends a packet.
    pub(crate) fn tell(&self, packet: impl AsRef<[u8]>, descriptors: &[OwnedFd]) -> Result<(), Silence> {
        self.channel.send(packet, descriptors).map_err(|error| {
            if is_broken(&error) {
                Silence::Unasked
            } else {
                Silence::Ended(format!("the packet could not be sent to it: {error}"))
            }
        })
    }

    /// Waits for a packet. [`Silence::Unasked`] means that the last one was never read.
    pub(crate) fn answer(&mut self) -> Result<Said, Silence> {
        match self.channel.receive(&mut self.packet) {
            Ok(Some(text)) => {
                Said::read(text).map_err(|error| Silence::Ended(format!("its answer cannot be read: {error}")))
            }
            Ok(None) => Err(Silence::Closed),
            // It ended with a packet unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Silence::Unasked),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Silence::TimedOut),
            Err(error) => Err(Silence::Ended(format!("its answer cannot be received: {error}"))),
        }
    }

    /// Waits until there is a packet, or the end; [`Silence::TimedOut`] if there is none in that time.
    pub(crate) fn wait(&self, at_most: Duration) -> Result<(), Silence> {
        match self.channel.wait(at_most) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Silence::TimedOut),
            Err(error) => Err(Silence::Ended(format!("its answer cannot be waited for: {error}"))),
        }
    }

    /// Asks for the first time, when not even the program may have started.
    pub fn first(&mut self, command: &str) -> Result<Said, Silence> {
        self.ask_within(command, &[], self.patience.first).map_err(|silence| match silence {
            Silence::Closed | Silence::Unasked => Silence::Ended(self.end()),
            other => other,
        })
    }

    /// From now on there is a model to finalize.
    pub(crate) fn has_model(&mut self) {
        self.has_model = true;
    }

    /// Ends a process that is of no use any more; tells how it ended, if it did so by itself.
    pub(crate) fn bury(mut self) -> String {
        self.has_model = false;
        self.end()
    }

    fn end(&mut self) -> String {
        how_it_ended(&self.body)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.has_model {
            let _ = self.channel.set_patience(Some(self.patience.last));
            if self.ask(FINALIZE, &[]).is_ok() {
                self.body.ends_within(CLOSED_MAX);
            }
        }
        self.body.bury();
        self.side.let_all_go();
    }
}

/// How the process ended. One that has closed its channel is about to be no more.
pub(crate) fn how_it_ended(body: &Body) -> String {
    let by_itself = body.ends_within(CLOSED_MAX);
    let status = body.bury();
    status.filter(|_| by_itself).map_or_else(|| Silence::Closed.to_string(), how)
}

/// Whether a packet could not be sent because there is nobody at the other end.
fn is_broken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => match signal_name(signal) {
            Some(name) => format!("its process was ended by signal {signal} ({name})"),
            None => format!("its process was ended by signal {signal}"),
        },
        (None, code) => format!("its process ended with code {}", code.unwrap_or_default()),
    }
}

/// The names of signals that end a process by themselves.
fn signal_name(signal: i32) -> Option<&'static str> {
    use rustix::process::Signal;
    let names = [
        (Signal::ILL, "SIGILL"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::TERM, "SIGTERM"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::SYS, "SIGSYS"),
    ];
    names.into_iter().find(|(one, _)| one.as_raw() == signal).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Writing a long greeting takes longer than the process lives, so both orders occur.
    #[test]
    fn a_process_that_ends_before_its_greeting_tells_how_it_ended() {
        let supervisor = Supervisor::start("nerite-test").unwrap();
        let patience = Patience { first: Duration::from_mins(1), last: Duration::from_mins(1) };
        for greeting in ["{}".to_owned(), " ".repeat(16 << 20)] {
            let mut command = Command::new("sh");
            command.args(["-c", "kill -9 $$"]);
            let mut child = Child::start(&supervisor, command, patience, &greeting, Vec::new()).unwrap();
            let silence = child.first(r#"{"do":"nothing"}"#).unwrap_err();
            assert_eq!(silence.to_string(), "its process was ended by signal 9 (SIGKILL)");
        }
    }
}
