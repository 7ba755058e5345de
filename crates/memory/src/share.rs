//! How does another process of this host map the same memory?
//! A model's process reads a client's memory without a copy. The process gets a descriptor once, and maps it. When the server releases the memory, it must
//! notify the process, because the system cannot free the memory until the process has unmapped it too.

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, Weak};

use nerite_locks::Mutex;

/// Memory that other processes of this host can map as well.
pub trait Share: Send + Sync {
    /// The number of the memory, and the listeners that are notified when it is released.
    fn mark(&self) -> &ShareMark;

    /// First byte, in this process.
    fn base(&self) -> NonNull<u8>;

    /// Bytes from there on that are shared.
    fn byte_size(&self) -> usize;

    /// The descriptor to map, and the offset in it. Fails if the object can no longer be opened by its name, and for memory of a device.
    fn open(&self) -> io::Result<(OwnedFd, u64)>;

    /// How another process opens it, if it is memory of a device.
    fn device(&self) -> Option<DeviceShare> {
        None
    }

    /// Whether its size is fixed. If the memory can shrink, a process that maps it needs a guard.
    fn is_sealed(&self) -> bool;

    /// Notes that another process found no memory at this offset.
    fn lose(&self, at: usize);

    /// Requests the right of one more process to map the memory. `None` if the limit of the memory's owner is reached.
    fn admit_process(&self) -> Option<ProcessPermit> {
        Some(Box::new(()))
    }
}

/// The right of one process to map shared memory. It is dropped when the process is told to unmap the memory, or ends.
pub type ProcessPermit = Box<dyn Any + Send + Sync>;

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

/// A listener that keeps track of the memory that a process has mapped.
pub trait ReleaseListener: Send + Sync {
    /// Called when the memory with this number is released, on the thread that dropped the last reference. It must not block.
    fn on_release(&self, share: u64);
}

/// The number of a piece of shared memory, which is never reused, and the listeners that are notified when the memory is released.
pub struct ShareMark {
    number: u64,
    listeners: Mutex<Vec<Weak<dyn ReleaseListener>>>,
}

impl ShareMark {
    /// A new number that no process knows yet.
    pub fn new() -> ShareMark {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        ShareMark { number: NEXT.fetch_add(1, Ordering::Relaxed), listeners: Mutex::default() }
    }

    /// The number of this memory.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Registers `who` to be notified when the memory is released. A listener that is registered twice is notified twice.
    pub fn notify_on_release(&self, who: Weak<dyn ReleaseListener>) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        // Processes start and end while a region stays registered. Entries of ended processes must not accumulate.
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
            who.on_release(self.number);
        }
    }
}

/// Bytes of shared memory: which memory, and where in it.
#[derive(Clone, Copy)]
pub struct SharedWindow<'m> {
    /// The memory.
    pub share: &'m dyn Share,
    /// Offset of the first byte.
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

    impl ReleaseListener for Listener {
        fn on_release(&self, share: u64) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(share);
        }
    }

    #[test]
    fn who_asked_is_notified_of_the_end_and_who_is_gone_is_not() {
        let (here, gone) = (Arc::new(Listener::default()), Arc::new(Listener::default()));
        let (first, second) = (ShareMark::new(), ShareMark::new());
        assert_ne!(first.number(), second.number());
        for listener in [&here, &gone] {
            let listener: Weak<dyn ReleaseListener> =
                Arc::downgrade(&(Arc::clone(listener) as Arc<dyn ReleaseListener>));
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
            let listener: Arc<dyn ReleaseListener> = Arc::new(Listener::default());
            mark.notify_on_release(Arc::downgrade(&listener));
        }
        assert_eq!(mark.listeners.lock().unwrap_or_else(PoisonError::into_inner).len(), 1);
    }
}
