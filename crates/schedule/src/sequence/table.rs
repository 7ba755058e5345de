//! Which sequences exist, which have a slot, and which requests of them wait?
//!
//! A sequence takes a slot (Triton: a position of an instance) when it starts. It leaves the slot after its last request, or when no request came for
//! too long. Sequences without a slot wait in the [`backlog`], which clients share. If a waiting request is cancelled, its sequence ends, and all
//! waiting requests of the sequence are removed: the model must not see a sequence with a request left out. Each operation takes logarithmic time for
//! each request that it adds or removes.
//!
//! A sequence keeps its slot when its instance is removed. If another one follows it, that one gets a slot elsewhere.
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
mod slots;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use self::backlog::Backlog;
use self::slots::{SequenceSlot, Slots};
use crate::Context;
use crate::action::{Controls, Rejection};
use crate::event::{Arrival, Client, InstanceChange, InstanceId, Repeat, SequenceKey, SequenceStep, Ticket};
use crate::occupancy::Occupancy;

/// The number of a sequence, in the order in which they started. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SequenceNumber(pub u64);

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub arrival: Arrival,
    pub since_us: u64,
}

/// The place in the queue that a waiting request has.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuePlace {
    peer: u64,
    /// Whether the request starts its sequence.
    starts: bool,
}

impl QueuePlace {
    /// A request that runs again has none.
    pub fn of(arrival: &Arrival) -> Option<QueuePlace> {
        let starts = arrival.sequence.as_ref().is_some_and(|step| step.start);
        (!matches!(arrival.repeat, Repeat::Of(_))).then_some(QueuePlace { peer: arrival.client.peer, starts })
    }
}

/// False for a request that runs again: it is before the others of its sequence.
type IsLater = bool;

#[derive(Debug)]
struct Sequence {
    key: SequenceKey,
    /// The client in whose turns it gets a slot.
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
    /// The most waiting requests that start sequences, and as many further ones. `None` for no limit.
    requests_max: Option<usize>,
    started: u64,
    sequences: HashMap<SequenceNumber, Sequence>,
    /// The newest sequence of each owner and id, until its END arrives. It takes more requests unless it has ended in another way. The next sequence
    /// of the same key follows it.
    last: HashMap<SequenceKey, SequenceNumber>,
    tickets: HashMap<Ticket, SequenceNumber>,
    /// The slots that no sequence has.
    slots: Slots,
    /// Sequences that wait for a slot and follow no other.
    backlog: Backlog,
    /// Waiting requests that start sequences, and further requests of sequences. Requests that run again are in neither.
    starting: Occupancy,
    further: Occupancy,
    /// The deadlines of requests in the backlog.
    deadlines: BTreeSet<(u64, Ticket)>,
    /// Sequences without a waiting or running request, by the time at which they end.
    idle: BTreeSet<(u64, SequenceNumber)>,
    /// The numbers of sequences that are over and were not reported yet.
    over: Vec<u64>,
}

impl SequenceTable {
    /// A table with this number of slots on each instance. A sequence ends when no request came for `idle_us`.
    pub fn new(
        instances: usize,
        slots_per_instance: usize,
        idle_us: u64,
        requests_max: Option<usize>,
    ) -> SequenceTable {
        SequenceTable {
            idle_us,
            requests_max,
            started: 0,
            sequences: HashMap::new(),
            last: HashMap::new(),
            tickets: HashMap::new(),
            slots: Slots::new(instances, slots_per_instance),
            backlog: Backlog::default(),
            starting: Occupancy::default(),
            further: Occupancy::default(),
            deadlines: BTreeSet::new(),
            idle: BTreeSet::new(),
            over: Vec::new(),
        }
    }

