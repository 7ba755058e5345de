//! What does a command print, and how does it end?

use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long output is waited for after the command has ended. A process that the command left behind may hold its output open.
const REST_WAIT: Duration = Duration::from_secs(5);

/// The end of a command.
#[derive(Debug)]
pub struct Output {
    /// The exit status. `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed to standard output and standard error, in this order of time.
    pub text: String,
}

impl Output {
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// One line that says what went wrong: its first error, or else its last line.
    pub fn reason(&self) -> String {
        let mut lines = self.text.lines().map(str::trim).filter(|line| !line.is_empty());
        let is_error = |line: &&str| line.starts_with("error") || line.contains(": error: ");
        let line = lines.clone().find(is_error).or_else(|| lines.next_back()).unwrap_or("it printed nothing");
        match self.code {
            Some(code) => format!("exit status {code}: {line}"),
            None => format!("ended by a signal: {line}"),
        }
    }
}

/// Runs a command and shows its output while it runs.
pub fn shown(command: &mut Command) -> Result<Output, String> {
    run(command, true)
}

/// Runs a command and shows nothing.
pub fn quiet(command: &mut Command) -> Result<Output, String> {
    run(command, false)
}

fn run(command: &mut Command, is_shown: bool) -> Result<Output, String> {
    let name = command.get_program().display().to_string();
    let failed = |cause: std::io::Error| format!("cannot run {name}: {cause}");
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    let both = writer.try_clone().map_err(failed)?;
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(both).spawn().map_err(failed)?;
    // The command has copies of the pipe's end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (lines, arrived) = mpsc::channel();
    let read = move || {
        for line in lines_of(reader) {
            if is_shown {
                print!("{line}");
            }
            if lines.send(line).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new().name("output".to_owned()).spawn(read).map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    let mut text = String::new();
    while let Ok(line) = arrived.recv_timeout(REST_WAIT) {
        text.push_str(&line);
    }
    Ok(Output { code: status.code(), text })
}

/// The lines with their ends. Bytes that are no UTF-8 are replaced.
fn lines_of(pipe: PipeReader) -> impl Iterator<Item = String> {
    let mut reader = BufReader::new(pipe);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let count = reader.read_until(b'\n', &mut line).ok()?;
        (count > 0).then(|| String::from_utf8_lossy(&line).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Output {
        quiet(Command::new("sh").args(["-c", script])).expect("a shell")
    }

    #[test]
    fn both_streams_are_read_and_the_reason_is_the_first_error() {
        let output = sh("echo one; echo 'error: two' >&2; printf three; exit 4");
        assert_eq!((output.code, output.text.as_str()), (Some(4), "one\nerror: two\nthree"));
        assert_eq!(output.reason(), "exit status 4: error: two");
        assert_eq!(sh("echo one; echo two; exit 1").reason(), "exit status 1: two");
        assert_eq!(sh("kill -9 $$").reason(), "ended by a signal: it printed nothing");
    }

    #[test]
    fn a_process_that_is_left_behind_does_not_hold_the_command_up() {
        let output = sh("sleep 600 & echo $!");
        assert!(output.is_success());
        Command::new("kill").arg(output.text.trim()).status().expect("a process to end");
    }
}
