//! What does a server map of an object that a peer may shrink at any moment?

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

/// A mapping under the guard, and what is needed to say later what has become of its object.
pub(super) struct WatchedMapping {
    /// First, because fields drop in order: nobody may find the range in the guard's table once it is unmapped.
    watch: Watch,
    mapping: PosixMapping,
    key: Box<str>,
    identity: Identity,
    object_bytes: u64,
    offset: u64,
}

/// Which object it is, whatever its key: device and inode.
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
        // SAFETY: the range is what mmap has just made, in its whole pages, and holds the peer's object only; `mapping`
        // unmaps it after `watch` is gone, by the order of the fields.
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

// SAFETY: PosixMapping mapped `len` bytes at `base`, readable and writable, initialised by the kernel (tmpfs pages start as
// zeros), and only its Drop unmaps them. A peer that shrinks the object, or a file system without room, takes pages away but
// not the address range; an access to one is met by the guard, which puts pages of zeros under it and lets it go on.
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

    /// By its key, because no descriptor is kept; what the key leads to now may be another object.
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
        // A look at the name opens nothing, so it has no side effect on whatever is there now.
        let path = format!("{DIRECTORY}/{}", self.key.trim_start_matches('/'));
        match std::fs::symlink_metadata(path) {
            Ok(found) if Identity::of(&found) == self.identity => ObjectNow::Same { byte_size: found.size() },
            Ok(_) => ObjectNow::Another,
            Err(error) if error.kind() == io::ErrorKind::NotFound => ObjectNow::Gone,
            Err(_) => ObjectNow::Unknown,
        }
    }

    fn give_back(&self) {
        // SAFETY: the range is a mapping of ours while `self` lives. Where the guard has put pages of its own, what was
        // written there since goes, and nobody will believe it: the region is lost. Elsewhere the object keeps its bytes.
        let failed =
            unsafe { libc::madvise(self.mapping.base().as_ptr().cast(), self.mapping.len(), libc::MADV_DONTNEED) };
        debug_assert_eq!(failed, 0, "madvise of a mapping of our own");
    }
}
