//! How does a signal handler find the value that belongs to the current thread?
//!
//! A thread is identified by the address of its errno: it is unique among the existing threads, and needs no system call. Only the thread itself
//! writes its entry, and the handler reads it on the same thread, so the two never run at the same time.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const EMPTY: usize = 0;
/// The entry is taken, but is not valid yet, or no longer. The value cannot be the address of an errno, because it is not aligned.
const IN_CHANGE: usize = 1;

/// A table of threads, each with a reference to a value of type `T`.
pub(crate) struct Threads<T, const N: usize> {
    entries: [Entry<T>; N],
}

struct Entry<T> {
    /// The thread, [`EMPTY`] or [`IN_CHANGE`].
    thread: AtomicUsize,
    value: AtomicPtr<T>,
}

impl<T, const N: usize> Threads<T, N> {
    pub(crate) const fn new() -> Threads<T, N> {
        const { assert!(N > 0) };
        Threads { entries: [const { Entry::empty() }; N] }
    }

    /// Enters the calling thread. Returns the number of its entry, or `None` if the table is full.
    pub(crate) fn enter(&self, thread: usize, value: &T) -> Option<usize> {
        for index in order::<N>(thread) {
            let entry = self.entries.get(index)?;
            let taken = entry.thread.compare_exchange(EMPTY, IN_CHANGE, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                entry.value.store(ptr::from_ref(value).cast_mut(), Ordering::Relaxed);
                entry.thread.store(thread, Ordering::Release);
                return Some(index);
            }
        }
        None
    }

    /// Empties an entry that `enter` returned to this thread.
    pub(crate) fn leave(&self, index: usize) {
        if let Some(entry) = self.entries.get(index) {
            entry.thread.store(IN_CHANGE, Ordering::Release);
            entry.value.store(ptr::null_mut(), Ordering::Relaxed);
            entry.thread.store(EMPTY, Ordering::Release);
        }
    }

    /// The value of the calling thread. Safe in a signal handler.
    pub(crate) fn find(&self, thread: usize) -> Option<*const T> {
        let mut entries = order::<N>(thread).filter_map(|index| self.entries.get(index));
        let entry = entries.find(|entry| entry.thread.load(Ordering::Acquire) == thread)?;
        Some(entry.value.load(Ordering::Relaxed).cast_const())
    }
}

impl<T> Entry<T> {
    const fn empty() -> Entry<T> {
        Entry { thread: AtomicUsize::new(EMPTY), value: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// All entries, beginning at one that depends on the thread, so that threads rarely collide.
fn order<const N: usize>(thread: usize) -> impl Iterator<Item = usize> {
    // Fibonacci hashing: errno has the same offset in each stack, so only the middle bits of the address differ.
    let first = ((thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % N;
    (first..N).chain(0..first)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;
    use std::vec::Vec;

    use super::*;

    #[track_caller]
    fn check<const N: usize>(table: &Threads<u32, N>, thread: usize, expect: Option<&u32>) {
        assert_eq!(table.find(thread), expect.map(ptr::from_ref), "{thread}");
    }

    #[test]
    fn a_thread_is_found_while_it_is_entered() {
        let (table, one, two) = (Threads::<u32, 4>::new(), 1, 2);
        check(&table, 800, None);
        let first = table.enter(800, &one).unwrap();
        let second = table.enter(808, &two).unwrap();
        check(&table, 800, Some(&one));
        check(&table, 808, Some(&two));
        table.leave(first);
        check(&table, 800, None);
        check(&table, 808, Some(&two));
        table.leave(second);
        check(&table, 808, None);
    }

    #[test]
    fn a_full_table_takes_no_more_until_one_leaves() {
        let (table, value) = (Threads::<u32, 2>::new(), 7);
        let first = table.enter(8, &value).unwrap();
        table.enter(16, &value).unwrap();
        assert!(table.enter(24, &value).is_none());
        table.leave(first);
        table.enter(24, &value).unwrap();
        check(&table, 24, Some(&value));
        check(&table, 8, None);
    }

    #[test]
    fn many_threads_come_and_go_and_find_their_own() {
        const ROUNDS: usize = if cfg!(miri) { 50 } else { 20_000 };
        let table = Threads::<usize, 8>::new();
        thread::scope(|scope| {
            for thread in 1..=4_usize {
                let table = &table;
                scope.spawn(move || {
                    let values: Vec<usize> = (0..ROUNDS).collect();
                    for value in &values {
                        let index = table.enter(thread * 8, value).unwrap();
                        assert_eq!(table.find(thread * 8), Some(ptr::from_ref(value)));
                        table.leave(index);
                        assert_eq!(table.find(thread * 8), None);
                    }
                });
            }
        });
    }
}
