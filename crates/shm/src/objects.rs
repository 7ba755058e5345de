//! How does an error describe the host's shared memory?

use std::fmt;
use std::mem::MaybeUninit;

use crate::limits::OBJECTS_COUNTED_MAX;

/// The directory in which Linux keeps POSIX shared memory objects.
pub(crate) const DIRECTORY: &str = "/dev/shm";

/// The state of `/dev/shm`. Displayed as `/dev/shm is 64 MiB, 12 objects`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objects {
    /// Size of the file system in bytes. `None` if it cannot be determined.
    pub total_bytes: Option<u64>,
    /// Free bytes of the file system.
    pub free_bytes: Option<u64>,
    /// Number of objects, counted up to `limits::OBJECTS_COUNTED_MAX`.
    pub count: usize,
}

impl Objects {
    /// Reads the current state. Use it only for error texts and diagnosis, because it reads a directory.
    pub fn look() -> Objects {
        let count = std::fs::read_dir(DIRECTORY).map_or(0, |entries| entries.take(OBJECTS_COUNTED_MAX).count());
        let space = space();
        Objects { total_bytes: space.map(|(total, _)| total), free_bytes: space.map(|(_, free)| free), count }
    }

    /// The free bytes as text.
    pub(crate) fn free(&self) -> String {
        self.free_bytes.map_or_else(|| "room unknown".to_string(), |free| format!("{} free", Size(free)))
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.total_bytes {
            Some(total) => write!(f, "{DIRECTORY} is {}, ", Size(total))?,
            None => write!(f, "{DIRECTORY} is missing, ")?,
        }
        let more = if self.count >= OBJECTS_COUNTED_MAX { " or more" } else { "" };
        write!(f, "{}{more} object{}", self.count, if self.count == 1 { "" } else { "s" })
    }
}

/// Total and free bytes of the file system.
fn space() -> Option<(u64, u64)> {
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a C string literal, and `found` is writable for one statvfs.
    if unsafe { libc::statvfs(c"/dev/shm".as_ptr(), found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: statvfs returned 0, so it has filled the struct; all of its fields are integers.
    let found = unsafe { found.assume_init() };
    Some((found.f_blocks.saturating_mul(found.f_frsize), found.f_bavail.saturating_mul(found.f_frsize)))
}

/// Bytes for a reader, in the largest unit of which there is at least one, rounded down.
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match UNITS.iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(total_bytes: Option<u64>, count: usize, expect: &str) {
        assert_eq!(Objects { total_bytes, free_bytes: None, count }.to_string(), expect);
    }

    #[test]
    fn the_state_of_shared_memory_is_displayed_as_text() {
        check(Some(64 << 20), 12, "/dev/shm is 64 MiB, 12 objects");
        check(Some(64 << 20), 1, "/dev/shm is 64 MiB, 1 object");
        check(Some((3 << 30) - 1), 1000, "/dev/shm is 2 GiB, 1000 or more objects");
        check(Some(0), 0, "/dev/shm is 0 bytes, 0 objects");
        check(None, 0, "/dev/shm is missing, 0 objects");
    }
}
