//! How do handles of a backend refer to objects?
//!
//! A handle is a number with entry, generation and kind, and not an address. So a handle that was released, never given, or is of another kind is
//! detected. A backend that uses one gets an error, and does not access other memory.
//!
//! ```text
//!   63          32 31               5 4    0
//!   │ generation  │      entry       │ kind │
//! ```

mod entry;
mod free;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::thread::LocalKey;

use nerite_locks::Mutex;
use nerite_request::Status;

use self::entry::{Entry, Locked, Vacant};
pub use self::free::ThreadCache;
use self::free::{CHUNKS, ENTRIES_MAX, FreeList, place_of};
use crate::fault::Fault;

/// The most kinds: five bits.
const KINDS: usize = 32;

/// An object with handles.
pub trait Object: Sized + 'static {
    /// How its table holds it: as an `Arc` if several calls may use it at the same time, else as a `Box`. A `Box` costs a request less, because no
    /// references are counted, and because the object needs no locks of its own.
    type Held: Deref<Target = Self> + Send + 'static;

    /// Its name in errors.
    const NAME: &'static str;
    /// The unique number of its kind, 1 to 31.
    const KIND: usize;

    /// The table of its kind.
    fn table() -> &'static Table<Self>;

    /// The vacant entries of that table that this thread has.
    fn cache() -> &'static LocalKey<RefCell<ThreadCache<Self>>>;
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

    fn entry(self) -> usize {
        self.number as u32 as usize / KINDS
    }

    fn generation(self) -> u32 {
        (self.number >> 32) as u32
    }
}

impl<T: Object> Handle<T> {
    /// Adds an object, and returns its handle.
    pub fn to(object: T::Held) -> Result<Handle<T>, Fault> {
        Handle::try_to(object).map_err(|(fault, _)| fault)
    }

    /// As [`Handle::to`]. Returns the object if there is no handle for it.
    pub fn try_to(object: T::Held) -> Result<Handle<T>, (Fault, T::Held)> {
        T::table().insert(object)
    }

    /// The object.
    pub fn get(self) -> Result<Arc<T>, Fault>
    where
        T: Object<Held = Arc<T>>,
    {
        T::table().get(self)
    }

    /// Looks at the object. Other calls with this handle wait meanwhile, so `look` is short, does not wait, and does not use the handle. Unlike
    /// [`Handle::get`] it counts no reference.
    pub fn with<R>(self, look: impl FnOnce(&T) -> Result<R, Fault>) -> Result<R, Fault> {
        T::table().with(self, look)
    }

    /// Removes the object. The handle is invalid afterwards.
    pub fn take(self) -> Result<T::Held, Fault> {
        self.take_when(|_| Ok(()))
    }

    /// As [`Handle::take`], and drops the object. NULL is nothing to delete, as in Triton.
    pub fn delete(self) -> Result<(), Fault> {
        if !self.is_null() {
            drop(self.take()?);
        }
        Ok(())
    }

    /// As [`Handle::take`], if the object passes the check.
    pub fn take_when(self, check: impl FnOnce(&T) -> Result<(), Fault>) -> Result<T::Held, Fault> {
        T::table().take(self, check)
    }
}

/// All objects of one kind.
pub struct Table<T: Object> {
    /// Its entries. They are made when they are needed, and never freed.
    chunks: [OnceLock<&'static [Entry<T::Held>]>; CHUNKS],
    free: Mutex<FreeList<T::Held>>,
}

impl<T: Object> Table<T> {
    /// An empty table.
    pub const fn new() -> Table<T> {
        Table { chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::new(FreeList::new()) }
    }

