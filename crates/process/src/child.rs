//! How is the process of one instance started, called and ended?

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_backend::{LoadStop, MetricOwner};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::channel::{Channel, LongText, Packet, Received};
use crate::limits::{CLOSED_MAX, PHASE_LOGGED_EVERY};
use crate::os_process::{OsProcess, Parent};
use crate::packets::{FINALIZE, Said};
use crate::process_name::ProcessName;
use crate::process_output::ProcessOutput;
use crate::supervisor::{Side, Supervisor};

/// A running process. When this is dropped, the process is told to finalize its model, and killed if it does not end.
pub struct Child {
    pub(crate) os_process: Arc<OsProcess>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) side: Arc<Side>,
    packet: Packet,
    /// Whether it has a model to finalize.
    has_model: bool,
    /// The name of the model's instance, for the log. Empty if it has none.
    instance: String,
    timeouts: ProcessTimeouts,
    /// Its output, if the server reads that.
    pub(crate) output: Option<ProcessOutput>,
}

/// The server's end of a side channel.
pub struct SideEnd(Arc<Side>);

impl SideEnd {
    /// A new pair: the server's end, and that of the process.
    pub fn pair() -> io::Result<(SideEnd, OwnedFd)> {
        let (side, theirs) = Side::pair()?;
        Ok((SideEnd(side), theirs))
    }
}

/// The time limits of a process. `None` has no limit.
#[derive(Clone, Copy, Debug)]
pub struct ProcessTimeouts {
    /// For the answer to its first command, including its start and the load of its model.
    pub first: Option<Duration>,
    /// For finalizing its model.
    pub last: Option<Duration>,
}

/// A packet of a process, received by a thread that must not wait.
pub(crate) enum ReceivedAnswer {
    Said(Said),
    /// A thread that may wait reads it.
    Long(LongText),
}

/// Why a process does not answer.
#[derive(Debug)]
pub enum Silence {
    /// It did not get the command.
    NotReceived,
    /// It did not answer in time.
    TimedOut,
    /// It has closed the channel.
    Closed,
    /// The server killed it. The text says why.
    Killed(String),
    /// It ended, or sent an invalid packet. The text says which.
    Ended(String),
}

impl std::fmt::Display for Silence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Silence::NotReceived => "its process ended before it was asked",
            Silence::TimedOut => "its process does not answer",
            Silence::Closed => "its process has closed the channel to the server",
            Silence::Killed(why) | Silence::Ended(why) => why,
        })
    }
}

impl Child {
    /// Starts `command` in its own process group, so a terminal's interrupt reaches only the server, which stops its models itself. Its standard
    /// input is its end of the channel. The first packet is `greeting`, with the descriptor of its end of the side channel, followed by `others`.
    pub fn start(
        supervisor: &Supervisor,
        mut command: Command,
        timeouts: ProcessTimeouts,
        greeting: &str,
        others: Vec<OwnedFd>,
    ) -> io::Result<Child> {
        let (channel, theirs) = Channel::pair()?;
        let (side, side_theirs) = Side::pair()?;
        command.stdin(Stdio::from(theirs)).process_group(0);
        let os_process = Arc::new(OsProcess::new(supervisor.spawn(command)?));
        let child = Child {
            os_process,
            channel: Arc::new(channel),
            side,
            packet: Packet::default(),
            has_model: false,
            instance: String::new(),
            timeouts,
            output: None,
        };
        let descriptors: Vec<_> = std::iter::once(side_theirs).chain(others).collect();
        match child.channel.send(greeting, &descriptors) {
            // It has ended already. The first command gets the error with the reason.
            Err(error) if is_broken(&error) => {}
            sent => sent?,
        }
        supervisor.watch(Arc::clone(&child.side), Some(Arc::clone(&child.os_process)))?;
        Ok(child)
    }

    /// A process that another one has forked, with the other ends of these channels. The server uses it like one that it started. It runs on the
    /// cores of the calling thread. Its memory policy is that of the process that forked it.
    pub fn adopt(
        supervisor: &Supervisor,
        pid: u32,
        parent: Arc<dyn Parent>,
        (channel, side): (Channel, SideEnd),
        timeouts: ProcessTimeouts,
    ) -> io::Result<Child> {
        let os_process = Arc::new(OsProcess::forked(pid, parent)?);
        if let Ok(cores) = sched_getaffinity(None) {
            // If this fails, it runs on the cores of its parent.
            let _ = sched_setaffinity(os_process.pid(), &cores);
        }
        let (channel, side) = (Arc::new(channel), side.0);
        let packet = Packet::default();
        let (has_model, instance) = (false, String::new());
        let child = Child { os_process, channel, side, packet, has_model, instance, timeouts, output: None };
        supervisor.watch(Arc::clone(&child.side), Some(Arc::clone(&child.os_process)))?;
        Ok(child)
    }

