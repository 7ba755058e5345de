//! How are the counted locks made?
//!
//! The guards are those of the standard library, so that its `Condvar` takes them.

use std::panic::Location;
use std::sync::{self, LockResult, MutexGuard, RwLockReadGuard, RwLockWriteGuard, TryLockResult};

use crate::counter::count;

/// [`std::sync::Mutex`], counted.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// See [`std::sync::Mutex::new`].
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// See [`std::sync::Mutex::into_inner`].
    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// See [`std::sync::Mutex::lock`]. The caller's line is counted.
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        count(Location::caller());
        self.0.lock()
    }

    /// See [`std::sync::Mutex::try_lock`]. The caller's line is counted, whether it gets the lock or not.
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        count(Location::caller());
        self.0.try_lock()
    }

    /// See [`std::sync::Mutex::get_mut`].
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }
}

/// [`std::sync::RwLock`], counted.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// See [`std::sync::RwLock::new`].
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// See [`std::sync::RwLock::read`]. The caller's line is counted.
    #[track_caller]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        count(Location::caller());
        self.0.read()
    }

    /// See [`std::sync::RwLock::write`]. The caller's line is counted.
    #[track_caller]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        count(Location::caller());
        self.0.write()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Mutex, RwLock, counts, exempt_this_thread};

    /// Locks that this file took.
    fn taken() -> Vec<u64> {
        let mut found: Vec<_> = counts().into_iter().filter(|taken| taken.place.file() == file!()).collect();
        found.sort_by_key(|taken| taken.place.line());
        found.iter().map(|taken| taken.times).collect()
    }

    #[test]
    fn each_line_that_takes_a_lock_is_counted() {
        let (mutex, table) = (Mutex::new(1), RwLock::new(2));
        for _ in 0..3 {
            drop(mutex.lock());
        }
        drop(mutex.try_lock());
        drop((table.read(), mutex.lock()));
        drop(table.write());
        assert_eq!(taken(), [3, 1, 1, 1, 1]);
        exempt_this_thread();
        drop(mutex.lock());
        assert_eq!(taken(), [3, 1, 1, 1, 1]);
    }
}
