//! How does a server map an object that a peer may shrink at any moment?

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

use super::{PosixMapping, PosixObject, open, page_bytes};
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
    pub(super) fn of(found: &std::fs::Metadata) -> Identity {
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

    /// Opens it by its key, because no descriptor is kept. Another object may have the key now.
    fn reopen(&self) -> io::Result<(OwnedFd, u64)> {
        let file = open(&self.key, 0)?;
        if Identity::of(&file.metadata()?) != self.identity {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok((file.into(), self.offset))
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
        // symlink_metadata opens nothing, so it has no side effect on the file.
        let path = format!("{DIRECTORY}/{}", self.key.trim_start_matches('/'));
        match std::fs::symlink_metadata(path) {
            Ok(found) if Identity::of(&found) == self.identity => ObjectNow::Same { byte_size: found.size() },
            Ok(_) => ObjectNow::Another,
            Err(error) if error.kind() == io::ErrorKind::NotFound => ObjectNow::Gone,
            Err(_) => ObjectNow::Unknown,
        }
    }

    fn give_back(&self) {
        // SAFETY: the range is a mapping of ours while `self` lives. Where the guard has mapped pages of its own, bytes written there since are lost.
        // No request relies on them, because the region is lost. Elsewhere the object keeps its bytes.
        let failed =
            unsafe { libc::madvise(self.mapping.base().as_ptr().cast(), self.mapping.len(), libc::MADV_DONTNEED) };
        debug_assert_eq!(failed, 0, "madvise of a mapping of our own");
    }
}