    /// A process with a channel whose other end the test has.
    #[cfg(test)]
    pub(crate) fn of_test(os_process: Arc<OsProcess>, channel: Channel, timeouts: ProcessTimeouts) -> Child {
        let (side, _) = Side::pair().expect("the test may have a pair of sockets");
        let (channel, packet) = (Arc::new(channel), Packet::default());
        let (has_model, instance) = (false, String::new());
        Child { os_process, channel, side, packet, has_model, instance, timeouts, output: None }
    }

    /// As [`Child::request`], with a time limit. After [`Silence::TimedOut`] no more commands are allowed, because the answer may come late.
    pub fn request_within(
        &mut self,
        command: &str,
        descriptors: &[OwnedFd],
        at_most: Duration,
    ) -> Result<Said, Silence> {
        let set_timeout = |channel: &Channel, how_long| {
            channel.set_receive_timeout(how_long).map_err(|error| Silence::Ended(error.to_string()))
        };
        set_timeout(&self.channel, Some(at_most))?;
        let answer = self.request(command, descriptors);
        set_timeout(&self.channel, None)?;
        answer
    }

    /// Logs its process ID.
    pub fn log_start(&self, name: &ProcessName) {
        log::info!("{name} has process {}", self.pid());
    }

    /// Sets the text for the log if it ends unexpectedly.
    pub fn says_when_it_ends(&self, text: String) {
        self.os_process.says_when_it_ends(text);
    }

    /// The same process, whose output the server reads. Errors of its requests have the last lines of the output.
    #[must_use]
    pub fn with_output(mut self, output: ProcessOutput) -> Child {
        self.output = Some(output);
        self
    }

    /// The last lines that the process wrote since it started, as the end of an error. Empty if there are none. Errors of requests must not have
    /// them, because they may be about other clients.
    pub fn last_lines(&self) -> String {
        self.output.as_ref().map(|output| output.last_lines(&self.side.logged_lines(None))).unwrap_or_default()
    }

    /// The arguments of [`last_lines_of_run`], for use after the process has ended.
    pub(crate) fn printed(&self) -> (Option<ProcessOutput>, Arc<Side>) {
        (self.output.clone(), Arc::clone(&self.side))
    }

    /// Its process ID. 0 if the ID is invalid.
    pub fn pid(&self) -> u32 {
        self.os_process.pid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Whether it was reaped.
    pub fn has_ended(&self) -> bool {
        self.os_process.is_reaped()
    }

    /// Allows its model to make metrics. They are removed with it.
    pub fn measure(&self, metrics: MetricOwner) {
        self.side.measure(metrics);
    }

    /// Sends a command and waits for its answer.
    pub fn request(&mut self, command: &str, descriptors: &[OwnedFd]) -> Result<Said, Silence> {
        self.send(command, descriptors)?;
        self.answer()
    }

    /// Sends a packet.
    pub(crate) fn send(&self, packet: impl AsRef<[u8]>, descriptors: &[OwnedFd]) -> Result<(), Silence> {
        self.channel.send(packet, descriptors).map_err(|error| send_failure(&error))
    }

    /// Sends a packet if it can be sent at once. `false` if the process has not read enough of the earlier ones.
    pub(crate) fn try_send(&self, packet: impl AsRef<[u8]>, descriptors: &[OwnedFd]) -> Result<bool, Silence> {
        match self.channel.try_send_all(packet, descriptors) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(send_failure(&error)),
        }
    }

    /// Whether it is known that the process has ended or is ending. Then it must not get further requests.
    pub(crate) fn is_ending(&self) -> bool {
        self.side.is_ending() || self.os_process.is_reaped()
    }

    /// Waits for a packet. [`Silence::NotReceived`] means that the last packet was never read.
    pub(crate) fn answer(&mut self) -> Result<Said, Silence> {
        let received = self.channel.receive(&mut self.packet);
        said(received)
    }

    /// As [`Child::answer`], for a packet that is there already; [`Silence::TimedOut`] if there is none.
    pub(crate) fn answer_at_once(&mut self) -> Result<ReceivedAnswer, Silence> {
        let received = match self.channel.try_receive(&mut self.packet) {
            Ok(Received::Long(long)) => return Ok(ReceivedAnswer::Long(long)),
            Ok(Received::Text(text)) => Ok(Some(text)),
            Ok(Received::End) => Ok(None),
            Err(error) => Err(error),
        };
        said(received).map(ReceivedAnswer::Said)
    }

