//! Which sequences exist, which have a slot, and which requests of them wait?
//!
//! A sequence takes a slot (Triton: a position of an instance) when it starts. It leaves the slot after its last request, or when no request came for
//! too long. Sequences without a slot wait in the [`backlog`], which clients share. If a waiting request is cancelled, its sequence ends, and all
//! waiting requests of the sequence are removed: the model must not see a sequence with a request left out. Each operation takes logarithmic time for
//! each request that it adds or removes.
//!
//! ```text
//!   slot 0: a's requests ◄── a, started again ◄── a, started again
//!   slot 1: b's requests
//!   backlog: c ◄── c, started again
//!            d
//! ```
//! If an id starts again before its END came, the new sequence follows the earlier one, as in Triton. It waits until the earlier one is over, and
//! gets its slot, or its place in the backlog. Otherwise their requests could run in any order, and a model that knows sequences by their ids would
//! mix the two. It does not get the slot if another peer waits for one and does not have more slots. So no client can keep a slot from others by
//! starting an id again and again.
//!
//! An id here is that of one owner. The same id of two owners means two sequences, which know nothing of each other.

mod backlog;
mod giving_way;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use self::backlog::Backlog;
pub(super) use self::giving_way::Flags;
use crate::action::{Controls, Rejection};
use crate::event::{Arrival, Client, InstanceId, Repeat, SequenceKey, SequenceStep, Ticket};
use crate::occupancy::Occupancy;

/// The number of a sequence, in the order in which they started. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SequenceNumber(pub u64);

/// A place for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SequenceSlot {
    /// This field is compared first, so the smallest slot has the smallest position, and sequences spread over the instances.
    pub position: usize,
    pub instance: InstanceId,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub arrival: Arrival,
    pub since_us: u64,
}

/// False for a request that runs again: it is before the others of its sequence.
type IsLater = bool;

#[derive(Debug)]
struct Sequence {
    key: SequenceKey,
    /// The client that started it.
    client: Client,
    /// A request that runs again is first, also before smaller tickets.
    waiting: BTreeMap<(IsLater, Ticket), Waiting>,
    slot: Option<SequenceSlot>,
    /// The sequence with the same id that is before it. While there is one, this one has no slot and is not in the backlog.
    follows: Option<SequenceNumber>,
    /// The sequence with the same id that is behind it.
    followed_by: Option<SequenceNumber>,
    /// Whether it has a slot, or the first of those that it follows has one.
    is_placed: bool,
    /// Its place in the backlog. Sequences that follow each other have the same place.
    place: SequenceNumber,
    /// The request that was taken and is not done.
    running: Option<Ticket>,
    /// Whether no more requests of it will come.
    ended: bool,
    /// Whether it ends once one of its requests has run and will not run again.
    repeats: bool,
    /// When it ends, if no request comes.
    idle_at_us: u64,
}

/// All sequences of a model version.
#[derive(Debug)]
pub(super) struct SequenceTable {
    idle_us: u64,
    started: u64,
    sequences: HashMap<SequenceNumber, Sequence>,
    /// The newest sequence of each owner and id, until its END arrives. It takes more requests unless it has ended in another way. The next sequence
    /// of the same key follows it.
    last: HashMap<SequenceKey, SequenceNumber>,
    tickets: HashMap<Ticket, SequenceNumber>,
    /// Slots that were given back. They are smaller than those that were never given out.
    free: BTreeSet<SequenceSlot>,
    instances: usize,
    /// The slots of all instances, and how many of them were given out at least once. The other ones take no memory, because a configuration may have
    /// billions of slots.
    slots: usize,
    slots_used: usize,
    /// Instances whose process has died. No sequence starts there.
    down: BTreeSet<InstanceId>,
    /// Free slots of the instances in `down`.
    withheld: BTreeSet<SequenceSlot>,
    /// Sequences that wait for a slot and follow no other.
    backlog: Backlog,
    /// The peers of waiting requests, except of those that run again.
    occupancy: Occupancy,
    /// The deadlines of requests in the backlog.
    deadlines: BTreeSet<(u64, Ticket)>,
    /// Sequences without a waiting or running request, by the time at which they end.
    idle: BTreeSet<(u64, SequenceNumber)>,
    /// The numbers of sequences that are over and were not reported yet.
    over: Vec<u64>,
}

