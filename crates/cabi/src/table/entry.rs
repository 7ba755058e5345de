//! How does a table keep one object, and who may access it?
//!
//! One word has the state of the entry: its generation and its phase. A call locks the entry while it looks at the object, which takes one atomic
//! exchange. No other entry is locked meanwhile.
//!
//! ```text
//!            fill               lock
//!   vacant ───────► occupied ─────────► locked
//!     ▲                 ▲      unlock     │ │
//!     │                 └─────────────────┘ │
//!     └─────────────────────────────────────┘
//!          take: the generation after it
//! ```

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::yield_now;

/// The phases: the two lowest bits of a state.
const VACANT: u64 = 0;
const OCCUPIED: u64 = 1;
const LOCKED: u64 = 2;

/// How often a thread looks at a locked entry before it lets other threads run.
const SPINS: u32 = 64;

/// The state of this generation and phase.
const fn state(generation: u32, phase: u64) -> u64 {
    (generation as u64) << 2 | phase
}

/// A place for one object, or for the pointer to it. Entries have cache lines of their own, so that threads with different entries do not wait for each other.
#[repr(align(64))]
pub struct Entry<P> {
    /// Its index in the table.
    index: usize,
    state: AtomicU64,
    /// Accessed only by the owner of the entry's [`Vacant`] or [`Locked`]. At most one of these exists:
    /// - [`Entry::chunk`] makes one `Vacant` for each entry, which is vacant then.
    /// - [`Vacant::fill`] consumes the `Vacant`. The entry is occupied afterwards.
    /// - [`Entry::lock`] makes a `Locked` when it changes the phase from occupied to locked. Only the drop of that `Locked` makes it occupied again.
    /// - [`Locked::take`] consumes the `Locked`, makes the entry vacant, and makes its next `Vacant`.
    object: UnsafeCell<Option<P>>,
}

// SAFETY: `index` never changes and `state` is atomic. One thread at a time accesses `object` (see there): each step stores the phase with `Release`,
// and the next lock loads it with `Acquire`; a `Vacant` that changes threads does so by safe code. `P` may be used and dropped on any thread, because it is `Send`.
unsafe impl<P: Send> Sync for Entry<P> {}

/// The right to fill a vacant entry.
pub struct Vacant<P: 'static>(&'static Entry<P>);

/// An entry that this thread has locked. Unlocked on drop.
pub struct Locked<P: 'static> {
    entry: &'static Entry<P>,
    generation: u32,
    // Threads may share it only if they may share a `P`.
    of: PhantomData<P>,
}

impl<P> Entry<P> {
    /// New entries with indices from `first`, and the right to fill each. They are never freed.
    pub fn chunk(first: usize, count: usize) -> (&'static [Entry<P>], impl Iterator<Item = Vacant<P>>) {
        // Generations begin with 1, so no handle is NULL.
        let entry = |index| Entry { index, state: AtomicU64::new(state(1, VACANT)), object: UnsafeCell::new(None) };
        let entries: &'static [Entry<P>] = Box::leak((first..first + count).map(entry).collect());
        (entries, entries.iter().map(Vacant))
    }

    /// Locks the entry, if it has an object of this generation. If another thread has it locked, this waits, which takes a few instructions.
    pub fn lock(&'static self, generation: u32) -> Option<Locked<P>> {
        let (occupied, locked) = (state(generation, OCCUPIED), state(generation, LOCKED));
        let mut spins = 0;
        loop {
            match self.state.compare_exchange(occupied, locked, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Locked { entry: self, generation, of: PhantomData }),
                Err(found) if found != locked => return None,
                Err(_) if spins < SPINS => {
                    spins += 1;
                    spin_loop();
                }
                // The system may have stopped the thread that has it locked.
                Err(_) => yield_now(),
            }
        }
    }

    /// Locks the entry, if it has an object.
    pub fn lock_any(&'static self) -> Option<Locked<P>> {
        let now = self.state.load(Ordering::Relaxed);
        if now & 3 == VACANT { None } else { self.lock((now >> 2) as u32) }
    }

    /// Whether it has an object.
    #[cfg(test)]
    pub fn is_occupied(&self) -> bool {
        self.state.load(Ordering::Relaxed) & 3 != VACANT
    }
}

