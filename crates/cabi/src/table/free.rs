//! Which entries of a table are vacant?
//!
//! A thread takes vacant entries from its own cache, and returns them to it, without a lock. Only a cache that is empty or full uses the list that
//! all threads share.

use super::Object;
use super::entry::{Entry, Vacant};

/// Entries that move between a cache and the shared list at a time.
const BATCH: usize = 32;
/// The most entries of a cache.
const CACHED_MAX: usize = 2 * BATCH;

/// The entries that the first chunk has. Each one after it has twice as many as the one before.
const FIRST_CHUNK: usize = 64;
/// The most chunks of a table: its index has 27 bits.
pub const CHUNKS: usize = 21;
/// The most entries. A backend that needs more does not release its objects.
pub const ENTRIES_MAX: usize = first_of(CHUNKS);

/// The index of a chunk's first entry.
const fn first_of(chunk: usize) -> usize {
    (FIRST_CHUNK << chunk) - FIRST_CHUNK
}

/// The chunk of an index, and the position there.
pub fn place_of(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index - first_of(chunk))
}

/// The vacant entries of one kind that one thread has. When the thread ends, other threads get them.
pub struct ThreadCache<T: Object>(Vec<Vacant<T::Held>>);

impl<T: Object> ThreadCache<T> {
    /// An empty cache.
    pub const fn new() -> ThreadCache<T> {
        ThreadCache(Vec::new())
    }

    /// Takes an entry out of it.
    pub fn pop(&mut self) -> Option<Vacant<T::Held>> {
        self.0.pop()
    }

    /// Keeps entries. Returns those that are for the shared list: some, if the cache is full.
    #[must_use]
    pub fn keep(&mut self, vacant: impl IntoIterator<Item = Vacant<T::Held>>) -> Vec<Vacant<T::Held>> {
        self.0.extend(vacant);
        // The most recent ones stay: their lines are in the processor's cache.
        if self.0.len() > CACHED_MAX { self.0.drain(..BATCH).collect() } else { Vec::new() }
    }
}

impl<T: Object> Drop for ThreadCache<T> {
    fn drop(&mut self) {
        T::table().give_back(self.0.drain(..));
    }
}

/// The vacant entries that no thread has in its cache.
pub struct FreeList<P: 'static> {
    vacant: Vec<Vacant<P>>,
    chunks: usize,
}

impl<P> FreeList<P> {
    /// The list of an empty table.
    pub const fn new() -> FreeList<P> {
        FreeList { vacant: Vec::new(), chunks: 0 }
    }

    /// Some entries for a cache; none if all are occupied. `add` gets each new chunk, with its number.
    pub fn some(&mut self, add: impl FnOnce(usize, &'static [Entry<P>])) -> Vec<Vacant<P>> {
        if self.vacant.is_empty() && self.chunks < CHUNKS {
            let (entries, vacant) = Entry::chunk(first_of(self.chunks), FIRST_CHUNK << self.chunks);
            self.vacant.extend(vacant);
            // The entries with the lowest indices are used first.
            self.vacant.reverse();
            add(self.chunks, entries);
            self.chunks += 1;
        }
        let kept = self.vacant.len().saturating_sub(BATCH);
        self.vacant.split_off(kept)
    }

    /// Takes entries back.
    pub fn give_back(&mut self, vacant: impl IntoIterator<Item = Vacant<P>>) {
        self.vacant.extend(vacant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_has_one_place() {
        let mut expected = (0, 0);
        for index in 0..if cfg!(miri) { 1000 } else { 100_000 } {
            assert_eq!(place_of(index), expected, "{index}");
            let (chunk, at) = expected;
            expected = if at + 1 == FIRST_CHUNK << chunk { (chunk + 1, 0) } else { (chunk, at + 1) };
        }
        assert_eq!(place_of(ENTRIES_MAX - 1), (CHUNKS - 1, (FIRST_CHUNK << (CHUNKS - 1)) - 1));
        assert!(place_of(ENTRIES_MAX).0 == CHUNKS && ENTRIES_MAX < 1 << 27);
    }
}
