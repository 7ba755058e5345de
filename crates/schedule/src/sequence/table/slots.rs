//! Which slots may a sequence take?
//!
//! The smallest one that is free, so sequences spread over the instances. Instances come and go meanwhile. No sequence starts on an instance that was
//! removed, or that is down while another is not. Those that have a slot there keep it.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::InstanceId;

/// A place for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::sequence) struct SequenceSlot {
    /// This field is compared first, so the smallest slot has the smallest position, and sequences spread over the instances.
    pub position: usize,
    pub instance: InstanceId,
}

/// The slots of all instances that no sequence has.
#[derive(Debug, Default)]
pub(super) struct Slots {
    per_instance: usize,
    /// The instances, except removed ones, and how many slots of each were taken at least once.
    instances: BTreeMap<InstanceId, usize>,
    /// Slots that were put back, and the first slot of each instance that was never taken. Those behind it take no memory, because a configuration may
    /// have billions of slots.
    free: BTreeSet<SequenceSlot>,
    /// Instances whose process has died.
    down: BTreeSet<InstanceId>,
    /// Slots that would be free if their instance were not down.
    withheld: BTreeSet<SequenceSlot>,
    /// Removed instances, and how many slots of each are taken.
    leaving: BTreeMap<InstanceId, usize>,
    /// Removed instances of which no slot is taken any more.
    unbound: Vec<InstanceId>,
}

impl Slots {
    /// This number of slots on each instance.
    pub fn new(instances: usize, per_instance: usize) -> Slots {
        let mut slots = Slots { per_instance, ..Slots::default() };
        (0..instances).for_each(|at| slots.set_used(InstanceId(at), 0));
        slots
    }

    /// Takes the smallest free slot.
    pub fn take(&mut self) -> Option<SequenceSlot> {
        let slot = self.free.pop_first()?;
        if self.instances.get(&slot.instance) == Some(&slot.position) {
            self.set_used(slot.instance, slot.position + 1);
        }
        Some(slot)
    }

    /// Puts back a slot that was taken.
    pub fn put(&mut self, slot: SequenceSlot) {
        if let Some(taken) = self.leaving.get_mut(&slot.instance) {
            *taken -= 1;
            self.note_unbound(slot.instance);
        } else if self.takes_no_sequence(slot.instance) {
            self.withheld.insert(slot);
        } else {
            self.free.insert(slot);
        }
    }

    /// Whether an instance was removed.
    pub fn is_removed(&self, at: InstanceId) -> bool {
        self.leaving.contains_key(&at)
    }

    /// Whether no sequence starts on an instance, because it was removed or is down. If all instances are down, all are used.
    pub fn takes_no_sequence(&self, at: InstanceId) -> bool {
        self.is_removed(at) || self.down.contains(&at) && self.down.len() < self.instances.len()
    }

    /// Adds an instance.
    pub fn add(&mut self, at: InstanceId) {
        self.set_used(at, 0);
        self.sort();
    }

    /// Removes an instance.
    pub fn remove(&mut self, at: InstanceId) {
        let Some(used) = self.instances.remove(&at) else { return };
        self.down.remove(&at);
        let is_its_own = |slot: &&SequenceSlot| slot.instance == at && slot.position < used;
        let left = self.free.iter().chain(&self.withheld).filter(is_its_own).count();
        self.free.retain(|slot| slot.instance != at);
        self.withheld.retain(|slot| slot.instance != at);
        self.leaving.insert(at, used - left);
        self.note_unbound(at);
        self.sort();
    }

    /// Notes whether an instance is down.
    pub fn set_down(&mut self, at: InstanceId, is_down: bool) {
        if is_down {
            self.down.insert(at);
        } else {
            self.down.remove(&at);
        }
        self.sort();
    }

    /// Removed instances of which no slot is taken any more, and which were not reported yet.
    pub fn unbound(&mut self) -> &mut Vec<InstanceId> {
        &mut self.unbound
    }

    /// Notes how many slots of an instance were taken at least once. The next one is free.
    fn set_used(&mut self, instance: InstanceId, used: usize) {
        self.instances.insert(instance, used);
        if used < self.per_instance {
            self.free.insert(SequenceSlot { position: used, instance });
        }
    }

