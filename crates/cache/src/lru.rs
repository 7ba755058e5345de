//! Which responses are kept, and which are dropped for others?
//!
//! The least recently used one is dropped first. Each operation takes time in the logarithm of the number of responses.

use std::collections::{BTreeMap, HashMap};

use crate::Key;
use crate::limits::{ENTRIES_MAX, EVICTED_MAX};

/// Values by key, with the bytes that each counts for.
#[derive(Debug)]
pub struct Lru<V> {
    bytes_max: u64,
    bytes: u64,
    /// The logical time of the last use. It advances with each use.
    now: u64,
    entries: HashMap<Key, Entry<V>>,
    by_use: BTreeMap<u64, Key>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: u64,
    used_at: u64,
}

/// The outcome of storing a value.
#[derive(Debug, PartialEq, Eq)]
pub enum Inserted<V> {
    /// It is kept. These values were evicted for it.
    Kept(Vec<V>),
    /// A value with its key is already kept.
    Known,
    /// It is larger than the limit of all values together.
    TooLarge,
    /// It is not kept, although these values were evicted: no more may be evicted at once. A later call finds more room.
    Crowded(Vec<V>),
}

impl<V> Lru<V> {
    /// An empty one that holds at most this many bytes.
    pub fn new(bytes_max: u64) -> Lru<V> {
        Lru { bytes_max, bytes: 0, now: 0, entries: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// The value for that key. This counts as a use.
    pub fn get(&mut self, key: &Key) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        self.now += 1;
        self.by_use.remove(&entry.used_at);
        entry.used_at = self.now;
        self.by_use.insert(self.now, *key);
        Some(&entry.value)
    }

    /// Whether a value of this many bytes could be kept for that key.
    pub fn takes(&self, key: &Key, bytes: u64) -> bool {
        bytes <= self.bytes_max && !self.entries.contains_key(key)
    }

    /// Keeps a value, and evicts others for it.
    pub fn insert(&mut self, key: Key, value: V, bytes: u64) -> Inserted<V> {
        if self.entries.contains_key(&key) {
            return Inserted::Known;
        }
        if bytes > self.bytes_max {
            return Inserted::TooLarge;
        }
        let mut evicted = Vec::new();
        while self.bytes.saturating_add(bytes) > self.bytes_max || self.entries.len() >= ENTRIES_MAX {
            if evicted.len() >= EVICTED_MAX {
                return Inserted::Crowded(evicted);
            }
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            let Some(entry) = self.entries.remove(&oldest) else { continue };
            self.bytes -= entry.bytes;
            evicted.push(entry.value);
        }
        self.now += 1;
        self.bytes += bytes;
        self.by_use.insert(self.now, key);
        self.entries.insert(key, Entry { value, bytes, used_at: self.now });
        Inserted::Kept(evicted)
    }

    /// Values that are kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that may be kept.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::KeyWriter;

    fn key(number: u64) -> Key {
        KeyWriter::new(number).finish()
    }

    /// Each word inserts a value of this many bytes for a letter (`a3`) or uses one (`a`). Checks what is there at the end.
    #[track_caller]
    fn check(operations: &str, expect: &str) {
        let mut lru = Lru::new(10);
        for operation in operations.split_whitespace() {
            let (letter, bytes) = operation.split_at(1);
            let number = u64::from(letter.as_bytes()[0]);
            match bytes.parse() {
                Ok(bytes) => drop(lru.insert(key(number), letter, bytes)),
                Err(_) => drop(lru.get(&key(number))),
            }
        }
        let letters = (b'a'..=b'z').filter(|letter| lru.entries.contains_key(&key(u64::from(*letter))));
        assert_eq!(String::from_utf8(letters.collect()).expect("letters"), expect, "{operations}");
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        check("a4 b4", "ab");
        check("a4 b4 c4", "bc");
        check("a4 b4 a c4", "ac");
        check("a4 b4 c8", "c");
        check("a4 b4 c10", "c");
        check("a4 b4 c11", "ab");
        check("a4 a9", "a");
    }

    #[test]
    fn one_value_makes_room_step_by_step() {
        let mut lru = Lru::new(3 * EVICTED_MAX as u64 / 2);
        for number in 0..lru.bytes_max() {
            assert_eq!(lru.insert(key(number), number, 1), Inserted::Kept(Vec::new()));
        }
        let large = key(u64::MAX);
        assert!(matches!(lru.insert(large, 0, lru.bytes_max()), Inserted::Crowded(gone) if gone.len() == EVICTED_MAX));
        assert!(matches!(lru.insert(large, 0, lru.bytes_max()), Inserted::Kept(gone) if gone.len() == EVICTED_MAX / 2));
    }

    proptest! {
        #[test]
        fn it_never_holds_more_than_it_may_and_loses_nothing_else(
            operations in prop::collection::vec((0u64..20, 0u64..40), 0..200), bytes_max in 0u64..100,
        ) {
            let mut lru = Lru::new(bytes_max);
            let mut there = 0;
            for (number, bytes) in operations {
                match lru.insert(key(number), bytes, bytes) {
                    Inserted::Kept(evicted) => {
                        there = there + 1 - evicted.len();
                        prop_assert!(lru.get(&key(number)) == Some(&bytes));
                    }
                    Inserted::Known => prop_assert!(lru.get(&key(number)).is_some()),
                    Inserted::TooLarge => prop_assert!(bytes > bytes_max),
                    Inserted::Crowded(_) => prop_assert!(false, "few are there"),
                }
                let sum: u64 = lru.entries.values().map(|entry| entry.bytes).sum();
                prop_assert_eq!((lru.len(), lru.by_use.len(), lru.bytes()), (there, there, sum));
                prop_assert!(sum <= bytes_max);
            }
        }
    }
}
