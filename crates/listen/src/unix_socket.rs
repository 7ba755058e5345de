//! How is a Unix socket held and closed, so that descriptors that clients pass delay nobody?

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use nerite_request::Peer;
use nerite_shm::{PeerCredentials, peer_credentials};
use rustix::net::{Shutdown, shutdown, sockopt};

use crate::closers::{CLOSERS, Closing, Owner, SocketEntry};

/// A Unix socket. If its kernel cannot refuse descriptors, it is closed on another thread.
pub struct UnixSocket {
    /// `None` only while the value is dropped.
    socket: Option<OwnedFd>,
    /// Whether descriptors may wait at it. Then it must be read by [`crate::peek`] first.
    takes_descriptors: bool,
    owner: Owner,
    entry: Option<Arc<dyn SocketEntry>>,
}

impl UnixSocket {
    /// A socket of the server's own: a listener, or a socket that is never read.
    pub(crate) fn own(socket: OwnedFd, takes_descriptors: bool) -> UnixSocket {
        UnixSocket { socket: Some(socket), takes_descriptors, owner: None, entry: None }
    }

    /// A connection of `peer`.
    pub(crate) fn accepted(socket: OwnedFd, takes_descriptors: bool, peer: &Peer) -> UnixSocket {
        if takes_descriptors {
            // The kernel drops an urgent byte (MSG_OOB), with its descriptors, when the bytes behind it are read. A peek finds it only with SO_OOBINLINE,
            // which makes it an ordinary byte. Linux before 5.15 has no such bytes on Unix sockets.
            let _ = sockopt::set_socket_oobinline(&socket, true);
        }
        UnixSocket { socket: Some(socket), takes_descriptors, owner: Some(peer.clone()), entry: None }
    }

    /// Whether descriptors may wait at it, because its kernel cannot refuse them. Then [`crate::peek`] must look before each read.
    pub fn takes_descriptors(&self) -> bool {
        self.takes_descriptors
    }

    /// The process that connected.
    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        peer_credentials(self)
    }

    /// Keeps `entry` until the socket is closed, if that happens on another thread.
    pub fn hold(&mut self, entry: Arc<dyn SocketEntry>) {
        self.entry = self.takes_descriptors.then_some(entry);
    }

    /// The descriptor, if no descriptors can wait at it. Such a socket may be closed on any thread. Otherwise the socket is returned unchanged.
    pub(crate) fn into_plain(mut self) -> Result<OwnedFd, UnixSocket> {
        if self.takes_descriptors {
            return Err(self);
        }
        Ok(self.socket.take().expect("only drop and this function take it, and both have the value"))
    }

    fn socket(&self) -> &OwnedFd {
        self.socket.as_ref().expect("only drop and `into_plain` take it, and both end the value")
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if !self.takes_descriptors {
            return;
        }
        // The client sees the end now, and cannot send any more. `shutdown` fails only if the client has closed the connection.
        let _ = shutdown(&socket, Shutdown::Both);
        let entry = self.entry.take();
        if let Some(entry) = &entry {
            entry.begins_to_close();
        }
        CLOSERS.close(self.owner.take(), Closing { socket, entry });
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl AsRawFd for UnixSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket().as_raw_fd()
    }
}

impl fmt::Debug for UnixSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnixSocket { socket, takes_descriptors, owner, .. } = self;
        f.debug_struct("UnixSocket")
            .field("socket", socket)
            .field("takes_descriptors", takes_descriptors)
            .field("owner", owner)
            .finish_non_exhaustive()
    }
}