impl SequenceTable {
    /// A table with this number of slots on each instance. A sequence ends when no request came for `idle_us`.
    pub fn new(instances: usize, slots_per_instance: usize, idle_us: u64) -> SequenceTable {
        SequenceTable {
            idle_us,
            started: 0,
            sequences: HashMap::new(),
            last: HashMap::new(),
            tickets: HashMap::new(),
            free: BTreeSet::new(),
            instances,
            slots: instances.saturating_mul(slots_per_instance),
            slots_used: 0,
            down: BTreeSet::new(),
            withheld: BTreeSet::new(),
            backlog: Backlog::default(),
            occupancy: Occupancy::default(),
            deadlines: BTreeSet::new(),
            idle: BTreeSet::new(),
            over: Vec::new(),
        }
    }

    /// The numbers of sequences that are over and were not reported yet.
    pub fn over(&mut self) -> &mut Vec<u64> {
        &mut self.over
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Waiting requests of sequences without a slot. Takes time in the number of such sequences.
    pub fn backlog_len(&self) -> usize {
        let get = |number: SequenceNumber| self.sequences.get(&number);
        let line = |first: SequenceNumber| std::iter::successors(get(first), move |one| get(one.followed_by?));
        self.backlog.sequences().flat_map(line).map(|sequence| sequence.waiting.len()).sum()
    }

    /// Adds a request. If it starts a sequence again, the slot of the earlier one may go to a third one. That one is added to `placed`.
    pub fn push(&mut self, arrival: Arrival, now_us: u64, placed: &mut Vec<SequenceNumber>) -> Result<(), Rejection> {
        if let Repeat::Of(number) = arrival.repeat {
            return self.push_again(SequenceNumber(number), arrival, now_us);
        }
        let step = arrival.sequence.clone().ok_or(Rejection::MissingStart)?;
        let number = match self.last.get(&step.key).copied() {
            Some(last) if step.start => self.start_again(last, &step.key, arrival.client, now_us, placed),
            None if step.start => self.start(&step.key, arrival.client, now_us),
            last => last.ok_or(Rejection::MissingStart)?,
        };
        let sequence = self.sequences.get_mut(&number).filter(|sequence| !sequence.ended);
        let sequence = sequence.ok_or(Rejection::MissingStart)?;
        self.idle.remove(&(sequence.idle_at_us, number));
        sequence.idle_at_us = now_us.saturating_add(self.idle_us);
        sequence.repeats = arrival.repeat == Repeat::Possible;
        if step.end {
            sequence.ended = true;
            self.last.remove(&step.key);
        }
        let ticket = arrival.ticket;
        if let Some(deadline) = arrival.deadline.filter(|_| !sequence.is_placed) {
            self.deadlines.insert((deadline.at_us, ticket));
        }
        self.tickets.insert(ticket, number);
        self.occupancy.add(arrival.client.peer, ticket);
        sequence.waiting.insert((true, ticket), Waiting { arrival, since_us: now_us });
        Ok(())
    }

    /// Adds a running request that is to run again, before all others of its sequence.
    fn push_again(&mut self, number: SequenceNumber, arrival: Arrival, now_us: u64) -> Result<(), Rejection> {
        let sequence =
            self.sequences.get_mut(&number).filter(|sequence| sequence.running.is_some()).ok_or(Rejection::RunEnded)?;
        let (ticket, key) = (arrival.ticket, sequence.key.clone());
        let arrival = Arrival { sequence: Some(SequenceStep { key, start: false, end: false }), ..arrival };
        self.tickets.insert(ticket, number);
        sequence.waiting.insert((false, ticket), Waiting { arrival, since_us: now_us });
        Ok(())
    }

    /// Whether the newest sequence with that id takes more requests.
    fn is_open(&self, key: &SequenceKey) -> bool {
        self.last.get(key).and_then(|last| self.sequences.get(last)).is_some_and(|sequence| !sequence.ended)
    }

    fn start(&mut self, key: &SequenceKey, client: Client, now_us: u64) -> SequenceNumber {
        // Sequences in the backlog come first.
        let slot = if self.backlog.is_empty() { self.take_slot() } else { None };
        let number = self.start_in(slot, key, client, now_us);
        if slot.is_none() {
            self.backlog.add(client, number, number);
        }
        number
    }

    /// Takes the smallest free slot of an instance that is up.
    fn take_slot(&mut self) -> Option<SequenceSlot> {
        if let Some(slot) = self.free.pop_first() {
            return Some(slot);
        }
        while self.slots_used < self.slots {
            let (position, instance) = (self.slots_used / self.instances, self.slots_used % self.instances);
            self.slots_used += 1;
            let slot = SequenceSlot { position, instance: InstanceId(instance) };
            if !self.is_withheld(slot) {
                return Some(slot);
            }
            self.withheld.insert(slot);
        }
        None
    }

    /// Whether no sequence may start in this slot, because its instance is down. If all instances are down, all are used.
    fn is_withheld(&self, slot: SequenceSlot) -> bool {
        self.down.contains(&slot.instance) && self.down.len() < self.instances
    }

    /// From now on no sequence starts on this instance. Those that have a slot there keep it.
    pub fn goes_down(&mut self, at: InstanceId) {
        self.down.insert(at);
        self.sort_free();
    }

    /// The instance is used again. Returns the sequences of the backlog that got a slot.
    pub fn comes_up(&mut self, at: InstanceId) -> Vec<SequenceNumber> {
        self.down.remove(&at);
        self.sort_free();
        let mut placed = Vec::new();
        while !self.backlog.is_empty()
            && let Some(slot) = self.take_slot()
        {
            placed.extend(self.give_on(slot));
        }
        placed
    }

    /// Separates the free slots that may be taken from those that may not.
    fn sort_free(&mut self) {
        let mut all = std::mem::take(&mut self.free);
        all.append(&mut self.withheld);
        (self.withheld, self.free) = all.into_iter().partition(|slot| self.is_withheld(*slot));
    }

    fn start_in(
        &mut self,
        slot: Option<SequenceSlot>,
        key: &SequenceKey,
        client: Client,
        now_us: u64,
    ) -> SequenceNumber {
        if slot.is_some() {
            self.backlog.took_slot(client);
        }
        self.started += 1;
        let number = SequenceNumber(self.started);
        let sequence = Sequence {
            key: key.clone(),
            client,
            waiting: BTreeMap::new(),
            slot,
            follows: None,
            followed_by: None,
            is_placed: slot.is_some(),
            place: number,
            running: None,
            ended: false,
            repeats: false,
            idle_at_us: now_us.saturating_add(self.idle_us),
        };
        self.sequences.insert(number, sequence);
        self.last.insert(key.clone(), number);
        number
    }

    /// Ends a sequence when a new one with the same id starts. The new one takes its slot if no request of the old one is left, and follows it
    /// otherwise. Adds another sequence to `placed` if it got the slot.
    fn start_again(
        &mut self,
        old: SequenceNumber,
        key: &SequenceKey,
        client: Client,
        now_us: u64,
        placed: &mut Vec<SequenceNumber>,
    ) -> SequenceNumber {
        let Some(sequence) = self.sequences.get_mut(&old) else { return self.start(key, client, now_us) };
        sequence.ended = true;
        let (place, is_placed) = (sequence.place, sequence.is_placed);
        if sequence.running.is_none() && sequence.waiting.is_empty() {
            return match self.forget(old) {
                (Some(slot), _) if !self.is_withheld(slot) && !self.backlog.is_before(client.peer) => {
                    self.start_in(Some(slot), key, client, now_us)
                }
                (slot, _) => {
                    placed.extend(slot.and_then(|slot| self.give_on(slot)));
                    self.start(key, client, now_us)
                }
            };
        }
        let number = self.start_in(None, key, client, now_us);
        if let Some(sequence) = self.sequences.get_mut(&old) {
            sequence.followed_by = Some(number);
        }
        if let Some(sequence) = self.sequences.get_mut(&number) {
            (sequence.follows, sequence.place, sequence.is_placed) = (Some(old), place, is_placed);
        }
        number
    }

    /// Ends all sequences, because no more requests come: each is over when its waiting and running requests are done. Those that have none leave
    /// their slots at once. Adds the sequences that got those slots to `placed`.
    pub fn end_all(&mut self, placed: &mut Vec<SequenceNumber>) {
        self.last.clear();
        self.sequences.values_mut().for_each(|sequence| sequence.ended = true);
        while let Some((_, number)) = self.idle.first().copied() {
            placed.extend(self.leave(number));
        }
    }

    /// The sequence of a waiting request.
    pub fn sequence_of(&self, ticket: Ticket) -> Option<SequenceNumber> {
        self.tickets.get(&ticket).copied()
    }

    /// The request of a sequence that was taken and is not done.
    pub fn running_of(&self, number: SequenceNumber) -> Option<Ticket> {
        self.sequences.get(&number)?.running
    }

    /// The next request of a sequence that has a slot, if it may run now.
    pub fn next_of(&self, number: SequenceNumber) -> Option<(&Waiting, SequenceSlot)> {
        let sequence = self.sequences.get(&number).filter(|sequence| sequence.running.is_none())?;
        let (_, waiting) = sequence.waiting.first_key_value()?;
        Some((waiting, sequence.slot?))
    }

    /// Removes the next request of a sequence, which runs now. Returns it with its controls.
    pub fn take(&mut self, number: SequenceNumber) -> Option<(Waiting, Controls)> {
        let sequence = self.sequences.get_mut(&number).filter(|sequence| sequence.running.is_none())?;
        let ((_, ticket), waiting) = sequence.waiting.pop_first()?;
        sequence.running = Some(ticket);
        self.tickets.remove(&ticket);
        self.occupancy.remove(waiting.arrival.client.peer, ticket);
        let step = waiting.arrival.sequence.as_ref()?;
        let controls = Controls { start: step.start, end: step.end, id: step.key.id.clone(), state: number.0 };
        Some((waiting, controls))
    }

    /// The running request of a sequence is done. Returns the sequence that got its slot, if it is over.
    pub fn done(&mut self, number: SequenceNumber, now_us: u64) -> Option<SequenceNumber> {
        let sequence = self.sequences.get_mut(&number)?;
        sequence.running = None;
        self.end_unless_repeated(number);
        self.settle(number, now_us)
    }

    /// Ends a sequence whose requests may run again, if none of them runs or is to run again.
    fn end_unless_repeated(&mut self, number: SequenceNumber) {
        let Some(sequence) = self.sequences.get(&number).filter(|sequence| sequence.repeats) else { return };
        let comes_again = sequence.waiting.first_key_value().is_some_and(|((is_later, _), _)| !is_later);
        if sequence.running.is_some() || comes_again {
            return;
        }
        self.close(number);
    }

    /// Takes no more requests for a sequence.
    fn close(&mut self, number: SequenceNumber) {
        if let Some(sequence) = self.sequences.get_mut(&number) {
            sequence.ended = true;
        }
    }

    /// Ends a sequence and removes its waiting requests, which it returns. The slot is free at once, or when the running request is done. Adds the
    /// sequence that got it to `placed`.
    pub fn cancel(&mut self, number: SequenceNumber, placed: &mut Vec<SequenceNumber>) -> Vec<Ticket> {
        let removed = self.end(number);
        if self.running_of(number).is_none() {
            placed.extend(self.leave(number));
        }
        removed
    }

    /// Ends a sequence and removes its waiting requests, which it returns.
    fn end(&mut self, number: SequenceNumber) -> Vec<Ticket> {
        self.close(number);
        let Some(sequence) = self.sequences.get_mut(&number) else { return Vec::new() };
        let mut removed = Vec::new();
        for ((_, ticket), waiting) in std::mem::take(&mut sequence.waiting) {
            self.forget_request(ticket, &waiting);
            removed.push(ticket);
        }
        removed
    }

    /// Call this when a waiting request was removed from its sequence.
    fn forget_request(&mut self, ticket: Ticket, waiting: &Waiting) {
        self.tickets.remove(&ticket);
        self.occupancy.remove(waiting.arrival.client.peer, ticket);
        if let Some(deadline) = waiting.arrival.deadline {
            self.deadlines.remove(&(deadline.at_us, ticket));
        }
    }

    /// Frees the slot of a sequence that is over, and gives it to the next one. Returns that one. A sequence without requests that is not over is
    /// idle from now on.
    pub fn settle(&mut self, number: SequenceNumber, now_us: u64) -> Option<SequenceNumber> {
        let sequence = self.sequences.get_mut(&number)?;
        if sequence.running.is_some() || !sequence.waiting.is_empty() {
            return None;
        }
        if !sequence.ended {
            self.idle.remove(&(sequence.idle_at_us, number));
            sequence.idle_at_us = now_us.saturating_add(self.idle_us);
            self.idle.insert((sequence.idle_at_us, number));
            return None;
        }
        self.leave(number)
    }

    /// Removes a sequence without requests. Gives its slot to the one that follows it, unless another peer comes first, or else to the first of the
    /// backlog. Returns the one that got it.
    fn leave(&mut self, number: SequenceNumber) -> Option<SequenceNumber> {
        let (slot, followed_by) = self.forget(number);
        let slot = slot?;
        let behind = followed_by.and_then(|behind| Some((behind, self.sequences.get_mut(&behind)?)));
        let Some((behind, sequence)) = behind else { return self.give_on(slot) };
        let (client, place) = (sequence.client, sequence.place);
        if self.backlog.is_before(client.peer) {
            self.backlog.add(client, place, behind);
            self.set_placed(behind, false);
            return self.give_on(slot);
        }
        sequence.slot = Some(slot);
        self.backlog.took_slot(client);
        Some(behind)
    }

    /// Gives a free slot to the first of the backlog, unless no sequence starts there. Returns that one.
    fn give_on(&mut self, slot: SequenceSlot) -> Option<SequenceNumber> {
        if self.is_withheld(slot) {
            self.withheld.insert(slot);
            return None;
        }
        let Some(next) = self.backlog.take_first() else {
            self.free.insert(slot);
            return None;
        };
        self.sequences.get_mut(&next)?.slot = Some(slot);
        self.set_placed(next, true);
        Some(next)
    }

    /// Call this when a sequence got a slot, or went to the backlog. While it has a slot, deadlines do not apply to its requests and to those of the
    /// sequences that follow it.
    fn set_placed(&mut self, first: SequenceNumber, is_placed: bool) {
        let mut next = Some(first);
        while let Some(sequence) = next.and_then(|number| self.sequences.get_mut(&number)) {
            if std::mem::replace(&mut sequence.is_placed, is_placed) == is_placed {
                return;
            }
            for ((_, ticket), waiting) in &sequence.waiting {
                let Some(deadline) = waiting.arrival.deadline else { continue };
                if is_placed {
                    self.deadlines.remove(&(deadline.at_us, *ticket));
                } else {
                    self.deadlines.insert((deadline.at_us, *ticket));
                }
            }
            next = sequence.followed_by;
        }
    }

    /// Removes a sequence without requests. Returns its slot, and the sequence that follows it. That one takes its place in the backlog if it had
    /// one.
    fn forget(&mut self, number: SequenceNumber) -> (Option<SequenceSlot>, Option<SequenceNumber>) {
        let Some(sequence) = self.sequences.remove(&number) else { return (None, None) };
        let Sequence { key, client, slot, follows, followed_by, place, idle_at_us, .. } = sequence;
        if slot.is_some() {
            self.backlog.left_slot(client);
        }
        self.over.push(number.0);
        self.idle.remove(&(idle_at_us, number));
        if let Some(before) = follows.and_then(|before| self.sequences.get_mut(&before)) {
            before.followed_by = followed_by;
        }
        if let Some(behind) = followed_by.and_then(|behind| self.sequences.get_mut(&behind)) {
            behind.follows = follows;
        }
        // A client may cancel the new sequence while a request of an earlier one runs. The next START follows the earlier one then.
        if self.last.get(&key) == Some(&number) {
            match follows {
                Some(before) => self.last.insert(key, before),
                None => self.last.remove(&key),
            };
        }
        let behind = followed_by.and_then(|behind| Some((self.sequences.get(&behind)?.client, behind)));
        self.backlog.remove(client, place, number, behind);
        (slot, followed_by)
    }

    /// The next time at which [`SequenceTable::expire`] has something to do.
    pub fn next_due_us(&self) -> Option<u64> {
        let idle = self.idle.first().map(|(at_us, _)| *at_us);
        idle.into_iter().chain(self.deadlines.first().map(|(at_us, _)| *at_us)).min()
    }

    /// Ends sequences that were idle for too long, and sequences of the backlog with a request that waited too long. Adds sequences that got a slot
    /// to `placed`. Returns the requests that are to be rejected.
    pub fn expire(&mut self, now_us: u64, placed: &mut Vec<SequenceNumber>) -> Vec<Ticket> {
        while let Some((_, number)) = self.idle.first().copied().filter(|(at_us, _)| *at_us <= now_us) {
            placed.extend(self.leave(number));
        }
        let mut rejected = Vec::new();
        while let Some((_, ticket)) = self.deadlines.first().copied().filter(|(at_us, _)| *at_us <= now_us) {
            self.deadlines.pop_first();
            let Some(number) = self.tickets.get(&ticket).copied() else { continue };
            rejected.append(&mut self.end(number));
            self.forget(number);
        }
        rejected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::SequenceId;

    /// Starts a sequence for each letter and ends one for each `-letter`. Returns the slots of the started ones, as `position.instance`.
    #[track_caller]
    fn check(instances: usize, slots_per_instance: usize, steps: &str, expect: &str) {
        let mut table = SequenceTable::new(instances, slots_per_instance, 1_000_000);
        let mut started = HashMap::new();
        let mut slots = Vec::new();
        for step in steps.split(' ') {
            if let Some(ended) = step.strip_prefix('-') {
                table.leave(started[ended]);
                continue;
            }
            let number =
                table.start(&SequenceKey { owner: 0, id: SequenceId::Text(step.into()) }, Client::default(), 0);
            started.insert(step, number);
            slots.push(match table.sequences[&number].slot {
                Some(slot) => format!("{}.{}", slot.position, slot.instance.0),
                None => "none".to_owned(),
            });
        }
        assert_eq!(slots.join(" "), expect, "{instances} instances, {slots_per_instance} slots, {steps}");
    }

    #[test]
    fn the_smallest_free_slot_is_taken_first() {
        check(2, 2, "a b c d e", "0.0 0.1 1.0 1.1 none");
        check(2, 2, "a b c -b -a d e f g", "0.0 0.1 1.0 0.0 0.1 1.1 none");
        check(1, 1, "a b -a c", "0.0 none none");
        check(0, 4, "a", "none");
    }

    #[test]
    fn billions_of_slots_take_no_memory() {
        check(1024, i32::MAX as usize, "a b -a c", "0.0 0.1 0.0");
        check(usize::MAX, usize::MAX, "a b", "0.0 0.1");
    }
}