    /// Waits until there is a packet, or the end. [`Silence::TimedOut`] if there is none in that time.
    pub(crate) fn wait(&self, at_most: Duration) -> Result<(), Silence> {
        match self.channel.wait(at_most) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Silence::TimedOut),
            Err(error) => Err(Silence::Ended(format!("its answer cannot be waited for: {error}"))),
        }
    }

    /// Sends the first command. The program may not even have started yet. `phase` names the work in the log if it takes long. The process is killed
    /// if `stop` ends the load.
    pub fn first(&mut self, command: &str, phase: &str, stop: &LoadStop) -> Result<Said, Silence> {
        let (os_process, channel) = (Arc::clone(&self.os_process), Arc::clone(&self.channel));
        let _watch = stop.watch(move |why| {
            os_process.kill(format!("its process was killed, because {why},"));
            // Other processes may hold the other end open.
            channel.shut_down();
        });
        let answer = self.send(command, &[]).and_then(|()| self.phase(phase, self.timeouts.first));
        answer.map_err(|silence| match silence {
            Silence::Closed | Silence::NotReceived => {
                let how = self.end();
                if self.os_process.killed_because().is_some() { Silence::Killed(how) } else { Silence::Ended(how) }
            }
            other => other,
        })
    }

    /// Waits for the answer to a command, at most for this time, or as long as the process lives. The log names the phase from time to time.
    fn phase(&mut self, phase: &str, at_most: Option<Duration>) -> Result<Said, Silence> {
        let (began, mut logged) = (Instant::now(), Duration::ZERO);
        loop {
            let next = (logged + PHASE_LOGGED_EVERY).min(at_most.unwrap_or(Duration::MAX));
            match self.wait(next.saturating_sub(began.elapsed())) {
                Ok(()) => return self.answer(),
                Err(Silence::TimedOut) => {}
                Err(other) => return Err(other),
            }
            // A process that it started may hold the channel open.
            if self.os_process.is_reaped() {
                return Err(Silence::Closed);
            }
            let elapsed = began.elapsed();
            if at_most.is_some_and(|at_most| elapsed >= at_most) {
                return Err(Silence::TimedOut);
            }
            if elapsed >= next {
                logged = elapsed;
                log::info!("{}", goes_on(phase, elapsed, self.pid()));
            }
        }
    }

    /// Notes that there is a model to finalize.
    pub fn has_model(&mut self) {
        self.has_model = true;
    }

    /// Sets the name of the model's instance, for the log.
    pub(crate) fn set_instance(&mut self, instance: &str) {
        instance.clone_into(&mut self.instance);
    }

    /// Lets the process finalize the model. Returns the error, if there was one.
    fn finalize(&mut self) -> Option<String> {
        let last = self.timeouts.last;
        let phase = format!("instance '{}': finalize", self.instance);
        match self.send(FINALIZE, &[]).and_then(|()| self.phase(&phase, last)) {
            Ok(_) if self.os_process.ends_within(CLOSED_MAX) => None,
            Ok(_) => Some(format!(
                "its process did not end within {} s after finalize and was killed; end its threads and processes in finalize",
                CLOSED_MAX.as_secs()
            )),
            // The process had died before. That was logged then.
            Err(Silence::NotReceived) => None,
            Err(Silence::TimedOut) => {
                let seconds = last.unwrap_or_default().as_secs();
                Some(format!("finalize did not return within {seconds} s; its process was killed"))
            }
            Err(Silence::Closed) => Some(format!("{} in finalize", self.end())),
            Err(silence @ (Silence::Killed(_) | Silence::Ended(_))) => Some(format!("{silence} in finalize")),
        }
    }

    /// Ends a process that is not used any more. Returns how it ended, if it ended by itself.
    pub(crate) fn shut_down(mut self) -> String {
        self.has_model = false;
        self.end()
    }

    fn end(&mut self) -> String {
        how_it_ended(&self.os_process)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.has_model
            && let Some(why) = self.finalize()
        {
            log::error!("model instance '{}': {why}", self.instance);
        }
        self.os_process.kill_and_reap();
        self.side.release_all();
        // If the server ends next, the thread that passes the output on ends with it.
        self.output.iter().for_each(ProcessOutput::wait_until_passed_on);
    }
}

/// The line for the log about a phase of a process.
fn goes_on(phase: &str, elapsed: Duration, pid: u32) -> String {
    format!("{phase} for {} s so far (process {pid})", elapsed.as_secs())
}

/// The last lines that a process which has ended wrote in its run, as the end of an error. Empty if there are none, or if the server does not read its output.
pub(crate) fn last_lines_of_run(output: Option<&ProcessOutput>, side: &Side) -> String {
    output.map(|output| output.last_lines_of_run(|run| side.logged_lines(Some(run)))).unwrap_or_default()
}

/// Reads what a process sent as a long text.
pub(crate) fn said_long(long: LongText) -> Result<Said, Silence> {
    let text = long.read();
    said(text.as_deref().map(Some).map_err(|error| io::Error::new(error.kind(), error.to_string())))
}

