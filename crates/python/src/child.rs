//! What is the process of one model's instance?

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_request::Status;
use serde_json::Value;

use crate::body::Body;
use crate::channel::{Channel, Packet, memory_file};
use crate::guard_library;
use crate::interpreter::Interpreter;
use crate::keeper::{Keeper, Side};
use crate::limits::CLOSED_MAX;
use crate::stub;

/// A running process. Dropped, it is asked to finalize its model, and killed if it does not.
pub(crate) struct Child {
    body: Arc<Body>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) side: Arc<Side>,
    packet: Packet,
    /// Whether it has a model that wants to be finalized.
    has_model: bool,
    /// How long it may take to initialize, and to finalize.
    patience: Duration,
}

/// What a process is started with.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// The interpreter.
    pub(crate) interpreter: Arc<Interpreter>,
    /// How long it may take until it answers its first command.
    pub(crate) start_max: Duration,
}

impl Launch {
    /// The reason in the interpreter, if there is one, that a process which began then has gone without an answer.
    pub(crate) fn blame(&self, silence: &Silence, began: Instant) -> Option<Status> {
        // One that took all of its time must not get more.
        let left = self.start_max.saturating_sub(began.elapsed());
        if matches!(silence, Silence::TimedOut) { None } else { self.interpreter.blame(left) }
    }

    /// The system gave no process, or it ended before it could be spoken to.
    pub(crate) fn unstarted(&self, error: io::Error, began: Instant) -> Status {
        let blame = match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.blame(&Silence::Unasked, began),
            _ => None,
        };
        blame.unwrap_or_else(|| self.interpreter.unstarted(error))
    }
}

/// Why a process gives no answer.
#[derive(Debug)]
pub(crate) enum Silence {
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
    /// Starts the interpreter and hands it the stub.
    pub(crate) fn start(keeper: &Keeper, launch: &Launch) -> io::Result<Child> {
        let (channel, theirs) = Channel::pair()?;
        let (side, side_theirs) = Side::pair()?;
        let mut command = launch.interpreter.command();
        command.args(["-u", "-c", &launch.interpreter.text(stub::LAUNCHER)]).stdin(Stdio::from(theirs));
        // A terminal's interrupt is for the server, which stops its models itself.
        command.process_group(0);
        let body = Arc::new(Body::new(keeper.spawn(command)?));
        let mut child = Child {
            body,
            channel: Arc::new(channel),
            side,
            packet: Packet::default(),
            has_model: false,
            patience: launch.start_max,
        };
        child.hand_over(side_theirs)?;
        keeper.hear(Arc::clone(&child.side), Some(Arc::clone(&child.body)))?;
        Ok(child)
    }

    fn hand_over(&mut self, side: OwnedFd) -> io::Result<()> {
        let mut descriptors = vec![side];
        if !guard_library::LIBRARY.is_empty() {
            descriptors.push(memory_file(guard_library::LIBRARY)?);
        }
        self.channel.send(stub::modules(), &descriptors)
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask(&mut self, command: &str, descriptors: &[OwnedFd]) -> Result<Value, Silence> {
        self.tell(command, descriptors)?;
        self.answer()
    }

    /// Sends a packet.
    pub(crate) fn tell(&mut self, packet: &str, descriptors: &[OwnedFd]) -> Result<(), Silence> {
        self.channel.send(packet, descriptors).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Silence::Unasked,
            _ => Silence::Ended(format!("the packet could not be sent to it: {error}")),
        })
    }

    /// Waits for a packet. [`Silence::Unasked`] means that the last one was never read.
    pub(crate) fn answer(&mut self) -> Result<Value, Silence> {
        match self.channel.receive(&mut self.packet) {
            Ok(Some(text)) => serde_json::from_slice(text)
                .map_err(|error| Silence::Ended(format!("its answer cannot be read: {error}"))),
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

    /// Asks for the first time, when not even the interpreter may have started.
    pub(crate) fn first(&mut self, command: &str, launch: &Launch) -> Result<Value, Silence> {
        let patience = |channel: &Channel, how_long| {
            channel.set_patience(how_long).map_err(|error| Silence::Ended(error.to_string()))
        };
        patience(&self.channel, Some(launch.start_max))?;
        let answer = self.ask(command, &[]);
        patience(&self.channel, None)?;
        answer.map_err(|silence| match silence {
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

    /// How the process ended. One that has closed its channel is about to be no more.
    fn end(&mut self) -> String {
        let by_itself = self.body.ends_within(CLOSED_MAX);
        let status = self.body.bury();
        status.filter(|_| by_itself).map_or_else(|| Silence::Closed.to_string(), how)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.has_model {
            let _ = self.channel.set_patience(Some(self.patience));
            if self.ask(r#"{"do":"finalize"}"#, &[]).is_ok() {
                self.body.ends_within(CLOSED_MAX);
            }
        }
        self.body.bury();
        self.side.let_all_go();
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("its process was ended by signal {signal}"),
        (None, code) => format!("its process ended with code {}", code.unwrap_or_default()),
    }
}
