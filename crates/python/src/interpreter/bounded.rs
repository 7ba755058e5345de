//! How does a program run that may neither hang nor talk for ever?

use std::io::{self, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nerite_process::spawn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::limits::SAID_BYTES_MAX;

/// How often it is asked whether a program has ended whose output somebody else holds open.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What a program did.
pub(super) struct Ran {
    /// `None` if it was still running when its time was over; then it is no more.
    pub(super) end: Option<ExitStatus>,
    /// The last of what it printed, on both outputs.
    pub(super) said: String,
}

impl Ran {
    /// The last lines, as an error tells them.
    pub(super) fn last_lines(&self, lines_max: usize) -> String {
        let lines: Vec<&str> = self.said.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(lines_max)..].join(" | ")
    }
}

/// Runs it to its end, at most for so long, with nothing to read, in a process group of its own.
pub(super) fn run(mut command: Command, at_most: Duration) -> io::Result<Ran> {
    let deadline = Instant::now() + at_most;
    let (mut reader, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    let mut process = spawn(&mut command)?;
    // It holds the writing end, which the program alone should have.
    drop(command);
    let ran = listen(&mut process, &mut reader, deadline);
    if !matches!(&ran, Ok(Ran { end: Some(_), .. })) {
        // With all that it started, which a script would leave behind.
        let _ = kill_process_group(Pid::from_child(&process), Signal::KILL);
        let _ = process.wait();
    }
    ran
}

#[expect(
    clippy::disallowed_methods,
    reason = "a process that closed its output ends within a moment; this is a load's thread"
)]
fn listen(process: &mut Process, reader: &mut PipeReader, deadline: Instant) -> io::Result<Ran> {
    let (mut said, mut is_open) = (Vec::new(), true);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let pause = left.min(LOOK_AGAIN);
        if is_open {
            wait(reader, pause)?;
            is_open = take(reader, &mut said)?;
        } else {
            std::thread::sleep(pause.min(Duration::from_millis(1)));
        }
        let end = process.try_wait()?;
        if end.is_some() {
            take(reader, &mut said)?;
        }
        if end.is_some() || left.is_zero() {
            return Ok(Ran { end, said: String::from_utf8_lossy(&said).into_owned() });
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

/// Takes what is there, and of it keeps the last [`SAID_BYTES_MAX`]. `false` at the end.
fn take(reader: &mut PipeReader, said: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; 4096];
    // A program that talks without pause must not keep us from looking at the time.
    for _ in 0..SAID_BYTES_MAX / piece.len() {
        match reader.read(&mut piece) {
            Ok(0) => return Ok(false),
            Ok(count) => {
                said.extend(piece.iter().take(count));
                said.drain(..said.len().saturating_sub(SAID_BYTES_MAX));
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
        run(command, at_most).unwrap()
    }

    const LONG: Duration = Duration::from_mins(1);
    /// For a program to begin and say a word, where others keep the machine busy.
    const LONG_ENOUGH_TO_BEGIN: Duration = Duration::from_secs(2);

    #[track_caller]
    fn check(script: &str, code: i32, said: &str) {
        let ran = shell(script, LONG);
        assert_eq!((ran.end.and_then(|end| end.code()), ran.said.as_str()), (Some(code), said), "{script}");
    }

    #[test]
    fn what_a_program_says_on_both_outputs_is_heard_until_its_end() {
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
        assert_eq!((ran.end, ran.said.as_str()), (None, "begun\n"));
        let ran = shell("while :; do echo and so on; done", LONG_ENOUGH_TO_BEGIN);
        assert!(ran.end.is_none() && ran.said.len() <= SAID_BYTES_MAX);
    }

    #[test]
    fn the_last_lines_are_told_in_one() {
        assert_eq!(shell("echo 1; echo; echo 2; echo 3", LONG).last_lines(2), "2 | 3");
        assert_eq!(shell(":", LONG).last_lines(2), "");
    }
}
