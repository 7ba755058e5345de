//! How do packets and descriptors pass through the socket?

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use nerite_budget::{Account, Charge};
use nerite_request::ResponsePermit;
use rustix::buffer::spare_capacity;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, recv, sendmsg, shutdown, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use crate::limits::{COPIED_BYTES_MAX, DESCRIPTORS_MAX, PACKET_BYTES_MAX};
use crate::peer::Peer;

/// One message on its way to the client.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    pub(crate) bytes: Bytes,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Of the response that it tells, until it has gone.
    pub(crate) _permit: Option<Arc<ResponsePermit>>,
}

/// What came from the client.
pub(crate) enum Received {
    Packet(Bytes),
    /// More bytes than a packet may have; they are gone.
    TooLong(usize),
    /// The client has closed, or died.
    End,
}

/// A connected socket that keeps packets apart (`SOCK_SEQPACKET`).
///
/// It is watched for packets alone. Were it watched for room as well, as the runtime's own sockets are, then each answer that
/// the client takes would wake a thread here to learn that there is room, which there nearly always was.
pub(crate) struct Socket {
    descriptor: AsyncFd<OwnedFd>,
    peer: io::Result<Peer>,
}

/// Where packets arrive.
pub(crate) struct Receiver {
    buffer: Vec<u8>,
    /// For the part of the buffer that was ever written to: the rest is no memory yet.
    charge: Charge,
}

impl Socket {
    /// The runtime calls it a stream; it is whatever was connected.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Socket> {
        // Best effort: the default takes a packet of the largest size, but an operator may have lowered it.
        let _ = sockopt::set_socket_send_buffer_size(&stream, 2 * PACKET_BYTES_MAX);
        let peer = stream.peer_cred().map(|peer| Peer::of(&peer));
        let descriptor = watch(OwnedFd::from(stream.into_std()?), Interest::READABLE)?;
        Ok(Socket { descriptor, peer })
    }

    /// Who connected.
    pub(crate) fn peer(&self) -> &io::Result<Peer> {
        &self.peer
    }

    /// The next packet. Descriptors that come with it are not taken: the kernel closes them.
    pub(crate) async fn receive(&self, receiver: &mut Receiver) -> io::Result<Received> {
        self.descriptor.async_io(Interest::READABLE, |socket| receiver.receive(socket.as_fd())).await
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
        match sendmsg(self.descriptor.get_ref(), &[IoSlice::new(&packet.bytes)], &mut control, flags) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the client has closed, whatever it sent before that was not read yet.
    pub(crate) async fn hung_up(&self) {
        // The kernel tells of an end whatever is asked for, and there is no urgent data here: nothing else wakes this.
        let again = self.descriptor.get_ref().try_clone().and_then(|again| watch(again, Interest::PRIORITY));
        match again {
            Ok(again) if again.ready(Interest::PRIORITY).await.is_ok() => {}
            // Without a descriptor for it nobody knows; the end is found when the next packet is read.
            Ok(_) | Err(_) => std::future::pending().await,
        }
    }

    /// Waits until there is room again, or nobody to read.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        let again = watch(self.descriptor.get_ref().try_clone()?, Interest::WRITABLE)?;
        again.writable().await.map(drop)
    }
}

impl Drop for Socket {
    /// What the client sent and nobody will read is taken out first. Were it there at the close, the kernel would tell the
    /// client of a reset connection before the answer that says why.
    fn drop(&mut self) {
        let socket = self.descriptor.get_ref();
        // Fails only if the client is gone already. From here on it cannot send, so the loop ends.
        let _ = shutdown(socket, Shutdown::Read);
        while recv(socket, &mut [0u8; 1], RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0) {}
    }
}

impl Receiver {
    /// A buffer that `account` is charged for.
    pub(crate) fn new(account: &Account) -> Receiver {
        Receiver { buffer: Vec::with_capacity(PACKET_BYTES_MAX), charge: account.charge(0) }
    }

    fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<Received> {
        self.buffer.clear();
        // With TRUNC the kernel tells how long the packet was, even if it did not fit.
        let (_, len) = recv(socket, spare_capacity(&mut self.buffer), RecvFlags::TRUNC)?;
        if self.buffer.len() > self.charge.bytes() {
            self.charge.resize(self.buffer.len());
        }
        Ok(match len {
            0 => Received::End,
            len if len > self.buffer.len() || len > PACKET_BYTES_MAX => Received::TooLong(len),
            len if len <= COPIED_BYTES_MAX => Received::Packet(Bytes::copy_from_slice(&self.buffer)),
            _ => {
                let whole = std::mem::replace(&mut self.buffer, Vec::with_capacity(PACKET_BYTES_MAX));
                // An inference that keeps it is charged for it.
                self.charge.resize(0);
                Received::Packet(Bytes::from(whole))
            }
        })
    }
}

/// A descriptor that the runtime polls. The function is deprecated because it is safe although it trusts `T` to name the same
/// open descriptor for as long as it lives; `OwnedFd` does, and its replacement is unsafe.
#[allow(deprecated)]
pub(crate) fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}
