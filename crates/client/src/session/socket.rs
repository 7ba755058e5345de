//! How are packets and descriptors sent and received through the socket?

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bytes::Bytes;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, send, socket_with, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::limits::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// The server at a session socket, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionServer {
    /// Its process id. `None` if the process is not visible in this PID namespace.
    pub pid: Option<u32>,
    /// The user that it runs as.
    pub uid: u32,
}

/// A packet from the server. `bytes` is `None` if the server has closed the session.
pub(super) struct Packet {
    pub(super) bytes: Option<Bytes>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// A connected socket that preserves packet boundaries (`SOCK_SEQPACKET`).
///
/// It is polled only for packets. If it were also polled for writability, each packet that the server reads would wake a thread here. The socket is
/// nearly always writable, so that would be of no use.
pub(super) struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    pub(super) fn connect(path: &Path) -> io::Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // Best effort. The default size has room for the largest packet, but an administrator may have lowered it.
        let _ = sockopt::set_socket_send_buffer_size(&socket, 2 * PACKET_BYTES_MAX);
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Socket(watch(socket, Interest::READABLE)?))
    }

    /// The process and the user at the other end.
    pub(super) fn peer(&self) -> io::Result<SessionServer> {
        // The runtime's type is a stream, but any connected socket works. rustix is not used here, because it has no valid value for the number 0, which means
        // a process of another namespace.
        let again = std::os::unix::net::UnixStream::from(self.0.get_ref().try_clone()?);
        let found = tokio::net::UnixStream::from_std(again)?.peer_cred()?;
        let pid = found.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        Ok(SessionServer { pid, uid: found.uid() })
    }

    pub(super) async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match self.send_now(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let again = watch(self.0.get_ref().try_clone()?, Interest::WRITABLE)?;
                    again.writable().await.map(drop)?;
                }
                sent => return sent,
            }
        }
    }

    /// Sends a packet if the socket has room for it.
    pub(super) fn send_now(&self, bytes: &[u8]) -> io::Result<()> {
        send(self.0.get_ref(), bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }

    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Packet> {
        self.0.async_io(Interest::READABLE, |socket| receive(socket.as_fd(), buffer)).await
    }
}

fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Packet> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a packet larger than agreed, or too few descriptors left",
        ));
    }
    let bytes = buffer.get(..received.bytes).filter(|bytes| !bytes.is_empty()).map(Bytes::copy_from_slice);
    Ok(Packet { bytes, descriptors })
}

/// A descriptor that the runtime polls. `AsyncFd::with_interest` is deprecated because it is safe although it relies on `T` to refer to the same open
/// descriptor as long as it lives. `OwnedFd` does so. The replacement is unsafe.
#[allow(deprecated)]
fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}
