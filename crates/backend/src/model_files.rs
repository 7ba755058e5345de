//! Do all parts of a load see the same bytes of a model's files?
//!
//! A load looks at a file several times: to complete the configuration, to check the graph, to make the engine's sessions. All of them share the
//! bytes of one read. If a file is replaced or written to meanwhile, its length, its modification time, its inode number or its change time differs
//! at the end of the load, and the load fails. So the bytes that were checked are the bytes that are served.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::Status;

/// The files that one load has examined. Clones belong to the same load.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    seen: BTreeMap<PathBuf, Seen>,
    /// Whether the load has ended. No bytes are kept after that.
    is_ended: bool,
}

#[derive(Debug)]
struct Seen {
    state: FileState,
    inode: InodeState,
    bytes: Option<Arc<Vec<u8>>>,
}

const SECOND_NS: i64 = 1_000_000_000;

/// Values that change if a file is replaced or written to: its length, and its modification time in seconds and nanoseconds. Fingerprints of model
/// directories compare the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileState(u64, i64, i64);

impl FileState {
    pub(crate) fn of(found: &Metadata) -> FileState {
        FileState(found.len(), found.mtime(), found.mtime_nsec())
    }

    /// The state of a file of `bytes` bytes that was last modified `modified_ns` nanoseconds after 1970.
    pub(crate) fn new(bytes: u64, modified_ns: i64) -> FileState {
        FileState(bytes, modified_ns.div_euclid(SECOND_NS), modified_ns.rem_euclid(SECOND_NS))
    }
}

/// Values that change even if a file is replaced by one of the same length and modification time: its device, its inode number, and its change time
/// (`ctime`), which no program can set. They are compared only during the load, because new permissions or links change them as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InodeState(u64, u64, i64, i64);

impl InodeState {
    fn of(found: &Metadata) -> InodeState {
        InodeState(found.dev(), found.ino(), found.ctime(), found.ctime_nsec())
    }
}

impl ModelFiles {
    /// Opens a file, for a caller that reads only parts of it.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let file = File::open(path)?;
        self.lock().note(path, &file.metadata()?)?;
        Ok(file)
    }

    /// Notes the state of a file that an engine opens by itself.
    pub fn watch(&self, path: &Path) -> io::Result<()> {
        let found = fs::metadata(path)?;
        self.lock().note(path, &found).map(drop)
    }

    /// All bytes of a file. A load reads each file once.
    pub fn bytes(&self, path: &Path) -> io::Result<Arc<Vec<u8>>> {
        if let Some(kept) = self.lock().seen.get(path).and_then(|seen| seen.bytes.clone()) {
            return Ok(kept);
        }
        let mut file = self.open(path)?;
        let before = file.metadata()?;
        let bytes = Arc::new(read(&mut file, before.len())?);
        let after = file.metadata()?;
        if FileState::of(&after) != FileState::of(&before) {
            return Err(changed());
        }
        let mut files = self.lock();
        let keeps = !files.is_ended;
        files.note(path, &after)?.bytes = keeps.then(|| Arc::clone(&bytes));
        Ok(bytes)
    }

    /// As [`ModelFiles::bytes`], for the last use of the bytes in a load. They are copied only if there is another reference.
    pub fn take_bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = self.bytes(path)?;
        if let Some(seen) = self.lock().seen.get_mut(path) {
            seen.bytes = None;
        }
        Ok(Arc::try_unwrap(bytes).unwrap_or_else(|shared| Vec::clone(&shared)))
    }

    /// Ends the load and drops all bytes. Fails if a file has changed since the load first looked at it. Later looks, for further instances, fail in
    /// the same way.
    pub fn end(&self, model: &str) -> Result<(), Status> {
        let mut files = self.lock();
        let has_ended = std::mem::replace(&mut files.is_ended, true);
        files.seen.values_mut().for_each(|seen| seen.bytes = None);
        for (path, seen) in &files.seen {
            let why = match fs::metadata(path) {
                Ok(now) if seen.is_same(&now, has_ended) => continue,
                Ok(_) => changed(),
                Err(error) => error,
            };
            return Err(Status::unavailable(format!("unable to load model '{model}': '{}': {why}", path.display())));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    /// Notes the state of a file. Fails if the state was noted before and differs.
    fn note(&mut self, path: &Path, found: &Metadata) -> io::Result<&mut Seen> {
        let first = || Seen { state: FileState::of(found), inode: InodeState::of(found), bytes: None };
        let seen = self.seen.entry(path.to_owned()).or_insert_with(first);
        if seen.is_same(found, self.is_ended) { Ok(seen) } else { Err(changed()) }
    }
}

impl Seen {
    /// Whether the file is as it was at the first look. After the load, only the values that a fingerprint compares count. If another value changed,
    /// further instances would be refused, but the model would not be loaded again, because its fingerprint is the same.
    fn is_same(&self, now: &Metadata, has_ended: bool) -> bool {
        self.state == FileState::of(now) && (has_ended || self.inode == InodeState::of(now))
    }
}

/// Reads the first `expected` bytes of a file. Fails if the file has fewer. The caller compares the metadata afterwards, to notice a file that has
/// grown.
fn read(file: &mut File, expected: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(expected).map_err(io::Error::other)?).map_err(io::Error::other)?;
    file.take(expected).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == expected { Ok(bytes) } else { Err(changed()) }
}

