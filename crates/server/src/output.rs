//! What does a command do when nobody takes what it prints?

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

/// A write to the standard output failed.
struct Untaken(io::Error);

/// Prints. If that fails, the command ends: everything it began is dropped, such as the server of a demonstration.
pub fn write(text: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        drop(out);
        // It unwinds without the report of a panic.
        resume_unwind(Box::new(Untaken(error)));
    }
}

/// Runs a command to its end, or until it cannot print.
pub fn run(command: impl FnOnce() -> ExitCode) -> ExitCode {
    // Nothing of the command is used afterwards.
    catch_unwind(AssertUnwindSafe(command)).unwrap_or_else(|payload| match payload.downcast::<Untaken>() {
        Ok(untaken) => untaken.end(),
        Err(panicked) => resume_unwind(panicked),
    })
}

impl Untaken {
    /// Reports the error and ends the command. There is no report if the reader closed the pipe, as `head` does: it has read what it needs.
    fn end(self) -> ExitCode {
        let Untaken(error) = self;
        if error.kind() != ErrorKind::BrokenPipe {
            // If the standard error cannot be written either, the error is not reported.
            let _ = writeln!(io::stderr(), "nerite: cannot write to the standard output: {error}");
        }
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_cannot_print_ends_and_drops_what_it_began() {
        struct Server<'a>(&'a mut bool);
        impl Drop for Server<'_> {
            fn drop(&mut self) {
                *self.0 = true;
            }
        }
        let mut has_ended = false;
        let ended = run(|| {
            let _server = Server(&mut has_ended);
            resume_unwind(Box::new(Untaken(ErrorKind::StorageFull.into())))
        });
        assert_eq!((format!("{ended:?}"), has_ended), (format!("{:?}", ExitCode::FAILURE), true));
    }

    #[test]
    fn another_panic_goes_on() {
        assert!(catch_unwind(|| run(|| resume_unwind(Box::new("another")))).is_err());
    }
}
