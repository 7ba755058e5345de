//! How is the process of a Python model's instance started?

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_process::{Channel, Child, PrintedPipes, ProcessName, ProcessTimeouts, Silence, Supervisor, memory_file};
use nerite_request::Status;

use crate::guard_library;
use crate::interpreter::Interpreter;
use crate::limits::ANSWER_MAX;
use crate::stub;

/// The interpreter and the time limit of a process.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// The interpreter.
    pub(crate) interpreter: Arc<Interpreter>,
    /// The time limit of each phase of its load and its end. `None` has no limit.
    pub(crate) phase_max: Option<Duration>,
    /// The time limit of `execute`.
    pub(crate) execute_max: Option<Duration>,
}

impl Launch {
    /// Starts the interpreter with the stub. Also returns the server's end of its channel for calls.
    pub(crate) fn start(&self, supervisor: &Supervisor, name: &ProcessName) -> io::Result<(Child, Channel)> {
        let mut command = self.interpreter.command();
        command.args(["-u", "-c", &self.interpreter.text(stub::LAUNCHER)]);
        let (calls, calls_theirs) = Channel::pair()?;
        let printed = PrintedPipes::quoting_both(name)?;
        command.stdout(printed.output).stderr(printed.error);
        let mut others = vec![calls_theirs];
        if !guard_library::LIBRARY.is_empty() {
            others.push(memory_file(guard_library::LIBRARY)?);
        }
        let child = Child::start(supervisor, command, self.timeouts(), stub::modules(), others)?;
        child.log_start(name);
        Ok((child.with_output(printed.quoted), calls))
    }

    /// The same launch without time limits, for a process that is debugged.
    pub(crate) fn debugged(self) -> Launch {
        Launch { phase_max: None, execute_max: None, ..self }
    }

    /// The time limits of its answers.
    pub(crate) fn timeouts(&self) -> ProcessTimeouts {
        ProcessTimeouts { first: self.phase_max, last: self.phase_max }
    }

    /// Why a process that was started at `began` did not answer, if the interpreter is the cause.
    pub(crate) fn blame(&self, silence: &Silence, began: Instant) -> Option<Status> {
        // A process that has used all its time must not get more.
        let left = self.phase_max.map_or(ANSWER_MAX, |at_most| at_most.saturating_sub(began.elapsed()));
        match silence {
            Silence::TimedOut | Silence::Killed(_) => None,
            Silence::NotReceived | Silence::Closed | Silence::Ended(_) => self.interpreter.blame(left),
        }
    }

    /// The error if a process did not answer its first command in time. It had to do `task` for the model or instance `name`.
    pub(crate) fn timed_out(&self, task: &str, name: &str, last_lines: &str) -> Status {
        Status::internal(format!(
            "Timed out occurred while waiting for the stub process. Failed to {task} {name} (it had {} seconds, with interpreter {}; \
             --backend-config=python,stub-timeout-seconds gives it more){last_lines}",
            self.phase_max.unwrap_or_default().as_secs(),
            self.interpreter
        ))
    }

    /// The error if the process cannot be started, or if it ended before it got its first packet.
    pub(crate) fn unstarted(&self, error: io::Error, began: Instant) -> Status {
        let blame = match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.blame(&Silence::NotReceived, began),
            _ => None,
        };
        blame.unwrap_or_else(|| self.interpreter.unstarted(error))
    }
}
