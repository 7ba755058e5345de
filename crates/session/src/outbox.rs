//! How does an answer get out, whichever thread made it?

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::limits::{QUEUED_BYTES_MAX, QUEUED_DESCRIPTORS_MAX, QUEUED_PACKETS_MAX};
use crate::socket::{Packet, Socket};

/// A session's way out. Whoever has an answer sends it at once if nothing waits before it; else the session's task sends it
/// when the client has read some.
pub(crate) struct Outbox {
    pub(crate) socket: Socket,
    queue: Mutex<Queue>,
    /// Something waits, or everything is over.
    news: Notify,
}

#[derive(Default)]
struct Queue {
    packets: VecDeque<Packet>,
    bytes: usize,
    descriptors: usize,
    /// Nothing can be sent any more, and why.
    closed: Option<Closed>,
}

/// Why a session sends nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Closed {
    #[error("the client has gone")]
    Gone,
    #[error("the client does not read its answers")]
    Unread,
}

impl Outbox {
    pub(crate) fn new(socket: Socket) -> Outbox {
        Outbox { socket, queue: Mutex::default(), news: Notify::new() }
    }

    /// Sends a packet now or later; after the end it is dropped, and its descriptors closed.
    pub(crate) fn send(&self, packet: Packet) {
        let mut queue = self.lock();
        if queue.closed.is_some() {
            return;
        }
        if queue.packets.is_empty() {
            match self.socket.send(&packet) {
                Ok(()) => return,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return self.close(queue, Closed::Gone),
            }
        }
        queue.push(packet);
        if queue.is_too_long() {
            return self.close(queue, Closed::Unread);
        }
        drop(queue);
        self.news.notify_one();
    }

    /// Sends what waits as the client reads it. Ends only when nothing can be sent any more. May be dropped at any time.
    pub(crate) async fn flush(&self) -> Closed {
        loop {
            let waits = {
                let queue = self.lock();
                if let Some(closed) = queue.closed {
                    return closed;
                }
                !queue.packets.is_empty()
            };
            if !waits {
                self.news.notified().await;
            } else if self.socket.writable().await.is_err() {
                self.close(self.lock(), Closed::Gone);
            } else {
                self.send_waiting();
            }
        }
    }

    /// Whether every answer has gone out.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().packets.is_empty()
    }

    fn send_waiting(&self) {
        let mut queue = self.lock();
        while let Some(packet) = queue.packets.front() {
            match self.socket.send(packet) {
                Ok(()) => queue.pop(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.close(queue, Closed::Gone),
            }
        }
    }

    fn close(&self, mut queue: MutexGuard<'_, Queue>, why: Closed) {
        let waiting = std::mem::replace(&mut *queue, Queue { closed: Some(why), ..Queue::default() });
        drop(queue);
        drop(waiting);
        self.news.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push(&mut self, packet: Packet) {
        self.bytes += packet.bytes.len();
        self.descriptors += packet.descriptors.len();
        self.packets.push_back(packet);
    }

    fn pop(&mut self) {
        if let Some(packet) = self.packets.pop_front() {
            self.bytes -= packet.bytes.len();
            self.descriptors -= packet.descriptors.len();
        }
    }

    fn is_too_long(&self) -> bool {
        self.packets.len() > QUEUED_PACKETS_MAX
            || self.bytes > QUEUED_BYTES_MAX
            || self.descriptors > QUEUED_DESCRIPTORS_MAX
    }
}
