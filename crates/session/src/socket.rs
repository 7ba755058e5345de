//! How are packets and descriptors sent and received?

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use nerite_budget::{Account, Charge};
use nerite_listen::{Connection, Stream};
use nerite_request::ResponsePermit;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, recv, sendmsg, shutdown, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use crate::limits::{DESCRIPTORS_MAX, HANG_UP_POLL_INTERVAL, PACKET_BYTES_MAX, SHORT_BYTES_MAX};
use crate::peer::Peer;

/// One message to the client.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    pub(crate) bytes: Bytes,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The permit of its response, held until the packet is sent.
    pub(crate) _permit: Option<Arc<ResponsePermit>>,
}

/// The data that was received from the client.
pub(crate) enum Received<'r> {
    /// A short packet, in the receive buffer.
    Short(&'r [u8]),
    /// A packet that keeps the receive buffer, so that its tensors are not copied.
    Long(Bytes),
    /// A packet longer than allowed. Its bytes were dropped.
    TooLong(usize),
    /// The client has closed the connection, or has ended.
    End,
}

/// A connected socket that preserves packet boundaries (`SOCK_SEQPACKET`).
///
/// It is polled only for packets. If it were also polled for writability, as the runtime's own sockets are, each answer that the client reads would
/// wake a thread here. The socket is nearly always writable, so that would be of no use.
pub(crate) struct Socket {
    descriptor: AsyncFd<OwnedFd>,
    peer: io::Result<Peer>,
}

/// The buffer for incoming packets.
pub(crate) struct Receiver {
    buffer: Vec<u8>,
    /// Charge for the part of the buffer that was ever written. The rest has no pages yet.
    charge: Charge,
}

impl Socket {
    /// The socket of a connection. Must be called when the client connects, so that its process is known.
    pub(crate) fn of(connection: Connection) -> io::Result<Socket> {
        // The runtime's type is a stream, but the socket preserves packets.
        let Stream::Unix(stream) = connection.into_stream()? else { return Err(io::ErrorKind::InvalidInput.into()) };
        // Best effort. The default takes the largest packet, but an operator may have lowered it.
        let _ = sockopt::set_socket_send_buffer_size(&stream, 2 * PACKET_BYTES_MAX);
        let peer = stream.peer_cred().map(|peer| Peer::of(&peer));
        let descriptor = watch(OwnedFd::from(stream.into_std()?), Interest::READABLE)?;
        Ok(Socket { descriptor, peer })
    }

    /// The user and process that connected.
    pub(crate) fn peer(&self) -> &io::Result<Peer> {
        &self.peer
    }

    /// Receives the next packet. Descriptors in it are not received: the kernel closes them.
    pub(crate) async fn receive<'r>(&self, receiver: &'r mut Receiver) -> io::Result<Received<'r>> {
        let len = self.descriptor.async_io(Interest::READABLE, |socket| receiver.receive(socket.as_fd())).await?;
        Ok(receiver.received(len))
    }

    /// Resolves soon after the client has closed the connection, or has ended, also if there are packets that were not read. A wait for packets would
    /// end with the first of them.
    pub(crate) async fn hung_up(&self) {
        let has_hung_up = || {
            let mut polled = [PollFd::new(self.descriptor.get_ref(), PollFlags::empty())];
            let found = poll(&mut polled, Some(&Timespec::default()));
            found.is_ok() && polled[0].revents().contains(PollFlags::HUP)
        };
        while !has_hung_up() {
            sleep(HANG_UP_POLL_INTERVAL).await;
        }
    }

    /// Sends a whole packet, or nothing.
    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(self.descriptor.get_ref(), &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the socket is writable, or has an error.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        let again = watch(self.descriptor.get_ref().try_clone()?, Interest::WRITABLE)?;
        again.writable().await.map(drop)
    }
}

impl Drop for Socket {
    /// Discards packets that were not read. If some were left at the close, the client would get a connection reset instead of the answer with the reason.
    fn drop(&mut self) {
        let socket = self.descriptor.get_ref();
        // Fails only if the client has closed the connection. After this it cannot send, so the loop ends.
        let _ = shutdown(socket, Shutdown::Read);
        while recv(socket, &mut [0u8; 1], RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0) {}
    }
}

impl Receiver {
    /// A buffer that is charged to `account`.
    pub(crate) fn new(account: &Account) -> Receiver {
        Receiver { buffer: Vec::with_capacity(PACKET_BYTES_MAX), charge: account.charge(0) }
    }

    /// Receives a packet. Returns its length, which may be more than was received.
    fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.buffer.clear();
        // With TRUNC the kernel returns the packet's length even if it did not fit.
        let (_, len) = recv(socket, spare_capacity(&mut self.buffer), RecvFlags::TRUNC)?;
        if self.buffer.len() > self.charge.bytes() {
            self.charge.resize(self.buffer.len());
        }
        Ok(len)
    }

    /// The packet of this length that was received last.
    fn received(&mut self, len: usize) -> Received<'_> {
        match len {
            0 => Received::End,
            len if len > self.buffer.len() || len > PACKET_BYTES_MAX => Received::TooLong(len),
            len if len <= SHORT_BYTES_MAX => Received::Short(&self.buffer),
            _ => {
                let whole = std::mem::replace(&mut self.buffer, Vec::with_capacity(PACKET_BYTES_MAX));
                // An inference that keeps the bytes is charged for them.
                self.charge.resize(0);
                Received::Long(Bytes::from(whole))
            }
        }
    }
}

/// A descriptor that the runtime polls. The function is deprecated because it is safe, but relies on `T` to refer to the same open descriptor as long
/// as it lives. `OwnedFd` does. The replacement is unsafe.
#[allow(deprecated)]
pub(crate) fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}
