//! How is an answer sent from any thread?

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, PoisonError};

use bytes::Bytes;
use nerite_budget::{Account, Charge};
use nerite_locks::Mutex;
use tokio::sync::Notify;

use crate::limits::{QUEUED_BYTES_MAX, QUEUED_DESCRIPTORS_MAX, QUEUED_PACKET_BYTES, QUEUED_PACKETS_MAX};
use crate::socket::{Packet, Socket};

/// The queue of a session's answers. If no other answer waits, the thread that has an answer sends it at once. Otherwise the answer waits, and the
/// session's task sends it when the client has read earlier ones.
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// Notified when a packet waits, and when the outbox is closed.
    changed: Notify,
    /// Notified when the outbox is closed, for the task that waits until the socket is writable.
    closed: Notify,
}

struct Queue {
    /// `None` after the session has ended. Requests that still run hold the outbox, and must not keep the socket open.
    socket: Option<Arc<Socket>>,
    packets: VecDeque<Packet>,
    bytes: usize,
    descriptors: usize,
    /// Charge for the waiting packets.
    charge: Charge,
    /// Why nothing can be sent any more, if there is no socket.
    closed: Closed,
}

/// Why a session can send nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Closed {
    #[error("the client has gone")]
    Gone,
    #[error("the client does not read its answers")]
    Unread,
    #[error("the operator has ended this session")]
    Ended,
}

impl Outbox {
    /// An outbox that sends to `socket`. Waiting packets are charged to `account`.
    pub(crate) fn new(socket: Arc<Socket>, account: &Account) -> Outbox {
        let (socket, packets, charge) = (Some(socket), VecDeque::new(), account.charge(0));
        let queue = Queue { socket, packets, bytes: 0, descriptors: 0, charge, closed: Closed::Gone };
        Outbox { queue: Mutex::new(queue), changed: Notify::new(), closed: Notify::new() }
    }

    /// Sends a packet now or later. If the outbox is closed, the packet is dropped and its descriptors are closed.
    pub(crate) fn send(&self, packet: Packet) {
        let queue = self.lock();
        match queue.send_at_once(&packet.bytes, &packet.descriptors) {
            Ok(true) => {}
            Ok(false) => self.send_later(queue, packet),
            Err(closed) => self.close_for(queue, closed),
        }
    }

    /// As [`Outbox::send`], for a packet without descriptors. It is copied only if it has to wait.
    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        let queue = self.lock();
        match queue.send_at_once(bytes, &[]) {
            Ok(true) => {}
            Ok(false) => {
                self.send_later(queue, Packet { bytes: Bytes::copy_from_slice(bytes), ..Packet::default() });
            }
            Err(closed) => self.close_for(queue, closed),
        }
    }

    fn send_later(&self, mut queue: MutexGuard<'_, Queue>, packet: Packet) {
        if queue.socket.is_none() {
            return;
        }
        queue.push(packet);
        if queue.is_too_long() {
            return self.close_for(queue, Closed::Unread);
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Sends waiting packets as the client reads them. Returns only when the outbox is closed. May be cancelled at any time.
    pub(crate) async fn flush(&self) -> Closed {
        loop {
            let socket = {
                let queue = self.lock();
                let Some(socket) = &queue.socket else { return queue.closed };
                (!queue.packets.is_empty()).then(|| Arc::clone(socket))
            };
            match socket {
                None => self.changed.notified().await,
                Some(socket) => tokio::select! {
                    biased;
                    () = self.closed.notified() => {}
                    outcome = socket.writable() => match outcome {
                        Ok(()) => self.send_waiting(&socket),
                        Err(_) => self.close(),
                    },
                },
            }
        }
    }

    /// Whether no answer waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().packets.is_empty()
    }

    /// Closes the outbox. Drops the socket and waiting packets.
    pub(crate) fn close(&self) {
        self.close_for(self.lock(), Closed::Gone);
    }

    /// Ends the session from outside. Sends the reason, if the socket can take it, and closes the outbox.
    pub(crate) fn end(&self, why: Packet) {
        self.send(why);
        self.close_for(self.lock(), Closed::Ended);
    }

    fn send_waiting(&self, socket: &Socket) {
        let mut queue = self.lock();
        while let Some(packet) = queue.packets.front() {
            match socket.send(&packet.bytes, &packet.descriptors) {
                Ok(()) => queue.pop(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.close_for(queue, Closed::Gone),
            }
        }
    }

    fn close_for(&self, mut queue: MutexGuard<'_, Queue>, why: Closed) {
        if let Some(socket) = queue.socket.take() {
            queue.closed = why;
            let waiting = std::mem::take(&mut queue.packets);
            let charge = std::mem::take(&mut queue.charge);
            drop(queue);
            drop((socket, waiting, charge));
        }
        self.changed.notify_one();
        self.closed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Sends a packet if nothing waits and the socket has space. False if it has to wait, or if the outbox is closed.
    fn send_at_once(&self, bytes: &[u8], descriptors: &[OwnedFd]) -> Result<bool, Closed> {
        let Some(socket) = self.socket.as_ref().filter(|_| self.packets.is_empty()) else { return Ok(false) };
        match socket.send(bytes, descriptors) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(Closed::Gone),
        }
    }

    fn push(&mut self, packet: Packet) {
        self.bytes += packet.bytes.len();
        self.descriptors += packet.descriptors.len();
        self.packets.push_back(packet);
        self.update_charge();
    }

    fn pop(&mut self) {
        if let Some(packet) = self.packets.pop_front() {
            self.bytes -= packet.bytes.len();
            self.descriptors -= packet.descriptors.len();
            self.update_charge();
        }
    }

    fn update_charge(&mut self) {
        self.charge.resize(self.bytes + self.packets.len() * QUEUED_PACKET_BYTES);
    }

    fn is_too_long(&self) -> bool {
        self.packets.len() > QUEUED_PACKETS_MAX
            || self.bytes > QUEUED_BYTES_MAX
            || self.descriptors > QUEUED_DESCRIPTORS_MAX
    }
}
