//! How does a Unix socket refuse the descriptors that other processes pass to it?

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Linux 6.16 and later, the value of most architectures. The crate `libc` does not have it.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Makes the kernel refuse messages with descriptors (`SCM_RIGHTS`) to this Unix socket, and to the connections that it accepts from now on. The sender of
/// such a message gets EPERM. The socket may still send descriptors. An error means that the kernel does not support this option.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    let off: libc::c_int = 0;
    let (descriptor, len) = (socket.as_fd().as_raw_fd(), size_of_val(&off) as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of `off`, which has as many and lives until the call returns. `socket` is open during the call.
    let done = unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_unix_sockets_have_the_option() {
        // Kernels without the option refuse it for all sockets.
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(refuse_descriptors(&tcp).is_err());
    }
}
