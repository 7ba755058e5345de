//! How are the answers to the calls of one packet sent together?

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use nerite_budget::{Account, Charge};
use nerite_locks::Mutex;
use nerite_wire::proto::session::{ANSWERS_HEAD_BYTES, encode_answers, nested_bytes};

use crate::limits::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};
use crate::outbox::Outbox;
use crate::socket::Packet;

/// The last answers to the calls of one packet. They are sent when all are there, or earlier if they fill a packet.
pub(crate) struct Gathered {
    outbox: Arc<Outbox>,
    waiting: Mutex<Waiting>,
}

struct Waiting {
    /// Calls whose last answer has not arrived.
    open: usize,
    packets: Vec<Packet>,
    bytes: usize,
    descriptors: usize,
    charge: Charge,
}

impl Gathered {
    /// Gathers the answers of `calls` calls. Waiting answers are charged to `account`.
    pub(crate) fn new(calls: usize, outbox: &Arc<Outbox>, account: &Account) -> Gathered {
        let (packets, charge) = (Vec::with_capacity(calls), account.charge(0));
        let waiting = Waiting { open: calls, packets, bytes: ANSWERS_HEAD_BYTES, descriptors: 0, charge };
        Gathered { outbox: Arc::clone(outbox), waiting: Mutex::new(waiting) }
    }

    /// Takes an answer to one of the calls. An answer that is not the last one is sent at once, because more answers follow it.
    pub(crate) fn send(&self, packet: Packet, last: bool) {
        if !last {
            return self.outbox.send(packet);
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.open = waiting.open.saturating_sub(1);
        let full = waiting.add(packet);
        let done = if waiting.open == 0 { waiting.take() } else { None };
        drop(waiting);
        full.into_iter().flatten().chain(done).for_each(|packet| self.outbox.send(packet));
    }
}

impl Waiting {
    /// Adds an answer. Returns the packets that must be sent now because no packet may be too long: the waiting answers, or the answer itself.
    fn add(&mut self, packet: Packet) -> [Option<Packet>; 2] {
        let (bytes, descriptors) = (nested_bytes(&packet.bytes), packet.descriptors.len());
        if ANSWERS_HEAD_BYTES + bytes > PACKET_BYTES_MAX {
            return [self.take(), Some(packet)];
        }
        let full = self.bytes + bytes > PACKET_BYTES_MAX || self.descriptors + descriptors > DESCRIPTORS_MAX;
        let gone = if full { self.take() } else { None };
        self.bytes += bytes;
        self.descriptors += descriptors;
        self.packets.push(packet);
        self.charge.resize(self.bytes);
        [gone, None]
    }

    /// Takes all waiting answers as one packet.
    fn take(&mut self) -> Option<Packet> {
        let mut packets = std::mem::take(&mut self.packets);
        (self.bytes, self.descriptors) = (ANSWERS_HEAD_BYTES, 0);
        self.charge.resize(0);
        if packets.len() <= 1 {
            return packets.pop();
        }
        let descriptors = packets.iter_mut().flat_map(|packet| std::mem::take(&mut packet.descriptors)).collect();
        let messages: Vec<Bytes> = packets.into_iter().map(|packet| packet.bytes).collect();
        // No more responses follow these, so nothing waits for their permits.
        Some(Packet { bytes: encode_answers(messages), descriptors, ..Packet::default() })
    }
}