    /// Objects in it.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.chunks
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|chunk| chunk.iter())
            .filter(|entry| entry.is_occupied())
            .count()
    }

    /// Looks at each object, as [`Handle::with`] does. This is for rare events, because it goes through all entries.
    pub fn each(&self, mut look: impl FnMut(&T)) {
        let entries = self.chunks.iter().filter_map(OnceLock::get).flat_map(|chunk| chunk.iter());
        for locked in entries.filter_map(Entry::lock_any) {
            if let Some(held) = locked.object() {
                look(held);
            }
        }
    }

    fn insert(&self, object: T::Held) -> Result<Handle<T>, (Fault, T::Held)> {
        let Some(vacant) = self.vacant() else { return Err((full::<T>(), object)) };
        let (entry, generation) = vacant.fill(object);
        Ok(Handle { number: ((generation as usize) << 32) | (entry * KINDS) | T::KIND, of: PhantomData })
    }

    fn get(&self, handle: Handle<T>) -> Result<Arc<T>, Fault>
    where
        T: Object<Held = Arc<T>>,
    {
        self.lock(handle)?.object().map(Arc::clone).ok_or_else(|| gone::<T>(handle))
    }

    fn with<R>(&self, handle: Handle<T>, look: impl FnOnce(&T) -> Result<R, Fault>) -> Result<R, Fault> {
        look(self.lock(handle)?.object().ok_or_else(|| gone::<T>(handle))?)
    }

    fn take(&self, handle: Handle<T>, check: impl FnOnce(&T) -> Result<(), Fault>) -> Result<T::Held, Fault> {
        let locked = self.lock(handle)?;
        check(locked.object().ok_or_else(|| gone::<T>(handle))?)?;
        let (object, vacant) = locked.take().ok_or_else(|| gone::<T>(handle))?;
        self.keep(vacant);
        Ok(object)
    }

    fn lock(&self, handle: Handle<T>) -> Result<Locked<T::Held>, Fault> {
        if handle.is_null() {
            return Err(Fault::misuse(format!("the {} is NULL", T::NAME)));
        }
        if handle.number % KINDS != T::KIND {
            return Err(Fault::misuse(format!("{:#x} is no {}", handle.number, T::NAME)));
        }
        let (chunk, at) = place_of(handle.entry());
        let entry = self.chunks.get(chunk).and_then(OnceLock::get).and_then(|chunk| chunk.get(at));
        entry.and_then(|entry| entry.lock(handle.generation())).ok_or_else(|| gone::<T>(handle))
    }

    /// A vacant entry. `None` if there may be no more.
    fn vacant(&self) -> Option<Vacant<T::Held>> {
        let cached = T::cache().try_with(|cache| cache.borrow_mut().pop()).ok().flatten();
        cached.or_else(|| {
            let add = |chunk: usize, entries| {
                // The list makes each chunk once, so the place is empty.
                let _ = self.chunks.get(chunk).map(|place| place.set(entries));
            };
            let mut some = self.free().some(add);
            let one = some.pop();
            for vacant in some {
                self.keep(vacant);
            }
            one
        })
    }

    /// Keeps a vacant entry for the next object.
    fn keep(&self, vacant: Vacant<T::Held>) {
        let mut vacant = Some(vacant);
        // A thread that is ending has no cache.
        let surplus = T::cache().try_with(|cache| cache.borrow_mut().keep(vacant.take())).unwrap_or_default();
        if vacant.is_some() || !surplus.is_empty() {
            self.give_back(surplus.into_iter().chain(vacant));
        }
    }

    /// Lets all threads use vacant entries.
    fn give_back(&self, vacant: impl IntoIterator<Item = Vacant<T::Held>>) {
        self.free().give_back(vacant);
    }

    fn free(&self) -> MutexGuard<'_, FreeList<T::Held>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn gone<T: Object>(handle: Handle<T>) -> Fault {
    Fault::misuse(format!("the {} {:#x} is not there: it was sent, released or deleted before", T::NAME, handle.number))
}