    fn note_unbound(&mut self, at: InstanceId) {
        if self.leaving.get(&at) == Some(&0) {
            self.leaving.remove(&at);
            self.unbound.push(at);
        }
    }

    /// Separates the slots that may be taken from those that may not.
    fn sort(&mut self) {
        let mut all = std::mem::take(&mut self.free);
        all.append(&mut self.withheld);
        (self.withheld, self.free) = all.into_iter().partition(|slot| self.takes_no_sequence(slot.instance));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `t` takes a slot, and `-1.0` puts slot 1 of instance 0 back. `+2` adds instance 2, `x2` removes it, `!2` says that it is down, and `^2` that it
    /// is up. Checks which slots were taken, and which removed instances were reported as `x2`.
    #[track_caller]
    fn check(instances: usize, per_instance: usize, steps: &str, expect: &str) {
        let mut slots = Slots::new(instances, per_instance);
        let mut shown = Vec::new();
        for step in steps.split(' ') {
            let number = |text: &str| text.parse().expect("a number");
            let at = || InstanceId(number(&step[1..]));
            match step.as_bytes()[0] {
                b't' => shown.push(match slots.take() {
                    Some(slot) => format!("{}.{}", slot.position, slot.instance.0),
                    None => "none".to_owned(),
                }),
                b'-' => {
                    let (position, instance) = step[1..].split_once('.').expect("a slot");
                    slots.put(SequenceSlot { position: number(position), instance: InstanceId(number(instance)) });
                }
                b'+' => slots.add(at()),
                b'x' => slots.remove(at()),
                sign => slots.set_down(at(), sign == b'!'),
            }
            shown.extend(slots.unbound().drain(..).map(|at| format!("x{}", at.0)));
        }
        assert_eq!(shown.join(" "), expect, "{instances} instances, {per_instance} slots, {steps}");
    }

    #[test]
    fn the_smallest_free_slot_is_taken_first() {
        check(2, 2, "t t t t t", "0.0 0.1 1.0 1.1 none");
        check(2, 2, "t t t -0.1 -0.0 t t t t", "0.0 0.1 1.0 0.0 0.1 1.1 none");
        check(0, 4, "t", "none");
    }

    #[test]
    fn an_added_instance_brings_slots() {
        check(1, 2, "t t t +1 t t t", "0.0 1.0 none 0.1 1.1 none");
        check(2, 2, "t t t +2 t t", "0.0 0.1 1.0 0.2 1.1");
        // The number of a removed instance is given to another one.
        check(1, 2, "t t -1.0 +1 x0 -0.0 +0 t t t", "0.0 1.0 x0 0.0 0.1 1.0");
    }

    #[test]
    fn a_removed_instance_is_reported_when_no_slot_of_it_is_taken() {
        check(2, 2, "x1 t t t", "x1 0.0 1.0 none");
        check(2, 2, "t t x1 t t -0.1 t", "0.0 0.1 1.0 none x1 none");
        check(2, 2, "t t t t -1.1 x1 -0.1 -0.0 t", "0.0 0.1 1.0 1.1 x1 0.0");
        check(1, 3, "t t x0 t -1.0 -0.0 x0", "0.0 1.0 none x0");
    }

    #[test]
    fn an_instance_that_is_down_is_used_only_if_all_are() {
        check(2, 1, "!0 t t ^0 t", "0.1 none 0.0");
        check(2, 1, "t !0 -0.0 t t ^0 t", "0.0 0.1 none 0.0");
        check(2, 1, "!0 !1 t t", "0.0 0.1");
        check(2, 1, "!0 x1 t", "x1 0.0");
        check(1, 1, "!0 +1 t t", "0.1 none");
        // It is removed while it is down.
        check(2, 1, "t !0 x0 -0.0 t t", "0.0 x0 0.1 none");
    }

    #[test]
    fn billions_of_slots_take_no_memory() {
        check(1024, usize::MAX, "t t -0.0 t x1 -0.1", "0.0 0.1 0.0 x1");
    }
}
