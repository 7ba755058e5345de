//! Which requests of sequences leave a full queue when a peer with fewer requests there sends another one?
//!
//! The newest request of the peer with the most requests leaves, as in the queues of other models. The model must not see a sequence with a request
//! left out, so those behind it in its sequence leave too. A sequence that loses its first request is over. Any other sequence goes on as if the
//! queue had been full when the request arrived. The client may send the request again.

use super::{SequenceNumber, SequenceTable, Waiting};
use crate::action::Rejection;
use crate::event::{Arrival, Repeat, Ticket};

/// Whether a request that leaves is the first or the last one of its sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sequence) struct Flags {
    pub start: bool,
    pub end: bool,
}

impl SequenceTable {
    /// Whether a request may wait if `waiting` others do and at most `requests_max` may. Returns the request that leaves for it, if one must. Further
    /// requests of a sequence that has begun may wait up to twice that number: they let sequences end, and the other requests wait for that.
    pub fn make_way_for(
        &self,
        arrival: &Arrival,
        waiting: usize,
        requests_max: Option<usize>,
    ) -> Result<Option<Ticket>, Rejection> {
        // A request that runs again was admitted before, and its client waits for it.
        let Some(most) = requests_max.filter(|_| !matches!(arrival.repeat, Repeat::Of(_))) else { return Ok(None) };
        let step = arrival.sequence.as_ref().ok_or(Rejection::MissingStart)?;
        if !step.start && !self.is_open(&step.key) {
            return Err(Rejection::MissingStart);
        }
        let most = if step.start { most } else { most.saturating_mul(2) };
        if waiting < most {
            return Ok(None);
        }
        self.occupancy.gives_way_to(arrival.client.peer).map(Some).ok_or(Rejection::Overloaded)
    }

    /// A request that was taken from the table still waits, in a batcher. It may leave a full queue for others.
    pub fn waits_on(&mut self, waiting: &Waiting) {
        if !matches!(waiting.arrival.repeat, Repeat::Of(_)) {
            self.occupancy.add(waiting.arrival.client.peer, waiting.arrival.ticket);
        }
    }

    /// A request that waited in a batcher does not wait any more.
    pub fn waits_no_more(&mut self, peer: u64, ticket: Ticket) {
        self.occupancy.remove(peer, ticket);
    }

    /// Removes a waiting request and those behind it in its sequence. `flags` are those of a request before them that was taken back from a batcher.
    /// Returns the removed ones. Call [`SequenceTable::settle`] or [`SequenceTable::done`] afterwards.
    pub fn cut(&mut self, number: SequenceNumber, from: Ticket, flags: Flags) -> Vec<Ticket> {
        let Some(sequence) = self.sequences.get_mut(&number) else { return Vec::new() };
        let (mut removed, mut flags) = (Vec::new(), flags);
        for ((_, ticket), waiting) in sequence.waiting.split_off(&(true, from)) {
            let step = waiting.arrival.sequence.as_ref();
            flags.start |= step.is_some_and(|step| step.start);
            flags.end |= step.is_some_and(|step| step.end);
            self.forget_request(ticket, &waiting);
            removed.push(ticket);
        }
        if flags.start {
            self.close(number);
        } else if flags.end {
            self.reopen(number);
        }
        removed
    }

    /// Takes requests for a sequence again after its END was removed, unless another sequence with its id has begun.
    fn reopen(&mut self, number: SequenceNumber) {
        let Some(sequence) = self.sequences.get_mut(&number) else { return };
        if !sequence.repeats && sequence.followed_by.is_none() && !self.last.contains_key(&sequence.key) {
            sequence.ended = false;
            self.last.insert(sequence.key.clone(), number);
        }
    }
}