fn full<T: Object>() -> Fault {
    Fault::from(Status::unavailable(format!(
        "compiled backends hold {} objects of kind {}, and do not release them",
        ENTRIES_MAX,
        T::NAME
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Apple(u32);
    impl Object for Apple {
        type Held = Arc<Apple>;
        const NAME: &'static str = "apple";
        const KIND: usize = 31;
        fn table() -> &'static Table<Apple> {
            static ALL: Table<Apple> = Table::new();
            &ALL
        }
        fn cache() -> &'static LocalKey<RefCell<ThreadCache<Apple>>> {
            thread_local! { static CACHE: RefCell<ThreadCache<Apple>> = const { RefCell::new(ThreadCache::new()) }; }
            &CACHE
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
        const COUNT: u32 = if cfg!(miri) { 40 } else { 100 };
        let handles: Vec<Handle<Apple>> = (0..COUNT).map(|n| Handle::to(Arc::new(Apple(n))).unwrap()).collect();
        assert!(Apple::table().len() >= COUNT as usize);
        let mut found = 0;
        Apple::table().each(|_| found += 1);
        assert!(found >= COUNT);
        for (n, handle) in handles.iter().enumerate() {
            assert_eq!(handle.get().unwrap().0, n as u32);
            assert_eq!(handle.with(|apple| Ok(apple.0)).unwrap(), n as u32);
        }
        for (n, handle) in handles.iter().enumerate() {
            assert_eq!(handle.take().unwrap().0, n as u32);
            check_missing(*handle, "it was sent, released or deleted before");
        }
        // Entries are used again, under other handles.
        let again: Handle<Apple> = Handle::to(Arc::new(Apple(7))).unwrap();
        assert!(handles.iter().all(|handle| handle.number() != again.number()));
        for handle in handles {
            check_missing(handle, "was sent, released");
        }
    }

    #[test]
    fn a_thread_uses_the_entry_of_a_removed_object_again() {
        const COUNT: u32 = if cfg!(miri) { 200 } else { 1000 };
        let first: Handle<Apple> = Handle::to(Arc::new(Apple(0))).unwrap();
        first.take().unwrap();
        let second: Handle<Apple> = Handle::to(Arc::new(Apple(1))).unwrap();
        assert_eq!(second.entry(), first.entry());
        assert_eq!(second.generation(), first.generation() + 1);
        // Other threads get it when this thread's cache is full, or when the thread ends.
        let entries = |thread: std::thread::ScopedJoinHandle<'_, Vec<usize>>| thread.join().unwrap();
        let many = || {
            let handles: Vec<Handle<Apple>> = (0..COUNT).map(|n| Handle::to(Arc::new(Apple(n))).unwrap()).collect();
            for handle in &handles {
                drop(handle.take().unwrap());
            }
            handles.iter().map(|handle| handle.entry()).collect::<Vec<usize>>()
        };
        let [one, other] = [(); 2].map(|()| std::thread::scope(|scope| entries(scope.spawn(many))));
        let again = one.iter().filter(|entry| other.contains(entry)).count();
        assert!(again > COUNT as usize / 2, "{again} of {COUNT} entries are used again");
    }

    #[test]
    fn one_of_many_threads_takes_an_object() {
        let rounds = if cfg!(miri) { 5 } else { 1000 };
        for round in 0..rounds {
            let handle: Handle<Apple> = Handle::to(Arc::new(Apple(round))).unwrap();
            let taken: usize = std::thread::scope(|scope| {
                let looks = scope.spawn(|| while handle.with(|apple| Ok(apple.0)).is_ok_and(|found| found == round) {});
                let takes = || scope.spawn(|| usize::from(handle.get().and_then(|_| handle.take()).is_ok()));
                let taken = [takes(), takes()].map(|thread| thread.join().unwrap()).into_iter().sum();
                looks.join().unwrap();
                taken
            });
            assert_eq!(taken, 1);
        }
    }

    #[test]
    fn invalid_handles_are_detected() {
        check_missing(Handle::NULL, "the apple is NULL");
        check_missing(Handle::of(0x1234_5670), "is no apple");
        check_missing(Handle::of(usize::MAX), "is not there");
    }
}
