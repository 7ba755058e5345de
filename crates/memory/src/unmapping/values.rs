//! Which value is dropped next?

use std::collections::{BTreeMap, VecDeque};

/// The address of an owner's account, or 0 if nobody pays for the value. A value that waits keeps the account alive, so no other account has this address
/// meanwhile.
pub type OwnerId = usize;

type Waiting = VecDeque<Box<dyn Send>>;

/// Values that wait to be dropped. Owners take turns with one value each, in the order in which they were added. So many values of one owner do not delay the
/// values of others for long.
pub(super) struct Values {
    /// The waiting values of each owner. Each entry has at least one value.
    by_owner: BTreeMap<OwnerId, Waiting>,
    /// The owners in `by_owner`, the next one first.
    turns: VecDeque<OwnerId>,
    /// The owner whose value is being dropped now.
    current: Option<OwnerId>,
}

impl Values {
    pub(super) const fn new() -> Values {
        Values { by_owner: BTreeMap::new(), turns: VecDeque::new(), current: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn push(&mut self, owner: OwnerId, value: Box<dyn Send>) {
        let values = self.by_owner.entry(owner).or_default();
        if values.is_empty() {
            self.turns.push_back(owner);
        }
        values.push_back(value);
    }

    /// The next value. Its owner moves to the end of the order. [`Values::is_current`] is true for it until [`Values::dropped`].
    pub(super) fn pop(&mut self) -> Option<Box<dyn Send>> {
        let Some(owner) = self.turns.pop_front() else {
            // This frees the memory of a queue that was long.
            *self = Values::new();
            return None;
        };
        self.turns.push_back(owner);
        self.current = Some(owner);
        self.pop_of(owner)
    }

    /// The first value of this owner.
    pub(super) fn pop_of(&mut self, owner: OwnerId) -> Option<Box<dyn Send>> {
        let values = self.by_owner.get_mut(&owner)?;
        let value = values.pop_front();
        if values.is_empty() {
            self.by_owner.remove(&owner);
            self.turns.retain(|turn| *turn != owner);
        }
        value
    }

    pub(super) fn is_current(&self, owner: OwnerId) -> bool {
        self.current == Some(owner)
    }

    pub(super) fn dropped(&mut self) {
        self.current = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    #[test]
    fn owners_take_turns_and_each_owners_values_keep_their_order() {
        let mut values = Values::new();
        let (sender, receiver) = channel();
        for (owner, number) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (2, 21)] {
            values.push(owner, Box::new(Numbered(number, sender.clone())));
        }
        let mut owners = Vec::new();
        while values.pop().is_some() {
            owners.extend((1..=3).filter(|owner| values.is_current(*owner)));
            values.dropped();
        }
        assert_eq!(owners, [1, 2, 3, 1, 2, 1]);
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [10, 20, 30, 11, 21, 12]);
        assert!(values.by_owner.is_empty() && values.is_empty());
    }

    /// Sends its number when it is dropped.
    struct Numbered(u32, Sender<u32>);

    impl Drop for Numbered {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }
}
