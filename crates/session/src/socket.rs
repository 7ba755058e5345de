//! How do packets and descriptors pass through the socket?

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg, sockopt};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::limits::{COPIED_BYTES_MAX, DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// One message on its way to the client.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    pub(crate) bytes: Bytes,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// What came from the client.
pub(crate) enum Received {
    Packet(Bytes),
    /// More bytes than a packet may have; they are gone.
    TooLong(usize),
    /// The client has closed, or died.
    End,
}

/// A connected socket that keeps packets apart (`SOCK_SEQPACKET`). The runtime's type for Unix streams serves: it only polls
/// the descriptor, and all reading and writing is done here.
pub(crate) struct Socket(UnixStream);

/// Where packets arrive.
pub(crate) struct Receiver {
    buffer: Vec<u8>,
}

impl Socket {
    pub(crate) fn new(stream: UnixStream) -> Socket {
        // Best effort: the default takes a packet of the largest size, but an operator may have lowered it.
        let _ = sockopt::set_socket_send_buffer_size(&stream, 2 * PACKET_BYTES_MAX);
        Socket(stream)
    }

    /// Who connected: its user.
    pub(crate) fn peer_uid(&self) -> io::Result<u32> {
        Ok(self.0.peer_cred()?.uid())
    }

    /// The next packet. Descriptors that come with it are not taken: the kernel closes them.
    pub(crate) async fn receive(&self, receiver: &mut Receiver) -> io::Result<Received> {
        self.0.async_io(Interest::READABLE, || receiver.receive(self.0.as_fd())).await
    }

    /// Sends a packet, all of it or nothing.
    pub(crate) fn send(&self, packet: &Packet) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let borrowed: Vec<BorrowedFd<'_>> = packet.descriptors.iter().map(AsFd::as_fd).collect();
        if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.0, &[IoSlice::new(&packet.bytes)], &mut control, flags) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Socket::send`], after waiting until there may be room. Gives `WouldBlock` when there was none after all.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.0.writable().await
    }

    /// Runs `send` for the runtime's sake: if it would block, the next [`Socket::writable`] waits again.
    pub(crate) fn while_writable<T>(&self, send: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.0.try_io(Interest::WRITABLE, send)
    }
}

impl Receiver {
    pub(crate) fn new() -> Receiver {
        Receiver { buffer: Vec::with_capacity(PACKET_BYTES_MAX) }
    }

    fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<Received> {
        self.buffer.clear();
        // With TRUNC the kernel tells how long the packet was, even if it did not fit.
        let (_, len) = recv(socket, spare_capacity(&mut self.buffer), RecvFlags::TRUNC)?;
        Ok(match len {
            0 => Received::End,
            len if len > self.buffer.len() || len > PACKET_BYTES_MAX => Received::TooLong(len),
            len if len <= COPIED_BYTES_MAX => Received::Packet(Bytes::copy_from_slice(&self.buffer)),
            _ => {
                let whole = std::mem::replace(&mut self.buffer, Vec::with_capacity(PACKET_BYTES_MAX));
                Received::Packet(Bytes::from(whole))
            }
        })
    }
}
