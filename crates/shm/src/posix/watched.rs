//! How does a server map an object that a peer may shrink at any moment?

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

use nerite_guard::MovedPages;

use super::{PosixMapping, PosixObject, has_few_pages, open, page_bytes};
use crate::deferred::{Deferred, Unmap};
use crate::guard::{Watch, watch};
use crate::loss::ObjectNow;
use crate::objects::DIRECTORY;
use crate::source::Mapping;
use crate::window::Window;

/// A mapping watched by the guard, and what is needed to report the state of its object later.
pub(super) struct WatchedMapping {
    /// First, because fields drop in order: the range must leave the guard's table before it is unmapped.
    watch: Watch,
    mapping: PosixMapping,
    key: Box<str>,
    identity: Identity,
    object_bytes: u64,
    offset: u64,
}

/// The identity of an object, independent of its key: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(super) fn of(found: &Metadata) -> Identity {
        Identity { device: found.dev(), inode: found.ino() }
    }
}

impl WatchedMapping {
    /// Maps `window` of `object`.
    pub(super) fn new(object: &PosixObject, window: Window) -> io::Result<WatchedMapping> {
        let mapping = PosixMapping::new(&object.file, window)?;
        let pages = mapping.len().next_multiple_of(page_bytes());
        // SAFETY: the range is what mmap has just made, in whole pages, and contains only the peer's object. `mapping` unmaps it after `watch` is
        // dropped, by the order of the fields.
        let watch = unsafe { watch(mapping.base().as_ptr().expose_provenance(), pages) }?;
        let (key, identity) = (object.key.clone(), object.identity);
        Ok(WatchedMapping {
            watch,
            mapping,
            key,
            identity,
            object_bytes: object.byte_size,
            offset: window.offset() as u64,
        })
    }

    /// The metadata of the object that has the key now. The object is not opened, so this has no side effect on it.
    fn look(&self) -> io::Result<Metadata> {
        std::fs::symlink_metadata(format!("{DIRECTORY}/{}", self.key.trim_start_matches('/')))
    }

    /// The object, if it still has the key.
    fn named(&self) -> Option<Metadata> {
        self.look().ok().filter(|found| Identity::of(found) == self.identity)
    }
}

/// An object that has taken the key of the registered object.
struct AnotherObject(File);

impl Unmap for AnotherObject {
    fn byte_size(&self) -> usize {
        0
    }

    fn is_of_client(&self) -> bool {
        true
    }

    fn frees_little(&self) -> bool {
        self.0.metadata().is_ok_and(|found| has_few_pages(&found))
    }
}

// SAFETY: PosixMapping mapped `len` bytes at `base`, readable and writable, initialised by the kernel (tmpfs pages start as zeros), and only its Drop
// unmaps them. A peer that shrinks the object, or a full file system, can take pages away, but not the address range. The guard handles an access to
// such a page: it maps pages of zeros there, and the access continues.
unsafe impl Mapping for WatchedMapping {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn is_shareable(&self) -> bool {
        true
    }

    /// Opens the object by its key, because no descriptor is kept. Another object may have the key now.
    fn reopen(&self) -> io::Result<(OwnedFd, u64)> {
        // This is checked before the object is opened as well, because closing another object may take long.
        if self.named().is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = open(&self.key, 0)?;
        if file.metadata().is_ok_and(|found| Identity::of(&found) == self.identity) {
            return Ok((file.into(), self.offset));
        }
        drop(Deferred::new(AnotherObject(file)));
        Err(io::ErrorKind::NotFound.into())
    }

    fn is_of_client(&self) -> bool {
        true
    }

    /// The object is looked up by its key, because no descriptor is kept. An object that has lost its key may be held by the server alone, so it does not
    /// count as one with few pages.
    fn frees_little(&self) -> bool {
        self.named().is_some_and(|found| has_few_pages(&found))
    }

    fn lose(&self, at: usize) {
        self.watch.lose(at);
    }

    fn lost_at(&self) -> Option<usize> {
        self.watch.lost_at()
    }

    fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    fn object_now(&self) -> ObjectNow {
        match self.look() {
            Ok(found) if Identity::of(&found) == self.identity => ObjectNow::Same { byte_size: found.size() },
            Ok(_) => ObjectNow::Another,
            Err(error) if error.kind() == io::ErrorKind::NotFound => ObjectNow::Gone,
            Err(_) => ObjectNow::Unknown,
        }
    }

    fn take_moved(&self) -> Option<MovedPages> {
        self.watch.take_moved()
    }

    fn give_back(&self) {
        if !self.watch.is_replaced() {
            // Only another process found missing memory. This mapping still has pages of the object, which take long to unmap.
            return;
        }
        // SAFETY: the range is a mapping of ours while `self` lives. Where the guard has mapped pages of its own, bytes written there since are lost.
        // No request relies on them, because the region is lost. Elsewhere the object keeps its bytes.
        let failed =
            unsafe { libc::madvise(self.mapping.base().as_ptr().cast(), self.mapping.len(), libc::MADV_DONTNEED) };
        debug_assert_eq!(failed, 0, "madvise of a mapping of our own");
    }
}
