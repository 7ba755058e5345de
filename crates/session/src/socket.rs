//! How are packets and descriptors sent and received?

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use nerite_budget::{Account, Charge};
use nerite_listen::{Connection, SocketEntry, UnixSocket, peek, watch};
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
/// The runtime watches this socket only for packets to read. If it also watched for writability, as for its own sockets, each answer that the client reads
/// would wake a thread here for nothing, because the socket is nearly always writable.
pub(crate) struct Socket {
    descriptor: AsyncFd<UnixSocket>,
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
        let Some(socket) = connection.into_unix() else { return Err(io::ErrorKind::InvalidInput.into()) };
        // Best effort. The default takes the largest packet, but an operator may have lowered it.
        let _ = sockopt::set_socket_send_buffer_size(&socket, 2 * PACKET_BYTES_MAX);
        let peer = socket.peer_credentials().map(Peer::of);
        let descriptor = watch(socket, Interest::READABLE)?;
        Ok(Socket { descriptor, peer })
    }

    /// Keeps `entry` until the socket is closed, if closing the socket may take long.
    pub(crate) fn hold(&mut self, entry: Arc<dyn SocketEntry>) {
        self.descriptor.get_mut().hold(entry);
    }

    /// The user and process that connected.
    pub(crate) fn peer(&self) -> &io::Result<Peer> {
        &self.peer
    }

    /// Receives the next packet. The kernel refuses packets with descriptors. Before Linux 6.16 this is an error
    /// ([`nerite_listen::DescriptorsPassed`]), and the packet is not received.
    pub(crate) async fn receive<'r>(&self, receiver: &'r mut Receiver) -> io::Result<Received<'r>> {
        let len = self.descriptor.async_io(Interest::READABLE, |socket| receiver.receive(socket)).await?;
        Ok(receiver.received(len))
    }

    /// Resolves soon after the client has closed the connection or has ended, even if some packets were not read. A wait for readability would end with the
    /// first of these packets instead.
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
        let again = watch(self.descriptor.get_ref().as_fd().try_clone_to_owned()?, Interest::WRITABLE)?;
        again.writable().await.map(drop)
    }
}

impl Drop for Socket {
    /// Discards packets that were not read. If some were left at the close, the client would get a connection reset instead of the answer with the reason.
    fn drop(&mut self) {
        let socket = self.descriptor.get_ref();
        if socket.takes_descriptors() {
            // Such a socket is closed on another thread, which discards the packets.
            return;
        }
        // This fails only if the client has closed the connection. The client cannot send afterwards, so the loop ends.
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
    fn receive(&mut self, socket: &UnixSocket) -> io::Result<usize> {
        self.buffer.clear();
        if socket.takes_descriptors() {
            // No other thread reads from the socket, so the packet that is received below is the one that was peeked at.
            peek(socket, &mut [])?;
        }
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