/// Why a packet could not be sent.
fn send_failure(error: &io::Error) -> Silence {
    if is_broken(error) {
        return Silence::NotReceived;
    }
    Silence::Ended(format!("the packet could not be sent to it: {error}"))
}

/// Reads the answer of a process.
fn said(received: io::Result<Option<&[u8]>>) -> Result<Said, Silence> {
    match received {
        Ok(Some(text)) => {
            Said::read(text).map_err(|error| Silence::Ended(format!("its answer cannot be read: {error}")))
        }
        Ok(None) => Err(Silence::Closed),
        // The process ended before it read the last packet.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Silence::NotReceived),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Silence::TimedOut),
        Err(error) => Err(Silence::Ended(format!("its answer cannot be received: {error}"))),
    }
}

/// How the process ended. A process that has closed its channel will end soon.
pub(crate) fn how_it_ended(os_process: &OsProcess) -> String {
    let by_itself = os_process.ends_within(CLOSED_MAX);
    let status = os_process.kill_and_reap();
    if let Some(why) = os_process.killed_because() {
        return why.to_owned();
    }
    status.filter(|_| by_itself).map_or_else(|| Silence::Closed.to_string(), how)
}

/// Whether a packet could not be sent because the peer has closed the socket.
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

/// The names of signals that end a process by default.
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

    /// Checks what is logged about a process that runs `script` in place of finalizing its model.
    #[track_caller]
    fn check_finalize(script: &str, last: Duration, expect: Option<&str>) {
        let supervisor = Supervisor::start("nerite-test").unwrap();
        let timeouts = ProcessTimeouts { first: None, last: Some(last) };
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut child = Child::start(&supervisor, command, timeouts, "{}", Vec::new()).unwrap();
        assert_eq!(child.finalize().as_deref(), expect, "{script}");
    }

    #[test]
    fn a_process_that_ends_or_hangs_in_finalize_is_reported() {
        let minute = Duration::from_mins(1);
        // The process reads the two packets and exits.
        let read = "dd bs=65536 count=2 of=/dev/null 2>/dev/null";
        check_finalize(&format!("{read}; exit 9"), minute, Some("its process ended with code 9 in finalize"));
        let killed = Some("its process was ended by signal 11 (SIGSEGV) in finalize");
        check_finalize(&format!("{read}; kill -11 $$"), minute, killed);
        let hangs = Some("finalize did not return within 0 s; its process was killed");
        check_finalize("sleep 1000", Duration::from_millis(20), hangs);
        check_finalize(&format!("{read}; printf '{{\"done\":true}}' >&0"), minute, None);
        let stays = "its process did not end within 1 s after finalize and was killed; end its threads and processes in finalize";
        check_finalize(&format!("{read}; printf '{{\"done\":true}}' >&0; sleep 1000"), minute, Some(stays));
    }

    /// The process lives for a shorter time than the greeting takes, so both orders occur.
    #[test]
    fn a_process_that_ends_before_its_greeting_reports_how_it_ended() {
        let supervisor = Supervisor::start("nerite-test").unwrap();
        let timeouts = ProcessTimeouts { first: None, last: None };
        for greeting in ["{}".to_owned(), " ".repeat(16 << 20)] {
            let mut command = Command::new("sh");
            command.args(["-c", "kill -9 $$"]);
            let mut child = Child::start(&supervisor, command, timeouts, &greeting, Vec::new()).unwrap();
            let silence = child.first(r#"{"do":"nothing"}"#, "", &LoadStop::default()).unwrap_err();
            assert_eq!(silence.to_string(), "its process was ended by signal 9 (SIGKILL)");
        }
    }

    #[test]
    fn the_end_of_a_load_kills_a_process_that_hangs_in_it() {
        let supervisor = Supervisor::start("nerite-test").unwrap();
        for is_before in [true, false] {
            let stop = LoadStop::default();
            let end = |stop: &LoadStop| stop.stop("the model is unloaded");
            if is_before {
                end(&stop);
            }
            let mut command = Command::new("sh");
            // A process in a session of its own keeps the channel open.
            command.args(["-c", "setsid sleep 2 & sleep 1000"]);
            let timeouts = ProcessTimeouts { first: None, last: None };
            let mut child = Child::start(&supervisor, command, timeouts, "{}", Vec::new()).unwrap();
            let silence = std::thread::scope(|scope| {
                scope.spawn(|| end(&stop));
                child.first(r#"{"do":"nothing"}"#, "", &stop).unwrap_err()
            });
            assert!(matches!(silence, Silence::Killed(_)));
            assert_eq!(silence.to_string(), "its process was killed, because the model is unloaded,");
        }
    }

    #[test]
    fn the_log_names_the_phase_that_goes_on() {
        let line = goes_on("instance 'm_0': imports and initialize", Duration::from_millis(20_400), 17);
        assert_eq!(line, "instance 'm_0': imports and initialize for 20 s so far (process 17)");
    }
}
