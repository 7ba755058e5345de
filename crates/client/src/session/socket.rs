//! How do packets and descriptors pass through the socket?

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net;
use std::path::Path;

use bytes::Bytes;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, send, socket_with, sockopt,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::limits::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// What came from the server: `bytes` is `None` when it has gone.
pub(super) struct Packet {
    pub(super) bytes: Option<Bytes>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// A connected socket that keeps packets apart (`SOCK_SEQPACKET`). The runtime's type for Unix streams serves: it only polls
/// the descriptor, and all reading and writing is done here.
pub(super) struct Socket(UnixStream);

impl Socket {
    pub(super) fn connect(path: &Path) -> io::Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // Best effort: the default takes a packet of the largest size, but an operator may have lowered it.
        let _ = sockopt::set_socket_send_buffer_size(&socket, 2 * PACKET_BYTES_MAX);
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Socket(UnixStream::from_std(net::UnixStream::from(socket))?))
    }

    pub(super) async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.async_io(Interest::WRITABLE, || self.send_now(bytes)).await
    }

    /// Sends if there is room.
    pub(super) fn send_now(&self, bytes: &[u8]) -> io::Result<()> {
        send(&self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }

    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Packet> {
        self.0.async_io(Interest::READABLE, || receive(self.0.as_fd(), buffer)).await
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
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet larger than agreed, or too few descriptors left"));
    }
    let bytes = buffer.get(..received.bytes).filter(|bytes| !bytes.is_empty()).map(Bytes::copy_from_slice);
    Ok(Packet { bytes, descriptors })
}
