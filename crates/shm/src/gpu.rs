//! What does a GPU change for regions and leases?

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nerite_cuda::{Driver, PageLock};

use crate::limits::LOCKED_EMPTY_BYTES_MAX;

/// The driver, and whether clients' memory is page-locked for it.
#[derive(Clone, Debug)]
pub struct Gpu {
    driver: Arc<Driver>,
    lock_pages: bool,
    /// Whether a failure to lock memory was logged.
    logged: Arc<AtomicBool>,
}

impl Gpu {
    /// The driver of a host. With `lock_pages`, system regions and leases are page-locked when they are made, so that transfers run at full speed. That
    /// allocates all their pages at once, needs a context on the first device, and takes time.
    pub fn new(driver: Arc<Driver>, lock_pages: bool) -> Gpu {
        Gpu { driver, lock_pages, logged: Arc::default() }
    }

    /// The driver, with at least one device.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Locks memory that was just mapped, if that is enabled. `present` says that all its pages are allocated. A failure is only logged: transfers of such
    /// memory are slower, and nothing else changes.
    ///
    /// # Safety
    /// The range is mapped, and remains so until the PageLock is dropped.
    pub(crate) unsafe fn lock(
        gpu: Option<&Gpu>,
        what: &str,
        at: NonNull<u8>,
        len: usize,
        present: bool,
    ) -> Option<PageLock> {
        let gpu = gpu.filter(|gpu| gpu.lock_pages)?;
        if !present && len > LOCKED_EMPTY_BYTES_MAX {
            log::debug!("{what} has no pages yet and is too large to be page-locked with them");
            return None;
        }
        // SAFETY: the caller's promise, passed on.
        match unsafe { PageLock::new(&gpu.driver, at, len) } {
            Ok(lock) => Some(lock),
            Err(error) => {
                // Logged only once, because clients can cause it as often as they like.
                let level = if gpu.logged.swap(true, Ordering::Relaxed) { log::Level::Debug } else { log::Level::Warn };
                log::log!(level, "{what} is not page-locked, so that its transfers to devices are slower: {error}");
                None
            }
        }
    }
}
