//! How is a program started that may have been written a moment ago?
//!
//! Linux runs no file that somebody has open for writing (ETXTBSY). An interpreter that has just been unpacked may be: a process
//! that was being started meanwhile, for another model, has the unpacker's descriptors until it runs its own program.

use std::io;
use std::process::{Child as Process, Command};
use std::time::{Duration, Instant};

/// How long it may take until the last such process has gone on.
const BUSY_MAX: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);

/// Starts it, if need be when nobody has its file open any more.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Process> {
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
    fn a_program_that_somebody_still_writes_runs_once_it_is_closed() {
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
