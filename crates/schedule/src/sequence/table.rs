//! Which sequences exist, which have a slot, and which requests of them wait?
//!
//! A sequence takes a slot (Triton: a position of an instance) when it starts. It leaves the slot after its last request, or when no request came for
//! too long. Sequences without a slot wait in the backlog, first come, first served. Each operation takes logarithmic time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::action::{Controls, Rejection};
use crate::event::{Arrival, InstanceId, Repeat, SequenceId, SequenceStep, Ticket};

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
    id: SequenceId,
    /// A request that runs again is first, also before smaller tickets.
    waiting: BTreeMap<(IsLater, Ticket), Waiting>,
    slot: Option<SequenceSlot>,
    /// Whether an instance has a request of it.
    runs: bool,
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
    /// Sequences that may get more requests.
    open: HashMap<SequenceId, SequenceNumber>,
    tickets: HashMap<Ticket, SequenceNumber>,
    free: BTreeSet<SequenceSlot>,
    backlog: BTreeSet<SequenceNumber>,
    /// The deadlines of requests in the backlog.
    deadlines: BTreeSet<(u64, Ticket)>,
    /// Sequences without a waiting or running request, by the time at which they end.
    idle: BTreeSet<(u64, SequenceNumber)>,
    /// Sequences that are over, and were not reported yet.
    over: Vec<u64>,
}

