//! Do all parts of a load see the same bytes of a model's files?
//!
//! A load looks at a file several times: to complete the configuration, to check the graph, to make the engine's sessions. All of them share the
//! bytes of one read. If a file is replaced or written to meanwhile, its length or its time of modification differs at the end of the load, and the
//! load fails. So the bytes that were checked are the bytes that are served.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::Status;

/// The files that one load looked at. Clones belong to the same load.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    seen: BTreeMap<PathBuf, Seen>,
    /// Whether the load has ended: no bytes are kept any more.
    is_ended: bool,
}

#[derive(Debug)]
struct Seen {
    state: FileState,
    bytes: Option<Arc<Vec<u8>>>,
}

/// Values that change if a file is replaced or written to: its length, and the seconds and nanoseconds of its last modification. Fingerprints of
/// model directories compare the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState(u64, i64, i64);

impl FileState {
    fn of(found: &Metadata) -> FileState {
        FileState(found.len(), found.mtime(), found.mtime_nsec())
    }
}

impl ModelFiles {
    /// Opens a file, for a caller that reads only parts of it.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let file = File::open(path)?;
        self.lock().note(path, FileState::of(&file.metadata()?))?;
        Ok(file)
    }

    /// Notes a file that an engine reads or maps by itself.
    pub fn watch(&self, path: &Path) -> io::Result<()> {
        let found = FileState::of(&fs::metadata(path)?);
        self.lock().note(path, found).map(drop)
    }

    /// All bytes of a file, which is read once in a load.
    pub fn bytes(&self, path: &Path) -> io::Result<Arc<Vec<u8>>> {
        if let Some(kept) = self.lock().seen.get(path).and_then(|seen| seen.bytes.clone()) {
            return Ok(kept);
        }
        let mut file = self.open(path)?;
        let before = FileState::of(&file.metadata()?);
        let bytes = Arc::new(read(&mut file, before.0)?);
        if FileState::of(&file.metadata()?) != before {
            return Err(changed());
        }
        let mut files = self.lock();
        let keeps = !files.is_ended;
        files.note(path, before)?.bytes = keeps.then(|| Arc::clone(&bytes));
        Ok(bytes)
    }

    /// The bytes of a file for their last use in a load. They are copied only if there is another reference.
    pub fn take_bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = self.bytes(path)?;
        if let Some(seen) = self.lock().seen.get_mut(path) {
            seen.bytes = None;
        }
        Ok(Arc::try_unwrap(bytes).unwrap_or_else(|shared| Vec::clone(&shared)))
    }

    /// Ends the load and drops all bytes. Fails if a file has changed since the first look. Later looks, for further
    /// instances, fail in the same way.
    pub fn end(&self, model: &str) -> Result<(), Status> {
        let mut files = self.lock();
        files.is_ended = true;
        files.seen.values_mut().for_each(|seen| seen.bytes = None);
        for (path, seen) in &files.seen {
            let now = fs::metadata(path).map(|found| FileState::of(&found));
            let why = match now {
                Ok(now) if now == seen.state => continue,
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
    /// Notes the state of a file, and fails if it differs from that of the first look.
    fn note(&mut self, path: &Path, found: FileState) -> io::Result<&mut Seen> {
        let seen = self.seen.entry(path.to_owned()).or_insert(Seen { state: found, bytes: None });
        if seen.state == found { Ok(seen) } else { Err(changed()) }
    }
}

/// All bytes of a file. It is expected to have this many; one more is asked for, to notice the end.
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

    use super::*;

    /// A file of its own with these bytes.
    fn file(name: &str, bytes: &[u8]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("nerite-model-files-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("model.onnx");
        write(&path, bytes, 1);
        path
    }

    /// Writes a file that was last modified this many seconds after 1970.
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
        let (path, files) = (file("once", &vec![7; LEN]), ModelFiles::default());
        let before = read_bytes();
        for _ in 0..4 {
            assert_eq!(files.clone().bytes(&path).unwrap().len(), LEN);
        }
        assert_eq!(files.take_bytes(&path).unwrap().len(), LEN);
        files.end("m").unwrap();
        // The count's own file is read, too.
        let read = read_bytes() - before;
        assert!((LEN as u64..LEN as u64 + 4096).contains(&read), "{read}");
    }

    #[test]
    fn bytes_of_one_owner_are_taken_and_not_copied() {
        let (path, files) = (file("taken", b"graph"), ModelFiles::default());
        let at = files.bytes(&path).unwrap().as_ptr().addr();
        let taken = files.take_bytes(&path).unwrap();
        assert_eq!((taken.as_ptr().addr(), &taken[..]), (at, &b"graph"[..]));
    }

    /// A change after the first look is noticed at each later look, and at the end of the load.
    #[track_caller]
    fn check(name: &str, change: impl Fn(&Path), is_noticed: bool) {
        type Look = fn(&ModelFiles, &Path) -> io::Result<()>;
        let looks: [Look; 3] = [
            |files, path| files.bytes(path).map(drop),
            |files, path| files.open(path).map(drop),
            |files, path| files.watch(path),
        ];
        for look in looks {
            let (path, files) = (file(name, b"graph"), ModelFiles::default());
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

    #[test]
    fn the_end_of_a_load_keeps_no_bytes() {
        let (path, files) = (file("ended", b"graph"), ModelFiles::default());
        let bytes = Arc::downgrade(&files.bytes(&path).unwrap());
        assert!(bytes.upgrade().is_some());
        files.end("m").unwrap();
        assert!(bytes.upgrade().is_none());
        // Bytes that are read for a later instance are not kept either.
        let later = Arc::downgrade(&files.bytes(&path).unwrap());
        assert!(later.upgrade().is_none());
    }
}
