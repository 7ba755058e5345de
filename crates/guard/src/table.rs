//! How is the watched range of an address found without a lock?
//!
//! The reader is a signal handler. It may have interrupted any code, even a writer of this table, so it takes no lock and never waits. Entries may
//! change while they are read. The sequence count of an entry shows whether its two ends belong together (a seqlock). The reader skips an entry
//! that is being changed. That is correct: the interrupted code owns the range that it accesses, so the entry of that range is not being changed.
//!
//! ```text
//!  entries: [ watched ][ empty ][ watched ][ empty ][ never used …
//!                         ▲                   │     ▲
//!  free: changes | top ───┼───────────────────┘     used
//!                         └──── next ◄─────────  (of the top)
//! ```
//!
//! Writers take no lock either: the writer that pops an empty entry off the stack owns it until it pushes it back. The count of changes beside the
//! top prevents the ABA problem: a delayed writer cannot pop a top that was popped and pushed back meanwhile.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

pub(crate) struct Table<const N: usize> {
    entries: [Entry; N],
    /// Entries from here on were never used. So a lookup reads only as many entries as there were ranges at one time.
    used: AtomicUsize,
    /// The stack of empty entries below `used`. Upper half: the count of changes. Lower half: 0, or 1 + the index of the top.
    free: AtomicU64,
}

pub(crate) struct Entry {
    /// Odd while the two ends are being written.
    sequence: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    /// 0, or 1 + the offset of the first accessed byte that had no memory.
    lost: AtomicUsize,
    /// One of [`AS_MAPPED`], [`IN_WORK`] and [`REPLACED`].
    replacement: AtomicU32,
    /// Where the pages that were in the range before are mapped now. 0: nowhere.
    moved: AtomicUsize,
    /// The next entry on the stack of empty ones: 0, or 1 + its index.
    next: AtomicU32,
}

/// The range is as the watcher mapped it, except for single pages.
const AS_MAPPED: u32 = 0;
/// A thread replaces the range now.
const IN_WORK: u32 = 1;
/// The range was replaced as a whole.
const REPLACED: u32 = 2;

/// Memory that was moved out of a range: where it is, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// A range that is watched no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// What was moved out of it. The caller unmaps it.
    pub(crate) moved: Option<Moved>,
}

impl<const N: usize> Table<N> {
    pub(crate) const fn new() -> Table<N> {
        const { assert!(N < u32::MAX as usize, "1 + an index fits into half of `free`") };
        Table { entries: [const { Entry::empty() }; N], used: AtomicUsize::new(0), free: AtomicU64::new(0) }
    }

    /// Enters a range. `end` is one past its last byte. `None` if the table is full.
    pub(crate) fn enter(&self, start: usize, end: usize) -> Option<(usize, &Entry)> {
        let index = self.pop().or_else(|| {
            let more = |used| (used < N).then_some(used + 1);
            self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()
        })?;
        let entry = self.entries.get(index)?;
        entry.lost.store(0, Ordering::Relaxed);
        entry.replacement.store(AS_MAPPED, Ordering::Relaxed);
        entry.write(start, end);
        Some((index, entry))
    }

    /// Empties an entry that `enter` returned.
    pub(crate) fn leave(&self, index: usize) {
        if let Some(entry) = self.entries.get(index) {
            entry.write(0, 0);
            self.push(index, entry);
        }
    }

    /// Empties the entry of exactly this range. `None` if there was none. Of several concurrent callers, only one gets it.
    pub(crate) fn leave_range(&self, start: usize, end: usize) -> Option<Left> {
        let (index, entry) = self.watched().enumerate().find(|(_, entry)| entry.clear_if(start, end))?;
        let moved = entry.take_moved_of(end - start);
        self.push(index, entry);
        Some(Left { moved })
    }

    /// The entry whose range contains `address`, and that range. Safe in a signal handler.
    pub(crate) fn find(&self, address: usize) -> Option<(&Entry, usize, usize)> {
        self.watched().find_map(|entry| {
            let (start, end) = entry.read()?;
            (start <= address && address < end).then_some((entry, start, end))
        })
    }

    fn watched(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take(self.used.load(Ordering::Acquire))
    }

    /// Pops an empty entry off the stack.
    fn pop(&self) -> Option<usize> {
        let mut free = self.free.load(Ordering::Acquire);
        loop {
            let index = (free as u32).checked_sub(1)? as usize;
            let next = self.entries.get(index)?.next.load(Ordering::Relaxed);
            match self.free.compare_exchange_weak(free, change(free, next), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => free = now,
            }
        }
    }

    fn push(&self, index: usize, entry: &Entry) {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            entry.next.store(free as u32, Ordering::Relaxed);
            let new = change(free, index as u32 + 1);
            // Release: the writer that pops the entry must see what was written to it.
            match self.free.compare_exchange_weak(free, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }
}

/// The stack with another top.
fn change(free: u64, top: u32) -> u64 {
    let changes = (free >> 32).wrapping_add(1);
    changes << 32 | u64::from(top)
}

impl Entry {
    const fn empty() -> Entry {
        Entry {
            sequence: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            replacement: AtomicU32::new(AS_MAPPED),
            moved: AtomicUsize::new(0),
            next: AtomicU32::new(0),
        }
    }

    /// Notes that the byte at `offset` had no memory. The first offset stays.
    pub(crate) fn lose(&self, offset: usize) {
        let _ = self.lost.compare_exchange(0, offset.saturating_add(1), Ordering::AcqRel, Ordering::Acquire);
    }

