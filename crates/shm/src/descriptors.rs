//! How are descriptors kept from being inherited by child processes?

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the server is a library in another program, to which the descriptors of this process belong.
static ARE_OF_A_PROGRAM: AtomicBool = AtomicBool::new(false);

/// After this call this process's descriptors are not marked any more. The server is a library then, and its program may start children that should
/// inherit some descriptors.
pub fn leave_descriptors() {
    ARE_OF_A_PROGRAM.store(true, Ordering::Relaxed);
}

/// Makes sure that the process of `command` inherits no descriptor except the standard streams. The server's own descriptors are marked as close-on-exec
/// already, but the server may have inherited others, and libraries may have opened some. This function marks them in this process, or in the child after
/// [`leave_descriptors`]. Call it once for each command.
pub fn close_all_on_exec(command: &mut Command) {
    if !ARE_OF_A_PROGRAM.load(Ordering::Relaxed) {
        return mark_all();
    }
    // SAFETY: between fork and exec the closure makes one system call. It takes no lock and no memory.
    unsafe {
        command.pre_exec(|| {
            mark_all();
            Ok(())
        })
    };
}

/// Marks all descriptors except the standard streams as close-on-exec. Linux before 5.11 does not support it.
fn mark_all() {
    const FIRST: libc::c_uint = 3;
    let (last, flag) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: the call reads no memory, and with this flag it closes nothing: it changes what a later exec does.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, FIRST, last, flag) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Whether a child inherits that file.
    fn is_inherited() -> bool {
        let mut command = Command::new("sh");
        command.args(["-c", "for one in /proc/self/fd/*; do readlink $one; done"]);
        close_all_on_exec(&mut command);
        String::from_utf8_lossy(&command.output().unwrap().stdout).contains("/dev/zero")
    }

    #[test]
    fn a_child_inherits_nothing_and_the_descriptors_of_a_program_stay_as_they_are() {
        let file = File::open("/dev/zero").unwrap();
        // SAFETY: the descriptor is the file's, which is open until the end of the test.
        let flags = |call: libc::c_int| unsafe { libc::fcntl(file.as_raw_fd(), call, 0) };
        assert_eq!(flags(libc::F_SETFD), 0);
        let is_marked = || flags(libc::F_GETFD) == libc::FD_CLOEXEC;
        leave_descriptors();
        assert!(!is_inherited() && !is_marked());
        ARE_OF_A_PROGRAM.store(false, Ordering::Relaxed);
        assert!(!is_inherited() && is_marked());
    }
}
