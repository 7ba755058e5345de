//! Which user and process is at the other end of a Unix socket?

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process that connected, as the kernel identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its effective user.
    pub uid: u32,
    /// Its process id. `None` if it is not visible in this namespace.
    pub pid: Option<u32>,
}

/// The process that connected to this Unix socket.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&found) as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `found`, which has as many, and the new length to `len`. Both live until the call returns. A ucred
    // consists of numbers, for which all values are valid. `socket` is open during the call.
    let done = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &raw mut len)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // The kernel gives process id 0 for a process that is not visible here.
    Ok(PeerCredentials { uid: found.uid, pid: u32::try_from(found.pid).ok().filter(|pid| *pid != 0) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = nix::unistd::geteuid().as_raw();
        assert_eq!(peer_credentials(&one).unwrap(), PeerCredentials { uid: own, pid: Some(std::process::id()) });
        assert!(peer_credentials(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