    pub(crate) fn lost_at(&self) -> Option<usize> {
        self.lost.load(Ordering::Acquire).checked_sub(1)
    }

    /// Begins to replace the range. Only one concurrent caller gets true, until [`Entry::end_replacement`].
    pub(crate) fn begin_replacement(&self) -> bool {
        self.replacement.compare_exchange(AS_MAPPED, IN_WORK, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends what [`Entry::begin_replacement`] began. `is_whole` says whether the range was replaced.
    pub(crate) fn end_replacement(&self, is_whole: bool) {
        self.replacement.store(if is_whole { REPLACED } else { AS_MAPPED }, Ordering::Release);
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.replacement.load(Ordering::Acquire) == REPLACED
    }

    /// Whether pages were moved out of the range.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Acquire) != 0
    }

    /// Notes where the pages of the range are now.
    pub(crate) fn set_moved(&self, start: usize) {
        self.moved.store(start, Ordering::Release);
    }

    /// What was moved out of the range. The caller unmaps it.
    pub(crate) fn take_moved(&self) -> Option<Moved> {
        let (start, end) = self.read()?;
        self.take_moved_of(end - start)
    }

    fn take_moved_of(&self, len: usize) -> Option<Moved> {
        let start = self.moved.swap(0, Ordering::AcqRel);
        (start != 0).then_some(Moved { start, len })
    }

    /// Only the owner of the entry calls this, so one writer at a time changes the count.
    fn write(&self, start: usize, end: usize) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        self.finish(sequence, start, end);
    }

    /// Writes the ends after the count was made odd, and makes it even again.
    fn finish(&self, sequence: usize, start: usize, end: usize) {
        // A reader that sees one of the new ends also sees the odd count when it reads it the second time.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Empties the entry if it has this range. Only one concurrent caller gets true.
    fn clear_if(&self, start: usize, end: usize) -> bool {
        let sequence = self.sequence.load(Ordering::Acquire);
        let found = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if !sequence.is_multiple_of(2) || found != (start, end) {
            return false;
        }
        // The count has not changed, so the ends are those that were read, and this caller owns the entry now.
        let odd = sequence.wrapping_add(1);
        if self.sequence.compare_exchange(sequence, odd, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        self.finish(sequence, 0, 0);
        true
    }

    /// Both ends of one write. `None` while a write is in progress.
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

    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::vec::Vec;

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

    #[test]
    fn one_thread_replaces_a_range_and_what_it_moved_is_taken_once() {
        let table = Table::<1>::new();
        let (index, entry) = table.enter(100, 200).unwrap();
        assert!(entry.begin_replacement() && !entry.begin_replacement() && !entry.is_replaced());
        entry.end_replacement(false);
        assert!(entry.begin_replacement() && !entry.has_moved());
        entry.set_moved(5000);
        entry.end_replacement(true);
        assert!(entry.is_replaced() && !entry.begin_replacement() && entry.has_moved());
        assert_eq!(entry.take_moved(), Some(Moved { start: 5000, len: 100 }));
        assert_eq!(entry.take_moved(), None);
        entry.set_moved(6000);
        assert_eq!(table.leave_range(100, 200), Some(Left { moved: Some(Moved { start: 6000, len: 100 }) }));
        let (again, entry) = table.enter(300, 310).unwrap();
        assert_eq!((again, entry.is_replaced(), entry.take_moved()), (index, false, None));
    }

    /// Two ranges use one entry in turn. A mixture of the two would contain an address that is in neither.
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

    #[test]
    fn a_range_is_left_once_and_as_a_whole() {
        let table = Table::<4>::new();
        table.enter(100, 200).unwrap();
        table.enter(200, 300).unwrap();
        for (start, end, left) in [(100, 199, false), (100, 300, false), (0, 0, false), (200, 300, true)] {
            assert_eq!(table.leave_range(start, end).is_some(), left, "{start}..{end}");
        }
        assert!(table.leave_range(200, 300).is_none());
        check(&table, 150, Some((100, 200)));
        check(&table, 250, None);
        table.enter(400, 500).unwrap();
        assert!(table.leave_range(400, 500).is_some());
    }

    /// All ranges are different. If two writers got the same entry, one range would be lost.
    #[test]
    fn no_entry_is_given_to_two() {
        const ROUNDS: usize = if cfg!(miri) { 50 } else { 50_000 };
        let table = Table::<6>::new();
        let held = Mutex::new(BTreeSet::new());
        thread::scope(|scope| {
            for thread in 0..3_usize {
                let (table, held) = (&table, &held);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let starts = [0, 1].map(|half| 10 * (2 * (round * 3 + thread) + half + 1));
                        let taken: Vec<usize> = starts.map(|start| table.enter(start, start + 10).unwrap().0).to_vec();
                        let mut now = held.lock().unwrap();
                        assert!(taken.iter().all(|index| now.insert(*index)), "{taken:?}");
                        drop(now);
                        for start in starts {
                            check(table, start + 5, Some((start, start + 10)));
                        }
                        held.lock().unwrap().retain(|index| !taken.contains(index));
                        table.leave(taken[0]);
                        assert!(table.leave_range(starts[1], starts[1] + 10).is_some());
                    }
                });
            }
        });
        assert_eq!(table.used.load(Ordering::Relaxed), 6);
    }
}
