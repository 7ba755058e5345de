//! How do handles of a backend refer to objects?
//!
//! A handle is a number with entry, generation and kind, and not an address. So a handle that was released, never given, or is of another kind is
//! detected. A backend that uses one gets an error, and does not access other memory.
//!
//! ```text
//!   63          32 31          9 8    5 4    0
//!   │ generation  │    entry    │ shard │ kind │
//! ```

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::Status;

use crate::fault::Fault;

/// Tables are divided into shards, so that threads seldom wait for each other. A thread adds its objects to one shard, which stays in the
/// cache of its processor.
const SHARDS: usize = 16;
/// The most entries of one shard: 23 bits. A backend that needs more does not release its objects.
const ENTRIES_MAX: usize = 1 << 23;

/// The most kinds: five bits.
const KINDS: usize = 32;

/// Threads that have added objects.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The shard to which this thread adds objects.
    static OWN_SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// An object with handles.
pub trait Object: Send + Sync + Sized + 'static {
    /// Its name in errors.
    const NAME: &'static str;
    /// The unique number of its kind, 1 to 31.
    const KIND: usize;

    /// The table of its kind.
    fn table() -> &'static Table<Self>;
}

/// A handle in the form that C passes: like a pointer.
#[repr(transparent)]
pub struct Handle<T> {
    number: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> Default for Handle<T> {
    fn default() -> Handle<T> {
        Handle::NULL
    }
}

impl<T> Handle<T> {
    /// No object.
    pub const NULL: Handle<T> = Handle { number: 0, of: PhantomData };

    /// Whether it is NULL.
    pub fn is_null(self) -> bool {
        self.number == 0
    }

    /// The number that C has instead of an address.
    #[cfg(test)]
    pub fn number(self) -> usize {
        self.number
    }

    /// The handle of this number.
    #[cfg(test)]
    pub fn of(number: usize) -> Handle<T> {
        Handle { number, of: PhantomData }
    }

    fn shard(self) -> usize {
        (self.number >> 5) % SHARDS
    }

    fn entry(self) -> usize {
        (self.number >> 9) % ENTRIES_MAX
    }

    fn generation(self) -> u32 {
        (self.number >> 32) as u32
    }
}

impl<T: Object> Handle<T> {
    /// Adds an object, and returns its handle.
    pub fn to(object: Arc<T>) -> Result<Handle<T>, Fault> {
        T::table().insert(object)
    }

    /// The object.
    pub fn get(self) -> Result<Arc<T>, Fault> {
        T::table().get(self)
    }

    /// Looks at the object. Nobody else can use objects of this kind meanwhile, so `look` is short, and uses no other handle of it. Unlike
    /// [`Handle::get`] it counts no reference.
    pub fn with<R>(self, look: impl FnOnce(&T) -> Result<R, Fault>) -> Result<R, Fault> {
        T::table().with(self, look)
    }

    /// Removes the object. The handle is invalid afterwards.
    pub fn take(self) -> Result<Arc<T>, Fault> {
        self.take_when(|_| Ok(()))
    }

    /// As [`Handle::take`], if the object passes the check.
    pub fn take_when(self, check: impl FnOnce(&T) -> Result<(), Fault>) -> Result<Arc<T>, Fault> {
        T::table().take(self, check)
    }
}

/// All objects of one kind.
pub struct Table<T> {
    shards: [Apart<Mutex<Shard<T>>>; SHARDS],
}

/// A value without neighbours in its cache lines.
#[repr(align(128))]
struct Apart<T>(T);

struct Shard<T> {
    entries: Vec<Entry<T>>,
    free: Vec<usize>,
}

struct Entry<T> {
    generation: u32,
    object: Option<Arc<T>>,
}

impl<T> Shard<T> {
    const fn new() -> Shard<T> {
        Shard { entries: Vec::new(), free: Vec::new() }
    }

    /// An entry without an object. `None` if there may be no more.
    fn free_entry(&mut self) -> Option<usize> {
        if let Some(entry) = self.free.pop() {
            return Some(entry);
        }
        if self.entries.len() >= ENTRIES_MAX {
            return None;
        }
        // Generations begin with 1, so no handle is NULL.
        self.entries.push(Entry { generation: 1, object: None });
        Some(self.entries.len() - 1)
    }

    fn entry(&mut self, handle: Handle<T>) -> Option<&mut Entry<T>> {
        self.entries.get_mut(handle.entry()).filter(|entry| entry.generation == handle.generation())
    }
}

impl<T: Object> Default for Table<T> {
    fn default() -> Table<T> {
        Table::new()
    }
}

impl<T: Object> Table<T> {
    /// An empty table.
    pub const fn new() -> Table<T> {
        Table { shards: [const { Apart(Mutex::new(Shard::new())) }; SHARDS] }
    }

    /// Objects in it.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shards.iter().map(lock).map(|shard| shard.entries.len() - shard.free.len()).sum()
    }

