//! Which file do lines of the log go to, also after it was renamed?

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;

/// The mode of a new file, less the process's umask.
const MODE: u32 = 0o666;

/// Time between two looks at the path.
const FOLLOW_INTERVAL_MS: u64 = 1000;

/// A file that is opened anew when its path leads to another file or to none: `logrotate` renames it.
pub(super) struct LogFile {
    /// `None` if it is no regular file. Opening a FIFO anew would not lead to another log.
    path: Option<PathBuf>,
    file: Mutex<Arc<File>>,
    looked_ms: AtomicU64,
}

impl LogFile {
    pub(super) fn open(path: &Path) -> io::Result<LogFile> {
        let file = open_to_append(path)?;
        let path = file.metadata()?.is_file().then(|| path.to_owned());
        Ok(LogFile { path, file: Mutex::new(Arc::new(file)), looked_ms: AtomicU64::new(0) })
    }

    #[cfg(test)]
    pub(super) fn unnamed(file: File) -> LogFile {
        LogFile { path: None, file: Mutex::new(Arc::new(file)), looked_ms: AtomicU64::new(0) }
    }

    /// The file that is open now.
    pub(super) fn now(&self) -> Arc<File> {
        Arc::clone(&self.file.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens the path if it does not lead to the open file any more, and returns whether it did. Looks at most once in [`FOLLOW_INTERVAL_MS`]. If the path cannot
    /// be opened, lines go on to the file so far.
    pub(super) fn follow(&self, now_ms: u64) -> bool {
        let Some(path) = &self.path else { return false };
        if now_ms < self.looked_ms.load(Ordering::Relaxed).saturating_add(FOLLOW_INTERVAL_MS) {
            return false;
        }
        self.looked_ms.store(now_ms, Ordering::Relaxed);
        let Ok(open) = self.now().metadata() else { return false };
        let is_elsewhere = match fs::metadata(path) {
            Ok(found) => found.is_file() && !is_same(&found, &open),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        let Some(next) = is_elsewhere.then(|| open_to_append(path).ok()).flatten() else { return false };
        self.set(next);
        true
    }

    /// Opens the path, and returns whether it leads to another file than before. If it cannot be opened, lines go on to the file so far.
    pub(super) fn reopen(&self) -> io::Result<bool> {
        let Some(path) = &self.path else { return Err(io::Error::other("it is no regular file")) };
        let (next, before) = (open_to_append(path)?, self.now().metadata()?);
        let found = next.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is no regular file any more"));
        }
        self.set(next);
        Ok(!is_same(&found, &before))
    }

    fn set(&self, next: File) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Opens a file, or a FIFO that somebody reads, so that lines are added to its end.
fn open_to_append(path: &Path) -> io::Result<File> {
    // A FIFO that nobody reads would otherwise block the start without a word.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::from_raw_mode(MODE)).map_err(explained)?;
    // Each write is preceded by a poll, and a write that has begun must be completed. So writes may block.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(File::from(file))
}

fn explained(error: Errno) -> io::Error {
    let cause = io::Error::from(error);
    if error == Errno::NXIO {
        return io::Error::new(
            cause.kind(),
            format!("it is a FIFO that nobody reads, or a socket; start its reader first ({cause})"),
        );
    }
    cause
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn lines_follow_the_path_when_the_file_is_renamed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("log"), folder.path().join("log.1"));
        let log = LogFile::open(&path).expect("a file");
        let put = |line: &[u8]| (&*log.now()).write_all(line).expect("room");
        put(b"one");
        assert!(!log.follow(5000), "nothing changed");
        fs::rename(&path, &old).expect("renamed");
        assert!(!log.follow(5000 + FOLLOW_INTERVAL_MS - 1), "it was looked at a moment ago");
        put(b"two");
        assert!(log.follow(5000 + FOLLOW_INTERVAL_MS));
        put(b"three");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "from elsewhere, ").expect("another file");
        assert!(log.follow(5000 + 2 * FOLLOW_INTERVAL_MS));
        put(b"four");
        let text = |path: &Path| fs::read_to_string(path).expect("text");
        assert_eq!((text(&old), text(&path)), ("onetwo".to_owned(), "from elsewhere, four".to_owned()));
        fs::remove_dir_all(folder.path()).expect("removed");
        assert!(!log.follow(5000 + 3 * FOLLOW_INTERVAL_MS), "there is no folder");
        put(b"five");
    }

    #[test]
    fn a_path_that_cannot_be_opened_again_leaves_the_file_so_far() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("log"), folder.path().join("log.1"));
        let log = LogFile::open(&path).expect("a file");
        let put = |line: &[u8]| (&*log.now()).write_all(line).expect("room");
        assert!(!log.reopen().expect("a file"), "it is the same one");
        fs::rename(&path, &old).expect("renamed");
        fs::create_dir(&path).expect("a folder");
        put(b"one");
        assert_eq!(log.reopen().expect_err("a folder").kind(), io::ErrorKind::IsADirectory);
        put(b"two");
        fs::remove_dir(&path).expect("removed");
        assert!(log.reopen().expect("a new file"));
        put(b"three");
        let text = |path: &Path| fs::read_to_string(path).expect("text");
        assert_eq!((text(&old), text(&path)), ("onetwo".to_owned(), "three".to_owned()));
        let device = LogFile::open("/dev/null".as_ref()).expect("a device");
        assert_eq!(device.reopen().expect_err("a device").to_string(), "it is no regular file");
    }

    #[test]
    fn a_fifo_is_opened_once_somebody_reads_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o600)).expect("a FIFO");
        let refused = open_to_append(&path).expect_err("nobody reads it").to_string();
        assert!(refused.starts_with("it is a FIFO that nobody reads"), "{refused}");
        let reader = open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("a reader");
        let mut writer = open_to_append(&path).expect("somebody reads it");
        assert!(!fcntl_getfl(&writer).expect("flags").contains(OFlags::NONBLOCK));
        writer.write_all(b"line").expect("room");
        drop(writer);
        let mut text = String::new();
        File::from(reader).read_to_string(&mut text).expect("text");
        assert_eq!(text, "line");
    }
}