    /// Reports the sequences that are over, and the removed instances on which no sequence has a slot any more.
    pub fn report(&mut self, context: &mut Context<'_>) {
        context.actions.over.append(&mut self.over);
        context.actions.unbound.append(self.slots.unbound());
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

    /// Whether one more request of that peer may wait. Further requests have places of their own: they let sequences end, and those that start
    /// sequences wait for that.
    fn check_place(&self, step: &SequenceStep, peer: u64) -> Result<(), Rejection> {
        if !step.start && !self.is_open(&step.key) {
            return Err(Rejection::MissingStart);
        }
        let waiting = if step.start { &self.starting } else { &self.further };
        let has_place = self.requests_max.is_none_or(|limit| waiting.has_place(peer, limit));
        if has_place { Ok(()) } else { Err(Rejection::Overloaded) }
    }

    /// Call this when a request that was taken does not wait any more, in a batcher either.
    pub fn waits_no_more(&mut self, place: Option<QueuePlace>) {
        let Some(QueuePlace { peer, starts }) = place else { return };
        let waiting = if starts { &mut self.starting } else { &mut self.further };
        waiting.remove(peer);
    }

    /// Adds a request. If it starts a sequence again, the slot of the earlier one may go to a third one. That one is added to `placed`.
    pub fn push(&mut self, arrival: Arrival, now_us: u64, placed: &mut Vec<SequenceNumber>) -> Result<(), Rejection> {
        if let Repeat::Of(number) = arrival.repeat {
            return self.push_again(SequenceNumber(number), arrival, now_us);
        }
        let step = arrival.sequence.clone().ok_or(Rejection::MissingStart)?;
        self.check_place(&step, arrival.client.peer)?;
        let number = match self.last.get(&step.key).copied() {
            Some(last) if step.start => self.start_again(last, &step.key, arrival.turns_of(), now_us, placed),
            None if step.start => self.start(&step.key, arrival.turns_of(), now_us),
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
        let waiting = if step.start { &mut self.starting } else { &mut self.further };
        waiting.add(arrival.client.peer);
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
        let slot = if self.backlog.is_empty() { self.slots.take() } else { None };
        let number = self.start_in(slot, key, client, now_us);
        if slot.is_none() {
            self.backlog.add(client, number, number);
        }
        number
    }

    /// Notes a change of an instance. Returns the sequences of the backlog that got a slot.
    pub fn change(&mut self, at: InstanceId, change: InstanceChange) -> Vec<SequenceNumber> {
        match change {
            InstanceChange::Added => self.slots.add(at),
            InstanceChange::Removed => self.slots.remove(at),
            InstanceChange::Down => self.slots.set_down(at, true),
            InstanceChange::Up => self.slots.set_down(at, false),
        }
        std::iter::from_fn(|| self.fill()).collect()
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
                (Some(slot), _)
                    if !self.slots.takes_no_sequence(slot.instance) && !self.backlog.is_before(client.peer) =>
                {
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

    /// Removes the next request of a sequence, which runs now or waits on in a batcher. Returns it with its controls.
    pub fn take(&mut self, number: SequenceNumber) -> Option<(Waiting, Controls)> {
        let sequence = self.sequences.get_mut(&number).filter(|sequence| sequence.running.is_none())?;
        let ((_, ticket), waiting) = sequence.waiting.pop_first()?;
        sequence.running = Some(ticket);
        self.tickets.remove(&ticket);
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
        self.waits_no_more(QueuePlace::of(&waiting.arrival));
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

    /// Removes a sequence without requests. Gives its slot to the one that follows it, unless another peer comes first or the instance was removed. Then
    /// the one that follows it waits in the backlog. Returns the one that got a slot.
    fn leave(&mut self, number: SequenceNumber) -> Option<SequenceNumber> {
        let (slot, followed_by) = self.forget(number);
        let slot = slot?;
        let behind = followed_by.and_then(|behind| Some((behind, self.sequences.get_mut(&behind)?)));
        let Some((behind, sequence)) = behind else { return self.give_on(slot) };
        let (client, place) = (sequence.client, sequence.place);
        if self.slots.is_removed(slot.instance) || self.backlog.is_before(client.peer) {
            self.backlog.add(client, place, behind);
            self.set_placed(behind, false);
            return self.give_on(slot);
        }
        sequence.slot = Some(slot);
        self.backlog.took_slot(client);
        Some(behind)
    }

    /// Puts back a slot, and gives it to the first of the backlog if a sequence may start there. Returns the sequence that got a slot.
    fn give_on(&mut self, slot: SequenceSlot) -> Option<SequenceNumber> {
        self.slots.put(slot);
        self.fill()
    }

    /// Gives a free slot to the first of the backlog. Returns that one.
    fn fill(&mut self) -> Option<SequenceNumber> {
        let slot = if self.backlog.is_empty() { None } else { self.slots.take() };
        let slot = slot?;
        let next = self.backlog.take_first()?;
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
