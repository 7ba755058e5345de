//! Where does the standard error of a model's process go?
//!
//! ```text
//!   process: standard error ──► pipe ──► thread here: passes all on to the server's own standard error
//!                                        ProcessOutput (crate `process`): keeps the last lines, for errors
//! ```
//!
//! The thread ends with the last process that has the pipe.

use std::io::{self, PipeWriter};

use nerite_process::ProcessOutput;

/// A pipe for the standard error of a process, and what will come out of it.
pub(crate) fn pipe() -> io::Result<(ProcessOutput, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    let output = ProcessOutput::new(reader);
    let read = output.clone();
    std::thread::Builder::new().name("nerite-printed".to_owned()).spawn(move || read.read_to_end(pass_on))?;
    Ok((output, writer))
}

/// Writes to the server's standard error as the process itself would: without the lock of [`io::stderr`], for which threads that log would have to
/// wait.
fn pass_on(mut bytes: &[u8]) {
    // The server's standard error may be closed. The process must be able to continue all the same.
    while let Ok(count @ 1..) = rustix::io::retry_on_intr(|| rustix::io::write(io::stderr(), bytes)) {
        bytes = bytes.get(count..).unwrap_or_default();
    }
}
