//! How is a model's tree of files removed, whatever its shape?
//!
//! ```text
//!   top/a/b/c        top/a  top/1/c       top/1  top/2
//!   top/a/file  ──►  (a is empty)    ──►  (1 is empty)  ──►  top
//! ```
//!
//! The entries of each directory at the top are moved up beside it, and then the directory is removed. So each directory is moved once. There is no
//! recursion that could overflow in a deep tree, and neither paths nor lists of open directories grow with its depth.

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, openat, renameat, unlinkat};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a directory and all in it, on the calling thread. What is left at `until` stays. An error is that of one entry that could not be removed.
/// The other entries are removed.
pub(crate) fn remove_tree(path: &Path, until: Instant) -> io::Result<()> {
    let top = match openat(CWD, path, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let mut removal = Removal { top, until, steps: 0, names: 0 };
    removal.empty_top()?;
    gone(unlinkat(CWD, path, AtFlags::REMOVEDIR))?;
    Ok(())
}

struct Removal {
    top: OwnedFd,
    until: Instant,
    /// Entries that were removed or moved so far.
    steps: u64,
    /// The last number that was used in a new name.
    names: u64,
}

/// The outcome for an entry.
enum Entry {
    Gone,
    /// A directory that is not empty.
    Filled,
}

impl Removal {
    /// Removes the entries of the top until none is left, or none can be removed or moved.
    fn empty_top(&mut self) -> io::Result<()> {
        loop {
            let (before, mut failure) = (self.steps, None);
            let mut is_empty = true;
            for entry in Dir::read_from(&self.top)? {
                let entry = entry?;
                if !is_child(entry.file_name()) {
                    continue;
                }
                is_empty = false;
                if let Err(error) = self.remove(entry.file_name()) {
                    failure.get_or_insert(error);
                }
                self.check_time()?;
            }
            match failure {
                _ if is_empty => return Ok(()),
                Some(error) if self.steps == before => return Err(error),
                _ => {}
            }
        }
    }

    /// Removes an entry of the top. Entries below it are at the top afterwards.
    fn remove(&mut self, name: &CStr) -> io::Result<()> {
        if let Entry::Filled = removed(&self.top, name)? {
            let directory = opened(&self.top, name)?;
            let mut failure = None;
            for entry in Dir::read_from(&directory)? {
                let entry = entry?;
                if is_child(entry.file_name())
                    && let Err(error) = self.lift(&directory, entry.file_name())
                {
                    failure.get_or_insert(error);
                }
                self.check_time()?;
            }
            if let Some(error) = failure {
                return Err(error);
            }
            gone(unlinkat(&self.top, name, AtFlags::REMOVEDIR))?;
        }
        self.steps += 1;
        Ok(())
    }

    /// Removes an entry of a directory, or moves it to the top.
    fn lift(&mut self, from: &OwnedFd, name: &CStr) -> io::Result<()> {
        if let Entry::Filled = removed(from, name)? {
            // A process may move a directory only if it may write in it.
            drop(opened(from, name)?);
            loop {
                self.names += 1;
                match renameat(from, name, &self.top, format!("nerite-removed-{}", self.names)) {
                    // The model may have given that name.
                    Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => self.check_time()?,
                    moved => break moved?,
                }
            }
        }
        self.steps += 1;
        Ok(())
    }

    fn check_time(&self) -> io::Result<()> {
        if Instant::now() < self.until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

/// Removes an entry, unless it is a directory that is not empty.
fn removed(from: &OwnedFd, name: &CStr) -> io::Result<Entry> {
    match gone(unlinkat(from, name, AtFlags::empty())) {
        Ok(()) => return Ok(Entry::Gone),
        // POSIX has EPERM for a directory.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    match gone(unlinkat(from, name, AtFlags::REMOVEDIR)) {
        Ok(()) => Ok(Entry::Gone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Entry::Filled),
        // It is not a directory, and could not be removed as a file either.
        Err(Errno::NOTDIR) => Err(Errno::PERM.into()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory, and gives its owner all rights: a model can make one with mode 0.
fn opened(from: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    let place = openat(from, name, DIRECTORY | OFlags::PATH, Mode::empty())?;
    let mode = fstat(&place)?.st_mode;
    if mode & 0o700 != 0o700 {
        // The link leads to the open directory, even if another one has its name now.
        fs::set_permissions(format!("/proc/self/fd/{}", place.as_raw_fd()), Permissions::from_mode(0o700))?;
    }
    Ok(openat(&place, c".", DIRECTORY, Mode::empty())?)
}

fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn is_child(name: &CStr) -> bool {
    name != c"." && name != c".."
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use rustix::fs::mkdirat;

    use super::*;

    /// In memory if possible: many directories take long on a busy disk.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_mins(5)
    }

    /// Directories in one another, each with a file.
    fn nested(path: &Path, depth: usize, mode: u32) {
        fs::create_dir(path).unwrap();
        let mut inner = openat(CWD, path, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..depth {
            openat(&inner, c"file", OFlags::CREATE | OFlags::WRONLY, Mode::empty()).unwrap();
            mkdirat(&inner, c"directory", 0o700.into()).unwrap();
            let next = openat(&inner, c"directory", DIRECTORY, Mode::empty()).unwrap();
            rustix::fs::fchmod(&inner, mode.into()).unwrap();
            inner = next;
        }
    }

    /// Recursion would overflow the 2 MiB of a test's stack, and there are more than a process may have descriptors.
    #[test]
    fn a_deep_tree_goes_without_recursion() {
        let folder = folder();
        let path = folder.path().join("deep");
        nested(&path, 20_000, 0o700);
        remove_tree(&path, soon()).unwrap();
        assert!(!path.exists());
        remove_tree(&path, soon()).unwrap();
    }

    #[test]
    fn a_wide_tree_goes_with_names_that_are_taken_and_directories_that_nobody_may_enter() {
        let folder = folder();
        let (path, kept) = (folder.path().join("wide"), folder.path().join("kept"));
        fs::write(&kept, "text").unwrap();
        fs::create_dir(&path).unwrap();
        for number in 0..20 {
            nested(&path.join(format!("shut-{number}")), 10, 0);
            nested(&path.join(format!("nerite-removed-{number}")), 3, 0o500);
            fs::write(path.join(format!("nerite-removed-{}", 100 + number)), "text").unwrap();
            std::os::unix::fs::symlink(folder.path(), path.join(format!("link-{number}"))).unwrap();
        }
        remove_tree(&path, soon()).unwrap();
        assert!(!path.exists() && kept.exists());
    }

    #[test]
    fn what_has_no_time_left_stays() {
        let folder = folder();
        let path = folder.path().join("some");
        nested(&path, 3, 0o700);
        assert_eq!(remove_tree(&path, Instant::now()).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(path.exists());
        std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
        assert!(remove_tree(&folder.path().join("link"), soon()).is_err());
        assert!(path.exists());
    }
}
