//! How is a program run with limits on its time and its output?

use std::io::{self, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_backend::LoadStop;
use nerite_process::spawn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::limits::SAID_BYTES_MAX;

/// The interval of checks whether a program has ended while another process holds its output open.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// When a program is killed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunBounds<'s> {
    /// Its time. `None` has no limit.
    pub(crate) at_most: Option<Duration>,
    /// Ends the load that runs it, if there is one.
    pub(crate) stop: Option<&'s LoadStop>,
}

impl RunBounds<'_> {
    /// At most this time.
    pub(crate) fn within(at_most: Duration) -> RunBounds<'static> {
        RunBounds { at_most: Some(at_most), stop: None }
    }

    /// Why the load that runs it was ended.
    pub(super) fn stopped(&self) -> Option<Arc<str>> {
        self.stop.and_then(LoadStop::why)
    }
}

/// The result of a program.
pub(super) struct Ran {
    /// `None` if it was still running at the end of its time or of the load, and was killed.
    pub(super) end: Option<ExitStatus>,
    /// The end of its output, on stdout and stderr.
    pub(super) output: String,
}

impl Ran {
    /// The last lines, for an error.
    pub(super) fn last_lines(&self, lines_max: usize) -> String {
        let lines: Vec<&str> = self.output.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(lines_max)..].join(" | ")
    }
}

/// Runs it to its end, within these bounds, without input, in its own process group.
pub(super) fn run(mut command: Command, bounds: RunBounds<'_>) -> io::Result<Ran> {
    let began = Instant::now();
    let (mut reader, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    let mut process = spawn(&mut command)?;
    // The command holds the writing end of the pipe, which only the program should have.
    drop(command);
    let ran = listen(&mut process, &mut reader, || match bounds.at_most {
        _ if bounds.stopped().is_some() => Duration::ZERO,
        Some(at_most) => at_most.saturating_sub(began.elapsed()),
        None => Duration::MAX,
    });
    if !matches!(&ran, Ok(Ran { end: Some(_), .. })) {
        // The whole process group is killed, because the children of a script would continue otherwise.
        let _ = kill_process_group(Pid::from_child(&process), Signal::KILL);
        let _ = process.wait();
    }
    ran
}

#[expect(
    clippy::disallowed_methods,
    reason = "a process that closed its output ends within a moment; this is a load's thread"
)]
fn listen(process: &mut Process, reader: &mut PipeReader, left: impl Fn() -> Duration) -> io::Result<Ran> {
    let (mut output, mut is_open) = (Vec::new(), true);
    loop {
        let left = left();
        let pause = left.min(LOOK_AGAIN);
        if is_open {
            wait(reader, pause)?;
            is_open = take(reader, &mut output)?;
        } else {
            std::thread::sleep(pause.min(Duration::from_millis(1)));
        }
        let end = process.try_wait()?;
        if end.is_some() {
            take(reader, &mut output)?;
        }
        if end.is_some() || left.is_zero() {
            return Ok(Ran { end, output: String::from_utf8_lossy(&output).into_owned() });
        }
    }
}

fn wait(reader: &PipeReader, at_most: Duration) -> io::Result<()> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(at_most.subsec_nanos()) };
    match poll(&mut [PollFd::new(reader, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads the available output, and keeps the last [`SAID_BYTES_MAX`] of it. `false` at the end.
fn take(reader: &mut PipeReader, output: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; 4096];
    // The loop is bounded, so a program that prints without pause does not prevent the check of the time.
    for _ in 0..SAID_BYTES_MAX / piece.len() {
        match reader.read(&mut piece) {
            Ok(0) => return Ok(false),
            Ok(count) => {
                output.extend(piece.iter().take(count));
                output.drain(..output.len().saturating_sub(SAID_BYTES_MAX));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn shell(script: &str, at_most: Duration) -> Ran {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, RunBounds::within(at_most)).unwrap()
    }

    const LONG: Duration = Duration::from_mins(1);
    /// Time for a program to start and print a word, even on a busy machine.
    const LONG_ENOUGH_TO_BEGIN: Duration = Duration::from_secs(2);

    #[track_caller]
    fn check(script: &str, code: i32, output: &str) {
        let ran = shell(script, LONG);
        assert_eq!((ran.end.and_then(|end| end.code()), ran.output.as_str()), (Some(code), output), "{script}");
    }

    #[test]
    fn both_outputs_of_a_program_are_read_until_its_end() {
        check("echo one; echo two >&2; exit 3", 3, "one\ntwo\n");
        check("cat", 0, "");
        check("exec >/dev/null 2>&1; sleep 0.1; exit 4", 4, "");
    }

    #[test]
    fn a_program_ends_though_another_one_keeps_its_output() {
        check("sleep 60 & echo $?", 0, "0\n");
    }

    #[test]
    fn a_program_that_hangs_or_talks_for_ever_is_ended() {
        let ran = shell("echo begun; sleep 600", LONG_ENOUGH_TO_BEGIN);
        assert_eq!((ran.end, ran.output.as_str()), (None, "begun\n"));
        let ran = shell("while :; do echo and so on; done", LONG_ENOUGH_TO_BEGIN);
        assert!(ran.end.is_none() && ran.output.len() <= SAID_BYTES_MAX);
        let (stop, mut command) = (LoadStop::default(), Command::new("sh"));
        command.args(["-c", "sleep 600"]);
        stop.stop("the model is unloaded");
        assert!(run(command, RunBounds { at_most: None, stop: Some(&stop) }).unwrap().end.is_none());
    }

    #[test]
    fn the_last_lines_are_told_in_one() {
        assert_eq!(shell("echo 1; echo; echo 2; echo 3", LONG).last_lines(2), "2 | 3");
        assert_eq!(shell(":", LONG).last_lines(2), "");
    }
}