fn changed() -> io::Error {
    io::Error::other("it was changed after the load began; load the model again")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tempfile::TempDir;

    use super::*;

    /// Makes a file with these bytes in a folder of its own, which is removed when the first value is dropped.
    fn file(bytes: &[u8]) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        write(&path, bytes, 1);
        (folder, path)
    }

    /// Writes a file, and sets its time of modification to this many seconds after 1970.
    fn write(path: &Path, bytes: &[u8], modified_s: u64) {
        fs::write(path, bytes).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(modified_s);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }

    /// Bytes that this thread has read from files.
    fn read_bytes() -> u64 {
        let text = fs::read_to_string("/proc/thread-self/io").unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
        count.parse().unwrap()
    }

    #[test]
    fn a_file_is_read_once() {
        const LEN: usize = 1 << 20;
        let ((_folder, path), files) = (file(&vec![7; LEN]), ModelFiles::default());
        let before = read_bytes();
        for _ in 0..4 {
            assert_eq!(files.clone().bytes(&path).unwrap().len(), LEN);
        }
        assert_eq!(files.take_bytes(&path).unwrap().len(), LEN);
        files.end("m").unwrap();
        // The file with the count is itself read in between.
        let read = read_bytes() - before;
        assert!((LEN as u64..LEN as u64 + 4096).contains(&read), "{read}");
    }

    #[test]
    fn bytes_of_one_owner_are_taken_and_not_copied() {
        let ((_folder, path), files) = (file(b"graph"), ModelFiles::default());
        let at = files.bytes(&path).unwrap().as_ptr().addr();
        let taken = files.take_bytes(&path).unwrap();
        assert_eq!((taken.as_ptr().addr(), &taken[..]), (at, &b"graph"[..]));
    }

    /// Checks whether a change after the file was first examined is noticed at later calls and at the end of the load.
    #[track_caller]
    fn check(name: &str, change: impl Fn(&Path), is_noticed: bool) {
        type Look = fn(&ModelFiles, &Path) -> io::Result<()>;
        let looks: [Look; 3] = [
            |files, path| files.bytes(path).map(drop),
            |files, path| files.open(path).map(drop),
            |files, path| files.watch(path),
        ];
        for look in looks {
            let ((_folder, path), files) = (file(b"graph"), ModelFiles::default());
            look(&files, &path).unwrap();
            change(&path);
            assert_eq!(files.watch(&path).is_err(), is_noticed, "{name}");
            let ended = files.end("m").map_err(|status| status.message);
            assert_eq!(ended.is_err(), is_noticed, "{name}: {ended:?}");
            assert_eq!(files.bytes(&path).is_err(), is_noticed, "{name}: for one more instance");
        }
    }

    #[test]
    fn a_file_that_changed_is_noticed() {
        check("same", |_| {}, false);
        check("longer", |path| write(path, b"graphs", 1), true);
        check("shorter", |path| write(path, b"", 1), true);
        check("later", |path| write(path, b"other", 2), true);
        check("removed", |path| fs::remove_file(path).unwrap(), true);
        let replaced = |path: &Path| {
            let beside = path.with_extension("new");
            write(&beside, b"other", 2);
            fs::rename(beside, path).unwrap();
        };
        check("replaced", replaced, true);
    }

    /// As `check`, for a change that keeps the file's length and modification time.
    #[track_caller]
    fn check_kept_time(name: &str, change: impl Fn(&Path)) {
        let ((_folder, path), files) = (file(b"graph"), ModelFiles::default());
        files.bytes(&path).unwrap();
        change(&path);
        assert!(files.watch(&path).is_err(), "{name}: at the next look");
        assert!(files.end("m").is_err(), "{name}: at the end");
        let ((_folder, path), files) = (file(b"graph"), ModelFiles::default());
        files.bytes(&path).unwrap();
        files.end("m").unwrap();
        change(&path);
        assert!(files.bytes(&path).is_ok(), "{name}: a later instance is not refused, as a reload is not due");
    }

    #[test]
    fn a_file_that_keeps_its_length_and_time_is_noticed_during_the_load() {
        check_kept_time("kept-replaced", |path| {
            let beside = path.with_extension("new");
            write(&beside, b"other", 1);
            fs::rename(beside, path).unwrap();
        });
        check_kept_time("kept-written", |path| {
            // The file system's clock advances in steps, so the first write may not change the time.
            let before = InodeState::of(&fs::metadata(path).unwrap());
            while InodeState::of(&fs::metadata(path).unwrap()) == before {
                write(path, b"other", 1);
            }
        });
    }

    #[test]
    fn the_end_of_a_load_keeps_no_bytes() {
        let ((_folder, path), files) = (file(b"graph"), ModelFiles::default());
        let bytes = Arc::downgrade(&files.bytes(&path).unwrap());
        assert!(bytes.upgrade().is_some());
        files.end("m").unwrap();
        assert!(bytes.upgrade().is_none());
        // Bytes that are read for a later instance are not kept either.
        let later = Arc::downgrade(&files.bytes(&path).unwrap());
        assert!(later.upgrade().is_none());
    }
}
