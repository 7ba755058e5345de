//! How does another process of this host map the same memory?
//!
//! A model's process reads a client's memory without a copy. It gets a descriptor once, and maps it. It must be told when the server releases the
//! memory, because the system cannot free it until the process unmaps it as well.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, Weak};

use nerite_locks::Mutex;

/// Memory that other processes of this host can map as well.
pub trait Share: Send + Sync {
    /// Its number, and who is told when it is released.
    fn mark(&self) -> &ShareMark;

    /// First byte, in this process.
    fn base(&self) -> NonNull<u8>;

    /// Bytes from there on that are shared.
    fn byte_size(&self) -> usize;

    /// What to map, and from which offset on. Fails where the object can no longer be reached by its name, and for memory of a device.
    fn open(&self) -> io::Result<(OwnedFd, u64)>;

    /// How another process opens it, if it is memory of a device.
    fn device(&self) -> Option<DeviceShare> {
        None
    }

    /// Whether its size is fixed. A process that maps memory that can shrink needs a guard.
    fn is_sealed(&self) -> bool;

    /// Notes that another process found no memory at this offset.
    fn lose(&self, at: usize);
}

/// Memory of a device that another process can open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DeviceShare {
    /// The device's number in this process.
    pub ordinal: u32,
    /// `cudaIpcMemHandle_t`. It opens the memory from [`Share::base`] on.
    pub handle: [u8; 64],
}

impl std::fmt::Debug for DeviceShare {
    /// Omits the handle: anyone who knows it can open the memory.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceShare(on device {})", self.ordinal)
    }
}

/// Keeps track of the memory that a process has mapped.
pub trait Forget: Send + Sync {
    /// The memory with this number was released. Called on the thread that dropped the last reference. Must not block.
    fn forget(&self, share: u64);
}

/// The number of a piece of shared memory, which is never reused, and who is told when it is released.
pub struct ShareMark {
    number: u64,
    listeners: Mutex<Vec<Weak<dyn Forget>>>,
}

impl ShareMark {
    /// A new number that no process has been told.
    pub fn new() -> ShareMark {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        ShareMark { number: NEXT.fetch_add(1, Ordering::Relaxed), listeners: Mutex::default() }
    }

    /// The number of this memory.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Registers `who` to be told when the memory is released. Repeated calls have no effect.
    pub fn notify_on_release(&self, who: Weak<dyn Forget>) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        // Processes start and end while a region stays. Entries of ended ones must not accumulate.
        listeners.retain(|other| other.strong_count() > 0);
        listeners.push(who);
    }
}

impl Default for ShareMark {
    fn default() -> ShareMark {
        ShareMark::new()
    }
}

impl Drop for ShareMark {
    fn drop(&mut self) {
        let listeners = std::mem::take(self.listeners.get_mut().unwrap_or_else(PoisonError::into_inner));
        for who in listeners.iter().filter_map(Weak::upgrade) {
            who.forget(self.number);
        }
    }
}

/// Bytes of shared memory: which memory, and where in it.
#[derive(Clone, Copy)]
pub struct SharedWindow<'m> {
    /// The memory.
    pub share: &'m dyn Share,
    /// Offset of the first byte meant.
    pub offset: usize,
}

impl<'m> SharedWindow<'m> {
    pub(crate) fn new(share: &'m dyn Share, ptr: NonNull<u8>) -> SharedWindow<'m> {
        SharedWindow { share, offset: ptr.addr().get() - share.base().addr().get() }
    }
}

impl std::fmt::Debug for SharedWindow<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedWindow({} at {})", self.share.mark().number(), self.offset)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Default)]
    struct Listener(Mutex<Vec<u64>>);

    impl Forget for Listener {
        fn forget(&self, share: u64) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(share);
        }
    }

    #[test]
    fn who_asked_is_notified_of_the_end_and_who_is_gone_is_not() {
        let (here, gone) = (Arc::new(Listener::default()), Arc::new(Listener::default()));
        let (first, second) = (ShareMark::new(), ShareMark::new());
        assert_ne!(first.number(), second.number());
        for listener in [&here, &gone] {
            let listener: Weak<dyn Forget> = Arc::downgrade(&(Arc::clone(listener) as Arc<dyn Forget>));
            first.notify_on_release(listener);
        }
        drop(gone);
        let number = first.number();
        drop((first, second));
        assert_eq!(*here.0.lock().unwrap_or_else(PoisonError::into_inner), [number]);
    }

    #[test]
    fn those_that_are_gone_do_not_pile_up() {
        let mark = ShareMark::new();
        for _ in 0..100 {
            let listener: Arc<dyn Forget> = Arc::new(Listener::default());
            mark.notify_on_release(Arc::downgrade(&listener));
        }
        assert_eq!(mark.listeners.lock().unwrap_or_else(PoisonError::into_inner).len(), 1);
    }
}
