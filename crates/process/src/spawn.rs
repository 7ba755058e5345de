//! How is a program started if its file may still be open for writing?
//!
//! Linux does not execute a file that is open for writing (ETXTBSY). That can happen to an interpreter that was just unpacked: a process that is
//! being started for another model at the same time inherits the unpacker's descriptors until it executes its own program.

use std::io;
use std::process::{Child as Process, Command};
use std::time::{Duration, Instant};

use nerite_shm::close_all_on_exec;

/// The longest wait for such a process to execute its program.
const BUSY_MAX: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);

/// Starts it. If its file is open for writing, waits until it is closed.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel wakes nobody when a program's file is closed; this is the supervisor's thread"
)]
pub fn spawn(command: &mut Command) -> io::Result<Process> {
    // The child must not get descriptors that the server itself inherited, because it may run code of users.
    close_all_on_exec(command);
    let deadline = Instant::now() + BUSY_MAX;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            started => return started,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_child_gets_no_descriptor_that_it_was_not_given() {
        let file = File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let mut command = Command::new("sh");
        // The shell opens one more descriptor to read the directory.
        command.args(["-c", "for one in /proc/self/fd/*; do readlink $one; done > $1; test -s $1", "sh"]);
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("told");
        command.arg(&output).stdin(std::process::Stdio::piped());
        assert!(spawn(&mut command).unwrap().wait().unwrap().success());
        assert!(!fs::read_to_string(output).unwrap().contains("/dev/null"));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may panic, and take its time")]
    fn a_program_that_is_open_for_writing_runs_once_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("true");
        fs::copy("/bin/true", &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let writer = File::options().append(true).open(&program).unwrap();
        let busy = Command::new(&program).spawn().unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ExecutableFileBusy);
        let closer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(writer);
        });
        assert!(spawn(&mut Command::new(&program)).unwrap().wait().unwrap().success());
        closer.join().unwrap();
    }
}
