//! How is a POSIX shared memory object opened, checked and mapped?

mod watched;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::ptr::NonNull;

use nerite_memory::{MemoryOwner, unmap_in_pieces};

use crate::error::reason;
use crate::limits::{FREED_HERE_BYTES_MAX, KEY_BYTES_MAX};
use crate::objects::{DIRECTORY, Objects};
use crate::rights::Access;
use crate::source::{Mapping, Object, ObjectError, Source};
use crate::window::Window;
use watched::{Identity, WatchedMapping};

/// The objects of `shm_open`.
pub(crate) struct Posix;

impl Source for Posix {
    fn open(&self, key: &str) -> Result<Box<dyn Object>, ObjectError> {
        let file = open(key, 0).map_err(|error| open_failed(key, &error))?;
        Ok(Box::new(PosixObject::new(key, file).map_err(|cause| ObjectError::Invalid { cause })?))
    }

    fn access_of(&self, key: &str) -> Option<Access> {
        let name = key.trim_start_matches('/');
        if name.is_empty() || name.contains(['/', '\0']) || name.len() > KEY_BYTES_MAX {
            return None;
        }
        std::fs::symlink_metadata(format!("{DIRECTORY}/{name}")).ok().map(|found| access_of(&found))
    }

    fn page_bytes(&self) -> usize {
        page_bytes()
    }
}

/// An open object, with the size it had when it was checked.
pub(crate) struct PosixObject {
    key: Box<str>,
    file: File,
    byte_size: u64,
    present: bool,
    identity: Identity,
    access: Access,
}

