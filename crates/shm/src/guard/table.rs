//! In which watched range does an address lie, asked without a lock?
//!
//! The reader is a signal handler: it may have interrupted anything, a writer of this table included, so it takes no lock
//! and never waits. Entries are rewritten while others are read; the sequence count of an entry says whether its two ends
//! belong together. An entry in change is passed over, which is right: the range somebody is touching is held by that
//! somebody, so its entry is not the one in change.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

pub(super) struct Table<const N: usize> {
    entries: [Entry; N],
    /// Entries from here on were never used; so a lookup reads no more of the table than there were ranges at one time.
    used: AtomicUsize,
    /// Entries below `used` that are empty. Only writers take the lock.
    free: Mutex<Vec<usize>>,
}

pub(super) struct Entry {
    /// Odd while the two ends are being written.
    sequence: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    /// 0, or 1 + the offset of the first touched byte that had no memory.
    lost: AtomicUsize,
}

impl<const N: usize> Table<N> {
    pub(super) const fn new() -> Table<N> {
        Table { entries: [const { Entry::empty() }; N], used: AtomicUsize::new(0), free: Mutex::new(Vec::new()) }
    }

    /// Enters a range, `end` being one past its last byte; `None` if the table is full.
    pub(super) fn enter(&self, start: usize, end: usize) -> Option<(usize, &Entry)> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let index = free.pop().unwrap_or_else(|| {
            let unused = self.used.load(Ordering::Relaxed);
            self.used.store((unused + 1).min(N), Ordering::Release);
            unused
        });
        let entry = self.entries.get(index)?;
        entry.lost.store(0, Ordering::Relaxed);
        entry.write(start, end);
        Some((index, entry))
    }

    /// Empties an entry that `enter` gave.
    pub(super) fn leave(&self, index: usize) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = self.entries.get(index) {
            entry.write(0, 0);
            free.push(index);
        }
    }

    /// The entry whose range `address` lies in, and that range. Safe in a signal handler.
    pub(super) fn find(&self, address: usize) -> Option<(&Entry, usize, usize)> {
        let used = self.used.load(Ordering::Acquire);
        self.entries.iter().take(used).find_map(|entry| {
            let (start, end) = entry.read()?;
            (start <= address && address < end).then_some((entry, start, end))
        })
    }
}

impl Entry {
    const fn empty() -> Entry {
        Entry {
            sequence: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
        }
    }

    /// Says that the byte at `offset` had no memory; the first one stays.
    pub(super) fn lose(&self, offset: usize) {
        let _ = self.lost.compare_exchange(0, offset.saturating_add(1), Ordering::AcqRel, Ordering::Acquire);
    }

    pub(super) fn lost_at(&self) -> Option<usize> {
        self.lost.load(Ordering::Acquire).checked_sub(1)
    }

    /// Only under the table's lock, so the count moves by one writer at a time.
    fn write(&self, start: usize, end: usize) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees one of the new ends sees the odd count in its second look, too.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Both ends as one write left them; `None` while a write is under way.
    fn read(&self) -> Option<(usize, usize)> {
        let before = self.sequence.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[track_caller]
    fn check<const N: usize>(table: &Table<N>, address: usize, expect: Option<(usize, usize)>) {
        assert_eq!(table.find(address).map(|(_, start, end)| (start, end)), expect, "{address}");
    }

    #[test]
    fn an_address_is_found_in_its_range_and_nowhere_else() {
        let table = Table::<4>::new();
        check(&table, 0, None);
        let (first, _) = table.enter(100, 200).unwrap();
        table.enter(200, 201).unwrap();
        for (address, range) in [
            (0, None),
            (99, None),
            (100, Some((100, 200))),
            (199, Some((100, 200))),
            (200, Some((200, 201))),
            (201, None),
            (usize::MAX, None),
        ] {
            check(&table, address, range);
        }
        table.leave(first);
        check(&table, 100, None);
        check(&table, 200, Some((200, 201)));
    }

    #[test]
    fn a_full_table_takes_no_more_until_one_leaves() {
        let table = Table::<2>::new();
        let (first, _) = table.enter(1, 2).unwrap();
        table.enter(2, 3).unwrap();
        for _ in 0..3 {
            assert!(table.enter(3, 4).is_none());
        }
        table.leave(first);
        table.enter(3, 4).unwrap();
        check(&table, 3, Some((3, 4)));
    }

    #[test]
    fn the_first_loss_stays_and_ends_with_its_range() {
        let table = Table::<1>::new();
        let (index, entry) = table.enter(100, 200).unwrap();
        assert_eq!(entry.lost_at(), None);
        entry.lose(0);
        entry.lose(7);
        assert_eq!(entry.lost_at(), Some(0));
        table.leave(index);
        let (_, entry) = table.enter(100, 200).unwrap();
        assert_eq!(entry.lost_at(), None);
    }

    /// Two ranges take turns in one entry. Their mixture would reach from the lower one's start to the higher one's end,
    /// over an address that neither has.
    #[test]
    fn the_ends_of_two_ranges_are_never_mixed() {
        const ROUNDS: usize = if cfg!(miri) { 200 } else { 200_000 };
        let (table, stop) = (Table::<1>::new(), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        check(&table, 500, None);
                    }
                });
            }
            for round in 0..ROUNDS {
                let (start, end) = if round % 2 == 0 { (100, 200) } else { (800, 900) };
                let (index, _) = table.enter(start, end).unwrap();
                table.leave(index);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
