//! Which program confines itself and becomes a model's process, and is it this server's?

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nerite_shm::close_all_on_exec;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::policy::Policy;

/// The word of the command line that makes the program confine itself.
pub const COMMAND: &str = "confine";

/// The exit status if the process could not be confined.
pub(crate) const REFUSED: u8 = 125;
/// The first line that the process prints if it gets no program to run.
pub(crate) const NAME: &str = concat!("nerite ", env!("CARGO_PKG_VERSION"));

/// How long a process may take to confine itself. Usually it takes milliseconds.
const CONFINE_MAX: Duration = Duration::from_secs(20);
/// The most bytes of its output that are read.
const SAID_BYTES_MAX: u64 = 16 << 10;

/// Its path, if it is not the program that runs.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the program that confines processes. A server that is a library in another program sets its own. By default it is the running program. Only
/// the first call counts.
pub fn set_program(program: PathBuf) {
    PROGRAM.get_or_init(|| program);
}

/// The command of a process that confines itself. The program that it becomes may be added.
pub(crate) fn confine(policy: &Policy) -> Command {
    // The running file, even if it was replaced on disk.
    confine_by(PROGRAM.get().map_or(Path::new("/proc/self/exe"), PathBuf::as_path), policy)
}

fn confine_by(program: &Path, policy: &Policy) -> Command {
    let mut command = Command::new(program);
    command.arg0("nerite").arg(COMMAND).args(policy.words());
    command
}

/// Confines a process that does nothing. Returns the restrictions that are in force, and those that are missing. An error says what the kernel lacks,
/// or that the program is not this one.
pub(crate) fn try_out(policy: &Policy) -> Result<(String, String), String> {
    confined_output(confine(policy), CONFINE_MAX)
}

fn confined_output(command: Command, at_most: Duration) -> Result<(String, String), String> {
    let program = Path::new(command.get_program()).display().to_string();
    let other = |why: String| format!("'{program}', which is to confine processes, has to be {NAME}, and {why}");
    let (code, output, faults) = match run(command, at_most) {
        Ok(Some(ran)) => ran,
        Ok(None) => return Err(other(format!("did not end within {} s", at_most.as_secs()))),
        Err(error) => return Err(other(format!("cannot be run: {error}"))),
    };
    if code == Some(i32::from(REFUSED)) && !faults.is_empty() {
        return Err(faults);
    }
    let mut lines = output.lines();
    let name = lines.next().unwrap_or_default();
    if name != NAME || code != Some(0) {
        let code = code.map_or_else(|| "a signal".to_owned(), |code| format!("status {code}"));
        let words = [name, faults.lines().next().unwrap_or_default()].into_iter().find(|words| !words.is_empty());
        return Err(other(format!("said '{}' and ended with {code}", words.unwrap_or_default())));
    }
    let mut next = || lines.next().unwrap_or_default().to_owned();
    Ok((next(), next()))
}

/// Its exit status, and its output on both streams. `None`: it took too long, and was killed with its group.
fn run(mut command: Command, at_most: Duration) -> io::Result<Option<(Option<i32>, String, String)>> {
    close_all_on_exec(&mut command);
    let deadline = Instant::now() + at_most;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut process = command.spawn()?;
    let ended = ends(&mut process, deadline);
    if !matches!(ended, Ok(Some(_))) {
        // It fails if none is left.
        let _ = kill_process_group(Pid::from_child(&process), Signal::KILL);
        process.wait()?;
    }
    let Some(status) = ended? else { return Ok(None) };
    let (output, faults) = (process.stdout.take().map(text), process.stderr.take().map(text));
    Ok(Some((status.code(), output.transpose()?.unwrap_or_default(), faults.transpose()?.unwrap_or_default())))
}

/// How it ended, if it ended in that time.
#[expect(clippy::disallowed_methods, reason = "it ends within a moment; this is a load's thread")]
fn ends(process: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        match process.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if Instant::now() >= deadline => return Ok(None),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The text in a pipe. It is not read to the end, because a process that was left behind may hold the other end open.
fn text(pipe: impl Read + AsFd) -> io::Result<String> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    let mut bytes = Vec::new();
    match pipe.take(SAID_BYTES_MAX).read_to_end(&mut bytes) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The result for a program that runs this script with the words of a policy.
    fn found(script: &str, at_most: Duration) -> Result<(String, String), String> {
        let mut command = Command::new("sh");
        command.args(["-c", script, "nerite"]).args(confine_by(Path::new("nerite"), &Policy::default()).get_args());
        confined_output(command, at_most)
    }

    #[track_caller]
    fn refuse(script: &str, text: &str) {
        let why = found(script, Duration::from_mins(1)).unwrap_err();
        assert!(why.contains(text), "{why}");
    }

    #[test]
    fn a_program_that_is_not_nerite_of_this_version_confines_nothing() {
        let good = format!("test $1 = confine && echo {NAME}; echo held; echo missing");
        assert_eq!(found(&good, Duration::from_mins(1)), Ok(("held".to_owned(), "missing".to_owned())));
        refuse("echo nerite 0.0.0-other; echo files", "'sh', which is to confine processes, has to be nerite");
        refuse("echo nerite 0.0.0-other; echo files", "said 'nerite 0.0.0-other' and ended with status 0");
        refuse("echo no such file: confine >&2; exit 2", "said 'no such file: confine' and ended with status 2");
        refuse("exit 125", "said '' and ended with status 125");
        refuse("kill -9 $$", "ended with a signal");
        refuse(&format!("echo {NAME}; exit 1"), "ended with status 1");
        refuse("sleep 60 & exit 3", "ended with status 3");
        assert_eq!(found("echo no Landlock >&2; exit 125", Duration::from_mins(1)), Err("no Landlock".to_owned()));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        for script in ["sleep 1000", "while :; do echo words; done", "sleep 1000 & wait"] {
            let began = Instant::now();
            let why = found(script, Duration::from_secs(1)).unwrap_err();
            assert!(why.ends_with("did not end within 1 s"), "{why}");
            assert!(began.elapsed() < Duration::from_mins(1));
        }
        let why = confined_output(confine_by(Path::new("/no/such"), &Policy::default()), CONFINE_MAX).unwrap_err();
        assert!(why.contains("'/no/such'") && why.contains("cannot be run"), "{why}");
    }
}