impl SequenceTable {
    /// A table with this number of slots on each instance. A sequence ends when no request came for `idle_us`.
    pub fn new(instances: usize, slots_per_instance: usize, idle_us: u64) -> SequenceTable {
        let slot =
            |position| (0..instances).map(move |instance| SequenceSlot { position, instance: InstanceId(instance) });
        SequenceTable {
            idle_us,
            started: 0,
            sequences: HashMap::new(),
            open: HashMap::new(),
            tickets: HashMap::new(),
            free: (0..slots_per_instance).flat_map(slot).collect(),
            backlog: BTreeSet::new(),
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
        let waiting = self.backlog.iter().filter_map(|number| self.sequences.get(number));
        waiting.map(|sequence| sequence.waiting.len()).sum()
    }

    /// Adds a request. Returns the slot of its sequence, if it has one.
    pub fn push(&mut self, arrival: Arrival, now_us: u64) -> Result<Option<SequenceSlot>, Rejection> {
        if let Repeat::Of(number) = arrival.repeat {
            return self.push_again(SequenceNumber(number), arrival, now_us);
        }
        let step = arrival.sequence.clone().ok_or(Rejection::MissingStart)?;
        let number = match self.open.get(&step.id).copied() {
            Some(number) if step.start => self.start_again(number, &step.id, now_us),
            Some(number) => number,
            None if step.start => self.start(&step.id, now_us),
            None => return Err(Rejection::MissingStart),
        };
        let Some(sequence) = self.sequences.get_mut(&number) else { return Err(Rejection::MissingStart) };
        self.idle.remove(&(sequence.idle_at_us, number));
        sequence.idle_at_us = now_us.saturating_add(self.idle_us);
        sequence.repeats = arrival.repeat == Repeat::Possible;
        if step.end {
            sequence.ended = true;
            self.open.remove(&step.id);
        }
        let (ticket, slot) = (arrival.ticket, sequence.slot);
        if let Some(deadline) = arrival.deadline.filter(|_| slot.is_none()) {
            self.deadlines.insert((deadline.at_us, ticket));
        }
        self.tickets.insert(ticket, number);
        sequence.waiting.insert((true, ticket), Waiting { arrival, since_us: now_us });
        Ok(slot)
    }

    /// Adds a running request that is to run again, before all others of its sequence.
    fn push_again(
        &mut self,
        number: SequenceNumber,
        arrival: Arrival,
        now_us: u64,
    ) -> Result<Option<SequenceSlot>, Rejection> {
        let sequence = self.sequences.get_mut(&number).filter(|sequence| sequence.runs).ok_or(Rejection::RunEnded)?;
        let (ticket, id) = (arrival.ticket, sequence.id.clone());
        let arrival = Arrival { sequence: Some(SequenceStep { id, start: false, end: false }), ..arrival };
        self.tickets.insert(ticket, number);
        sequence.waiting.insert((false, ticket), Waiting { arrival, since_us: now_us });
        Ok(sequence.slot)
    }

    fn start(&mut self, id: &SequenceId, now_us: u64) -> SequenceNumber {
        // Sequences in the backlog come first.
        let slot = if self.backlog.is_empty() { self.free.pop_first() } else { None };
        self.start_in(slot, id, now_us)
    }

    fn start_in(&mut self, slot: Option<SequenceSlot>, id: &SequenceId, now_us: u64) -> SequenceNumber {
        self.started += 1;
        let number = SequenceNumber(self.started);
        if slot.is_none() {
            self.backlog.insert(number);
        }
        let idle_at_us = now_us.saturating_add(self.idle_us);
        let waiting = BTreeMap::new();
        let (runs, ended, repeats) = (false, false, false);
        let sequence = Sequence { id: id.clone(), waiting, slot, runs, ended, repeats, idle_at_us };
        self.sequences.insert(number, sequence);
        self.open.insert(id.clone(), number);
        number
    }

    /// Ends a sequence when a new one with the same id starts. The new one takes its slot if no request of the old one is left.
    fn start_again(&mut self, old: SequenceNumber, id: &SequenceId, now_us: u64) -> SequenceNumber {
        let is_over = match self.sequences.get_mut(&old) {
            Some(sequence) => {
                sequence.ended = true;
                !sequence.runs && sequence.waiting.is_empty()
            }
            None => false,
        };
        match if is_over { self.forget(old) } else { None } {
            Some(slot) => self.start_in(Some(slot), id, now_us),
            None => self.start(id, now_us),
        }
    }

    /// Ends all sequences, because no more requests come: each is over when its waiting and running requests are done. Those that have none leave
    /// their slots at once. Adds the sequences that got a slot by that to `placed`.
    pub fn end_all(&mut self, placed: &mut Vec<SequenceNumber>) {
        self.open.clear();
        self.sequences.values_mut().for_each(|sequence| sequence.ended = true);
        while let Some((_, number)) = self.idle.first().copied() {
            placed.extend(self.leave(number));
        }
    }

    /// The sequence of a waiting request.
    pub fn sequence_of(&self, ticket: Ticket) -> Option<SequenceNumber> {
        self.tickets.get(&ticket).copied()
    }

    /// The next request of a sequence that has a slot, if it may run now.
    pub fn next_of(&self, number: SequenceNumber) -> Option<(&Waiting, SequenceSlot)> {
        let sequence = self.sequences.get(&number).filter(|sequence| !sequence.runs)?;
        let (_, waiting) = sequence.waiting.first_key_value()?;
        Some((waiting, sequence.slot?))
    }

    /// Removes the next request of a sequence, which runs now. Returns it with its controls.
    pub fn take(&mut self, number: SequenceNumber) -> Option<(Waiting, Controls)> {
        let sequence = self.sequences.get_mut(&number).filter(|sequence| !sequence.runs)?;
        let ((_, ticket), waiting) = sequence.waiting.pop_first()?;
        sequence.runs = true;
        self.tickets.remove(&ticket);
        let step = waiting.arrival.sequence.as_ref()?;
        let controls = Controls { start: step.start, end: step.end, id: step.id.clone(), state: number.0 };
        Some((waiting, controls))
    }

    /// The request of a sequence that ran is done.
    pub fn done(&mut self, number: SequenceNumber, now_us: u64) -> Option<SequenceNumber> {
        let sequence = self.sequences.get_mut(&number)?;
        sequence.runs = false;
        self.end_unless_repeated(number);
        self.settle(number, now_us)
    }

    /// Ends a sequence that has no running request and none that runs again, if its last request was run.
    fn end_unless_repeated(&mut self, number: SequenceNumber) {
        let Some(sequence) = self.sequences.get_mut(&number).filter(|sequence| sequence.repeats) else { return };
        let comes_again = sequence.waiting.first_key_value().is_some_and(|((is_later, _), _)| !is_later);
        if sequence.runs || comes_again {
            return;
        }
        sequence.ended = true;
        if self.open.get(&sequence.id) == Some(&number) {
            self.open.remove(&sequence.id);
        }
    }

    /// Removes a request that will not run. False if it does not wait. Adds the sequence that got its slot to `placed`.
    pub fn remove(&mut self, ticket: Ticket, now_us: u64, placed: &mut Vec<SequenceNumber>) -> bool {
        let Some(number) = self.tickets.remove(&ticket) else { return false };
        let remove = |sequence: &mut Sequence| {
            let again = sequence.waiting.remove(&(false, ticket));
            again.or_else(|| sequence.waiting.remove(&(true, ticket)))
        };
        let waiting = self.sequences.get_mut(&number).and_then(remove);
        if let Some(deadline) = waiting.and_then(|waiting| waiting.arrival.deadline) {
            self.deadlines.remove(&(deadline.at_us, ticket));
        }
        self.end_unless_repeated(number);
        placed.extend(self.settle(number, now_us));
        true
    }

    /// Frees the slot of a sequence that is over, and gives it to the next one. Returns that one.
    fn settle(&mut self, number: SequenceNumber, now_us: u64) -> Option<SequenceNumber> {
        let sequence = self.sequences.get_mut(&number)?;
        if sequence.runs || !sequence.waiting.is_empty() {
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

    fn leave(&mut self, number: SequenceNumber) -> Option<SequenceNumber> {
        let slot = self.forget(number)?;
        let Some(next) = self.backlog.pop_first() else {
            self.free.insert(slot);
            return None;
        };
        let sequence = self.sequences.get_mut(&next)?;
        sequence.slot = Some(slot);
        for ((_, ticket), waiting) in &sequence.waiting {
            if let Some(deadline) = waiting.arrival.deadline {
                self.deadlines.remove(&(deadline.at_us, *ticket));
            }
        }
        Some(next)
    }

    /// Removes a sequence without requests. Returns its slot.
    fn forget(&mut self, number: SequenceNumber) -> Option<SequenceSlot> {
        let sequence = self.sequences.remove(&number)?;
        self.over.push(number.0);
        self.idle.remove(&(sequence.idle_at_us, number));
        self.backlog.remove(&number);
        if self.open.get(&sequence.id) == Some(&number) {
            self.open.remove(&sequence.id);
        }
        sequence.slot
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
            let Some(sequence) = self.sequences.get(&number) else { continue };
            let waiting: Vec<(Ticket, Option<u64>)> = sequence
                .waiting
                .iter()
                .map(|((_, ticket), one)| (*ticket, one.arrival.deadline.map(|due| due.at_us)))
                .collect();
            for (ticket, due_us) in waiting {
                self.tickets.remove(&ticket);
                due_us.map(|due_us| self.deadlines.remove(&(due_us, ticket)));
                rejected.push(ticket);
            }
            self.forget(number);
        }
        rejected
    }
}