impl<P> Vacant<P> {
    /// Adds the object. Returns index and generation.
    pub fn fill(self, object: P) -> (usize, u32) {
        let Entry { index, state: now, object: place } = self.0;
        let generation = (now.load(Ordering::Relaxed) >> 2) as u32;
        // SAFETY: this is the entry's only `Vacant`, and there is no `Locked` (see `Entry::object`), so nobody else accesses the place.
        unsafe { *place.get() = Some(object) };
        now.store(state(generation, OCCUPIED), Ordering::Release);
        (*index, generation)
    }
}

impl<P> Locked<P> {
    /// The object.
    pub fn object(&self) -> Option<&P> {
        // SAFETY: this is the entry's only `Locked`, and there is no `Vacant` (see `Entry::object`). The reference borrows the `Locked`, whose other
        // methods access the place only when the borrow has ended.
        unsafe { &*self.entry.object.get() }.as_ref()
    }

    /// Removes the object. Other calls find nothing under its handle from now on. An occupied entry always has an object.
    pub fn take(self) -> Option<(P, Vacant<P>)> {
        // SAFETY: as in `object`. No reference of `object` is left, because `self` is moved.
        let object = unsafe { &mut *self.entry.object.get() }.take()?;
        let (entry, next) = (self.entry, self.generation.wrapping_add(1).max(1));
        // Its drop would make the entry occupied.
        std::mem::forget(self);
        entry.state.store(state(next, VACANT), Ordering::Release);
        Some((object, Vacant(entry)))
    }
}

impl<P> Drop for Locked<P> {
    fn drop(&mut self) {
        self.entry.state.store(state(self.generation, OCCUPIED), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Entries that a test made. They are never freed, so a static keeps them: otherwise Miri reports them as leaked.
    type Kept<P> = OnceLock<&'static [Entry<P>]>;

    /// One entry, and the right to fill it.
    fn one<P>(kept: &Kept<P>, index: usize) -> (&'static Entry<P>, Vacant<P>) {
        let (entries, vacant) = Entry::chunk(index, 1);
        kept.set(entries).ok().unwrap();
        (entries.first().unwrap(), vacant.last().unwrap())
    }

    #[test]
    fn an_object_is_found_under_its_own_generation_only() {
        static KEPT: Kept<&str> = Kept::new();
        let (entry, vacant) = one(&KEPT, 7);
        assert!(entry.lock(1).is_none());
        assert_eq!(vacant.fill("one"), (7, 1));
        for generation in [0, 2, u32::MAX] {
            assert!(entry.lock(generation).is_none());
        }
        assert_eq!(*entry.lock(1).unwrap().object().unwrap(), "one");
        let (object, vacant) = entry.lock(1).unwrap().take().unwrap();
        assert_eq!(object, "one");
        assert!(entry.lock(1).is_none() && entry.lock(2).is_none());
        assert_eq!(vacant.fill("two"), (7, 2));
        assert!(entry.lock(1).is_none());
        assert_eq!(*entry.lock(2).unwrap().object().unwrap(), "two");
    }

    #[test]
    fn no_generation_is_zero() {
        static KEPT: Kept<()> = Kept::new();
        let (entry, vacant) = one(&KEPT, 0);
        entry.state.store(state(u32::MAX, VACANT), Ordering::Relaxed);
        assert_eq!(vacant.fill(()), (0, u32::MAX));
        let ((), vacant) = entry.lock(u32::MAX).unwrap().take().unwrap();
        assert_eq!(vacant.fill(()), (0, 1));
    }

    #[test]
    fn threads_lock_an_entry_one_at_a_time_and_one_of_them_takes_its_object() {
        let rounds = if cfg!(miri) { 20 } else { 10_000 };
        // A `Cell` may be on one thread at a time only.
        static KEPT: Kept<Cell<usize>> = Kept::new();
        let (entry, vacant) = one(&KEPT, 0);
        let (_, generation) = vacant.fill(Cell::new(0));
        let on_three_threads = |work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(work))));
        };
        on_three_threads(&|| {
            for _ in 0..rounds {
                entry.lock(generation).unwrap().object().unwrap().update(|count: usize| count + 1);
            }
        });
        let taken = AtomicUsize::new(0);
        on_three_threads(&|| {
            let Some((object, _)) = entry.lock(generation).and_then(Locked::take) else { return };
            assert_eq!(object.get(), 3 * rounds);
            taken.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(taken.into_inner(), 1);
    }
}
