//! Where do the standard output and error of a model's process go?
//!
//! ```text
//!   process: standard output, standard error ──► two pipes ──► thread here: passes all on to the server's own
//!                                                              ProcessOutput (crate `process`): keeps the last lines, for errors
//! ```
//!
//! The thread ends with the last process that has the pipes.

use std::io::{self, PipeWriter};
use std::os::fd::AsFd;

use nerite_process::{ProcessOutput, Stream};

/// The writing ends for the standard output and error of a process, and their reader.
pub(crate) struct Pipes {
    pub(crate) read: ProcessOutput,
    pub(crate) output: PipeWriter,
    pub(crate) error: PipeWriter,
}

/// Pipes for the standard output and error of a process.
pub(crate) fn pipes() -> io::Result<Pipes> {
    let (output_reader, output) = io::pipe()?;
    let (error_reader, error) = io::pipe()?;
    let read = ProcessOutput::of_both(output_reader, error_reader);
    let reader = read.clone();
    std::thread::Builder::new().name("nerite-printed".to_owned()).spawn(move || reader.read_to_end(pass_on))?;
    Ok(Pipes { read, output, error })
}

fn pass_on(stream: Stream, bytes: &[u8]) {
    match stream {
        Stream::Output => write_all(io::stdout(), bytes),
        Stream::Error => write_all(io::stderr(), bytes),
    }
}

/// Writes to the server's own output with plain system calls, as the process itself would. The locks of [`io::stdout`] and [`io::stderr`] are not
/// taken, because threads that log would have to wait for them.
fn write_all(to: impl AsFd, mut bytes: &[u8]) {
    // The server's output may be closed. The process must be able to continue all the same.
    while let Ok(count @ 1..) = rustix::io::retry_on_intr(|| rustix::io::write(&to, bytes)) {
        bytes = bytes.get(count..).unwrap_or_default();
    }
}
