//! How are the bytes of a private, unnamed file read?

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// The first bytes of an unnamed file, mapped for reading. They do not count as memory of the process, because the system can drop pages that are not used.
#[derive(Debug)]
pub struct FileBytes {
    ptr: NonNull<u8>,
    len: usize,
}

impl FileBytes {
    /// Maps the first `len` bytes of `file`. The caller passes a file without a name and without another descriptor, so that nobody can truncate it. A shorter
    /// file is refused.
    pub fn map(file: File, len: u64) -> io::Result<FileBytes> {
        let found = file.metadata()?.len();
        if found < len {
            return Err(io::Error::other(format!("the file has {found} bytes, {len} were written")));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(FileBytes { ptr: NonNull::dangling(), len });
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours. It is private and only read.
        let ptr =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        Ok(FileBytes { ptr, len })
    }
}

impl AsRef<[u8]> for FileBytes {
    #[expect(clippy::disallowed_methods, reason = "nobody else has the file, which has no name")]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the mapping has `len` bytes until it is dropped. The file is at least as long. It has no name, and `map` closed its last descriptor, so
        // nobody can change or truncate it.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

// SAFETY: the bytes are only read, from any thread, and the mapping belongs to the value.
unsafe impl Send for FileBytes {}
// SAFETY: as above.
unsafe impl Sync for FileBytes {}

impl Drop for FileBytes {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping is this value's own, and nobody can borrow from it any more.
            unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;

    use super::*;

    #[test]
    fn the_bytes_of_a_file_are_there_until_they_are_dropped() {
        let path = std::env::temp_dir().join(format!("nerite-file-bytes-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&[7; 5000]).unwrap();
        assert!(FileBytes::map(file.try_clone().unwrap(), 0).unwrap().as_ref().is_empty());
        let refused = FileBytes::map(file.try_clone().unwrap(), 5001).unwrap_err();
        assert_eq!(refused.to_string(), "the file has 5000 bytes, 5001 were written");
        let bytes = FileBytes::map(file, 5000).unwrap();
        assert_eq!(bytes.as_ref(), [7; 5000]);
    }
}
