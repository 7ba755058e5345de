//! How are the answers to the calls of one packet sent together?

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use nerite_budget::{Account, Charge};
use nerite_locks::Mutex;
use nerite_wire::proto::session::{ANSWERS_HEAD_BYTES, GatheredAnswers, nested_bytes};

use crate::limits::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};
use crate::outbox::Outbox;
use crate::socket::Packet;

/// The last answers to the calls of one packet. They are sent together when all have arrived, or earlier if they fill a packet.
pub(crate) struct Gathered {
    outbox: Arc<Outbox>,
    waiting: Mutex<Waiting>,
}

struct Waiting {
    /// Calls whose last answer has not arrived.
    open: usize,
    answers: GatheredAnswers,
    descriptors: Vec<OwnedFd>,
    charge: Charge,
}

impl Gathered {
    /// Gathers the answers of `calls` calls. Waiting answers are charged to `account`.
    pub(crate) fn new(calls: usize, outbox: &Arc<Outbox>, account: &Account) -> Gathered {
        let answers = GatheredAnswers::with_capacity(calls);
        let charge = account.charge(answers.capacity());
        let waiting = Waiting { open: calls, answers, descriptors: Vec::new(), charge };
        Gathered { outbox: Arc::clone(outbox), waiting: Mutex::new(waiting) }
    }

    /// Takes an answer to one of the calls. An answer that is not the last one is sent at once, because more answers follow it.
    pub(crate) fn send(&self, mut packet: Packet, last: bool) {
        if !last {
            return self.outbox.send(packet);
        }
        if ANSWERS_HEAD_BYTES + nested_bytes(&packet.bytes) > PACKET_BYTES_MAX {
            // Answers that were gathered earlier are sent first.
            let mut waiting = self.lock();
            waiting.open = waiting.open.saturating_sub(1);
            let before = waiting.take();
            drop(waiting);
            return before.into_iter().chain([packet]).for_each(|packet| self.outbox.send(packet));
        }
        let descriptors = std::mem::take(&mut packet.descriptors);
        self.add(&packet.bytes, descriptors);
    }

    /// Takes the last answer to one of the calls, which is known to fit in a packet.
    pub(crate) fn add(&self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let mut waiting = self.lock();
        waiting.open = waiting.open.saturating_sub(1);
        let full = waiting.add(bytes, descriptors);
        let done = if waiting.open == 0 { waiting.take() } else { None };
        drop(waiting);
        full.into_iter().chain(done).for_each(|packet| self.outbox.send(packet));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Adds an answer. If it does not fit in one packet with the waiting answers, returns these as a packet.
    fn add(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Packet> {
        let full = self.answers.packet_bytes() + nested_bytes(bytes) > PACKET_BYTES_MAX
            || self.descriptors.len() + descriptors.len() > DESCRIPTORS_MAX;
        let before = if full { self.take() } else { None };
        self.answers.push(bytes);
        self.descriptors.extend(descriptors);
        if self.answers.capacity() > self.charge.bytes() {
            self.charge.resize(self.answers.capacity());
        }
        before
    }

    /// Takes all waiting answers as one packet. They are last answers, so no later response waits for their permits.
    fn take(&mut self) -> Option<Packet> {
        self.charge.resize(0);
        let descriptors = std::mem::take(&mut self.descriptors);
        self.answers.take().map(|bytes| Packet { bytes, descriptors, ..Packet::default() })
    }
}