    fn insert(&self, object: Arc<T>) -> Result<Handle<T>, Fault> {
        let own = OWN_SHARD.with(|own| *own);
        // If it is full, the next ones are tried.
        let mut shards = (own..own + SHARDS).map(|at| at % SHARDS);
        let found = shards.find_map(|at| {
            let mut shard = lock(&self.shards[at]);
            shard.free_entry().map(|entry| (at, entry, shard))
        });
        let (at, entry, mut shard) = found.ok_or_else(full::<T>)?;
        let found = &mut shard.entries[entry];
        found.object = Some(object);
        let number = (found.generation as usize) << 32 | entry << 9 | at << 5 | T::KIND;
        Ok(Handle { number, of: PhantomData })
    }

    fn get(&self, handle: Handle<T>) -> Result<Arc<T>, Fault> {
        let mut shard = self.shard(handle)?;
        shard.entry(handle).and_then(|entry| entry.object.clone()).ok_or_else(|| gone::<T>(handle))
    }

    fn with<R>(&self, handle: Handle<T>, look: impl FnOnce(&T) -> Result<R, Fault>) -> Result<R, Fault> {
        let mut shard = self.shard(handle)?;
        look(shard.entry(handle).and_then(|entry| entry.object.as_deref()).ok_or_else(|| gone::<T>(handle))?)
    }

    fn take(&self, handle: Handle<T>, check: impl FnOnce(&T) -> Result<(), Fault>) -> Result<Arc<T>, Fault> {
        let mut shard = self.shard(handle)?;
        let entry = shard.entry(handle).ok_or_else(|| gone::<T>(handle))?;
        check(entry.object.as_deref().ok_or_else(|| gone::<T>(handle))?)?;
        let object = entry.object.take().ok_or_else(|| gone::<T>(handle))?;
        entry.generation = entry.generation.wrapping_add(1).max(1);
        shard.free.push(handle.entry());
        Ok(object)
    }

    fn shard(&self, handle: Handle<T>) -> Result<MutexGuard<'_, Shard<T>>, Fault> {
        if handle.is_null() {
            return Err(Fault::misuse(format!("the {} is NULL", T::NAME)));
        }
        if handle.number % KINDS != T::KIND {
            return Err(Fault::misuse(format!("{:#x} is no {}", handle.number, T::NAME)));
        }
        Ok(lock(&self.shards[handle.shard()]))
    }
}

fn lock<T>(shard: &Apart<Mutex<Shard<T>>>) -> MutexGuard<'_, Shard<T>> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone<T: Object>(handle: Handle<T>) -> Fault {
    Fault::misuse(format!("the {} {:#x} is not there: it was sent, released or deleted before", T::NAME, handle.number))
}

fn full<T: Object>() -> Fault {
    Fault::from(Status::unavailable(format!(
        "compiled backends hold {} objects of kind {}, and do not release them",
        ENTRIES_MAX * SHARDS,
        T::NAME
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Apple(u32);
    impl Object for Apple {
        const NAME: &'static str = "apple";
        const KIND: usize = 31;
        fn table() -> &'static Table<Apple> {
            static ALL: Table<Apple> = Table::new();
            &ALL
        }
    }

    #[track_caller]
    fn check_missing(handle: Handle<Apple>, said: &str) {
        let text = |found: Result<Arc<Apple>, Fault>| found.err().unwrap().to_string();
        let (got, taken) = (text(handle.get()), text(handle.take()));
        let looked = handle.with(|_| Ok(())).unwrap_err().to_string();
        assert!([&got, &taken, &looked].into_iter().all(|text| text.contains(said)), "{got} / {taken} / {looked}");
    }

    #[test]
    fn a_handle_leads_to_its_object_until_it_is_taken() {
        let handles: Vec<_> = (0..100).map(|n| Handle::to(Arc::new(Apple(n))).unwrap()).collect();
        assert!(Apple::table().len() >= 100);
        for (n, handle) in handles.iter().enumerate() {
            assert_eq!(handle.get().unwrap().0, n as u32);
            assert_eq!(handle.with(|apple| Ok(apple.0)).unwrap(), n as u32);
        }
        for (n, handle) in handles.iter().enumerate() {
            assert_eq!(handle.take().unwrap().0, n as u32);
            check_missing(*handle, "it was sent, released or deleted before");
        }
        // Entries are used again, under other handles.
        let again = Handle::to(Arc::new(Apple(7))).unwrap();
        assert!(handles.iter().all(|handle| handle.number() != again.number()));
        for handle in handles {
            check_missing(handle, "was sent, released");
        }
    }

    #[test]
    fn a_thread_uses_the_entry_of_a_removed_object_again() {
        let table = Table::new();
        let at = |handle: Handle<Apple>| (handle.shard(), handle.entry());
        let first = table.insert(Arc::new(Apple(0))).unwrap();
        let second = table.insert(Arc::new(Apple(1))).unwrap();
        assert_eq!(at(second), (first.shard(), 1));
        table.take(first, |_| Ok(())).unwrap();
        assert_eq!(at(table.insert(Arc::new(Apple(2))).unwrap()), at(first));
    }

    #[test]
    fn invalid_handles_are_detected() {
        check_missing(Handle::NULL, "the apple is NULL");
        check_missing(Handle::of(0x1234_5670), "is no apple");
        check_missing(Handle::of(usize::MAX), "is not there");
    }
}