impl PosixObject {
    /// Checks the file that was opened by `key`. The error says why it cannot be mapped.
    pub(crate) fn new(key: &str, file: File) -> Result<PosixObject, String> {
        let found = file.metadata().map_err(|error| reason(&error))?;
        if !found.file_type().is_file() {
            return Err(format!("it is {}, not a shared memory object", file_kind(found.file_type())));
        }
        if !is_tmpfs(&file).map_err(|error| reason(&error))? {
            // On a disk's file system every access could be an input or output that blocks or fails.
            return Err("it is not on a tmpfs; shared memory objects live in memory".to_string());
        }
        let byte_size = found.size();
        if i64::try_from(byte_size).is_err() {
            return Err(format!("its size, {}, is negative", byte_size as i64));
        }
        let present = page_bytes_of(&found) >= byte_size;
        let access = access_of(&found);
        Ok(PosixObject { key: key.into(), file, byte_size, present, identity: Identity::of(&found), access })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Object for PosixObject {
    fn byte_size(&self) -> u64 {
        self.byte_size
    }

    fn access(&self) -> Option<Access> {
        Some(self.access)
    }

    fn is_present(&self) -> bool {
        self.present
    }

    fn frees_little(&self) -> bool {
        self.file.metadata().is_ok_and(|found| has_few_pages(&found))
    }

    fn map(&self, window: Window) -> io::Result<Box<dyn Mapping>> {
        Ok(Box::new(WatchedMapping::new(self, window)?))
    }
}

/// A shared mapping, which needs no open descriptor. A client uses it directly, because it trusts its own object. A server watches it.
pub(crate) struct PosixMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread. `base` and `len` never change.
unsafe impl Send for PosixMapping {}
// SAFETY: as above. A shared PosixMapping only returns its address.
unsafe impl Sync for PosixMapping {}
impl MemoryOwner for PosixMapping {}

impl PosixMapping {
    /// Maps `window` of the object open as `file`, to read and write.
    pub(crate) fn new(file: &File, window: Window) -> io::Result<PosixMapping> {
        PosixMapping::with(file, window, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// As [`PosixMapping::new`], for reading only.
    pub(crate) fn to_read(file: &File, window: Window) -> io::Result<PosixMapping> {
        PosixMapping::with(file, window, libc::PROT_READ)
    }

    fn with(file: &File, window: Window, prot: libc::c_int) -> io::Result<PosixMapping> {
        let fd = file.as_raw_fd();
        let offset =
            libc::off_t::try_from(window.offset()).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice (null, no MAP_FIXED) replaces no memory of ours.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), window.len(), prot, libc::MAP_SHARED, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(PosixMapping { base, len: window.len() })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for PosixMapping {
    /// Unmaps the memory piece by piece. The kernel locks the whole address space during each call, so other threads that map or unmap memory wait until the
    /// call returns. One call for 3 GiB that were used takes 120 ms.
    fn drop(&mut self) {
        // SAFETY: `new` made exactly this mapping, and nothing else unmaps it. All users of its address hold this value, so this is the last owner.
        unsafe { unmap_in_pieces(self.base, self.len) };
    }
}

/// Opens the object of that key for reading and writing. Links are not followed. `more` adds flags, such as `O_CREAT`.
///
/// `O_NONBLOCK` has no effect on the object itself. Without it, a client that has a file lease on its object could block the opening thread for 45 seconds.
pub(crate) fn open(key: &str, more: libc::c_int) -> io::Result<File> {
    let path = CString::new(key).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK | more;
    // SAFETY: `path` is a C string that outlives the call.
    let fd = unsafe { libc::shm_open(path.as_ptr(), flags, 0o600) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: shm_open has just returned this descriptor, so it is open and nothing else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Removes the key. Mappings of the object remain valid.
pub(crate) fn unlink(key: &str) -> io::Result<()> {
    let path = CString::new(key).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: `path` is a C string that outlives the call.
    if unsafe { libc::shm_unlink(path.as_ptr()) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The system's page size.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: sysconf reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("POSIX demands a positive page size")
}

/// Why `shm_open` failed, for the client that named the key.
fn open_failed(key: &str, error: &io::Error) -> ObjectError {
    let cause = open_cause(key, error);
    let denied = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM));
    match std::fs::symlink_metadata(format!("{DIRECTORY}/{}", key.trim_start_matches('/'))) {
        Ok(found) if denied => ObjectError::Denied { access: access_of(&found), cause },
        _ => ObjectError::Open { cause },
    }
}

fn access_of(found: &std::fs::Metadata) -> Access {
    Access { uid: found.uid(), gid: found.gid(), mode: found.mode() }
}

/// Why `shm_open` failed, and the cure.
pub(crate) fn open_cause(key: &str, error: &io::Error) -> String {
    let name = key.trim_start_matches('/');
    if name.contains('\0') {
        return "the key contains a NUL character".to_string();
    }
    if name.contains('/') {
        return "a key is one name: no '/' may follow its first character".to_string();
    }
    if name.len() > KEY_BYTES_MAX {
        return format!("the key has {} bytes, at most {KEY_BYTES_MAX} are allowed", name.len());
    }
    let found = std::fs::symlink_metadata(format!("{DIRECTORY}/{name}"));
    match (error.raw_os_error(), found) {
        (Some(libc::ENOENT), _) => format!(
            "no object of that name in this IPC namespace ({}); if the client runs in another container, share {DIRECTORY} or \
             use a session socket",
            Objects::look()
        ),
        (Some(libc::EACCES | libc::EPERM), Ok(found)) => {
            // SAFETY: geteuid only reads.
            let uid = unsafe { libc::geteuid() };
            let (owner, mode) = (found.uid(), found.mode() & 0o7777);
            format!(
                "the server (uid {uid}) may not read and write it (owner uid {owner}, mode {mode:04o}); run both under one \
                 user or widen the object's mode"
            )
        }
        (Some(libc::EWOULDBLOCK), _) => "another process holds a lease on it".to_string(),
        (_, Ok(found)) if !found.file_type().is_file() => {
            format!("it is {}, not a shared memory object", file_kind(found.file_type()))
        }
        _ => reason(error),
    }
}

/// The bytes of the pages that an object has.
fn page_bytes_of(found: &std::fs::Metadata) -> u64 {
    // Blocks have 512 bytes, whatever block size the file system has.
    found.blocks().saturating_mul(512)
}

/// Whether the kernel frees an object quickly. The owner can fill the object after this check, but not much faster than the kernel frees it.
fn has_few_pages(found: &std::fs::Metadata) -> bool {
    page_bytes_of(found) <= FREED_HERE_BYTES_MAX
}

fn file_kind(found: std::fs::FileType) -> &'static str {
    match found {
        t if t.is_symlink() => "a symbolic link",
        t if t.is_dir() => "a directory",
        t if t.is_fifo() => "a FIFO",
        t if t.is_socket() => "a socket",
        _ => "a device",
    }
}

fn is_tmpfs(file: &File) -> io::Result<bool> {
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open while `file` lives, and `found` is writable for one statfs.
    if unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fstatfs returned 0, so it has filled the struct. All its fields are integers.
    let found = unsafe { found.assume_init() };
    Ok(found.f_type == libc::TMPFS_MAGIC)
}
