//! How are traces written to files that are complete JSON after every trace?

use std::fs::{self, File, FileType, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

/// Only the server's user may read a new file, because it may contain tensors of any client.
const MODE: u32 = 0o600;
/// The array of a file before its first trace.
const EMPTY: &[u8] = b"[]";

/// A file of traces. It is a JSON array. Each trace is added to it by one write.
#[derive(Debug)]
pub struct TraceFile {
    file: File,
    path: PathBuf,
    /// Tells this file from others: device and inode.
    identity: (u64, u64),
    /// Where the closing bracket is.
    end: u64,
    /// Whether something else may lie behind `end`, because a write failed and could not be undone.
    is_torn: bool,
}

impl TraceFile {
    /// Makes a file with an empty array. An existing file is overwritten, as in Triton.
    pub fn create(path: &Path) -> io::Result<TraceFile> {
        TraceFile::begin(path, OFlags::TRUNC)
    }

    /// As [`TraceFile::create`], but if there is another file by now, its content is kept. It is an error unless that file is empty.
    fn create_again(path: &Path) -> io::Result<TraceFile> {
        TraceFile::begin(path, OFlags::empty())
    }

    fn begin(path: &Path, more: OFlags) -> io::Result<TraceFile> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("failed creating trace file '{}': {error}", path.display()))
        };
        let (file, found) = open_to_write(path, more).map_err(named)?;
        if found.len() > 0 && !more.contains(OFlags::TRUNC) {
            let text = format!("another file of {} bytes is there by now, which is kept; move it away", found.len());
            return Err(named(io::Error::new(io::ErrorKind::AlreadyExists, text)));
        }
        if let Err(error) = file.write_all_at(EMPTY, 0) {
            // An empty file is not valid JSON, so it is removed. Anything but a regular file, for example a device, stays.
            if found.is_file() {
                let _ = fs::remove_file(path);
            }
            return Err(named(error));
        }
        let identity = (found.dev(), found.ino());
        Ok(TraceFile { file, path: path.to_owned(), identity, end: 1, is_torn: false })
    }

    /// Adds the objects of a trace. Makes the file anew if it was removed or renamed. If there is another file in its place, that file is not
    /// overwritten, and the error names it.
    pub fn add(&mut self, mut objects: Vec<u8>) -> io::Result<()> {
        if !self.has_its_name() {
            *self = TraceFile::create_again(&self.path)?;
        }
        if self.is_torn {
            self.undo().map_err(|error| self.named(&error))?;
        }
        if self.end > 1 {
            objects.insert(0, b',');
        }
        objects.push(b']');
        if let Err(error) = self.file.write_all_at(&objects, self.end) {
            self.is_torn = self.undo().is_err();
            return Err(self.named(&error));
        }
        self.end += objects.len() as u64 - 1;
        Ok(())
    }

    /// Whether the path still leads to this file. If this cannot be checked now, the answer is yes.
    fn has_its_name(&self) -> bool {
        match fs::metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) == self.identity,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Removes the bytes of a failed write. The bracket is written first. It replaces a byte that the file had before, so this works on a full disk.
    fn undo(&mut self) -> io::Result<()> {
        self.file.write_all_at(b"]", self.end)?;
        self.file.set_len(self.end + 1)?;
        self.is_torn = false;
        Ok(())
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("failed writing to trace file '{}': {error}", self.path.display()))
    }
}

/// Opens the path. It may lead to something other than a regular file by now.
fn open_to_write(path: &Path, more: OFlags) -> io::Result<(File, Metadata)> {
    // Without `NONBLOCK`, opening a FIFO blocks until a process opens it for reading.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK | more;
    let unusable = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
    let file = match open(path, flags, Mode::from_raw_mode(MODE)) {
        Ok(file) => File::from(file),
        Err(error) => {
            let fault = fs::metadata(path).ok().and_then(|found| fault_of(found.file_type()));
            return Err(fault.map_or_else(|| error.into(), unusable));
        }
    };
    let found = file.metadata()?;
    match fault_of(found.file_type()) {
        Some(fault) => Err(unusable(fault)),
        None => Ok((file, found)),
    }
}

/// Why no traces can be written to something of this type.
pub(crate) fn fault_of(found: FileType) -> Option<String> {
    let kind = match found {
        found if found.is_fifo() => "a FIFO",
        found if found.is_socket() => "a socket",
        found if found.is_dir() => "a directory",
        _ => return None,
    };
    Some(format!("it is {kind}; name a regular file, or a path where there is nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(folder: &tempfile::TempDir) -> (TraceFile, impl Fn() -> String) {
        let path = folder.path().join("t.json");
        (TraceFile::create(&path).expect("a file"), move || fs::read_to_string(&path).expect("the file"))
    }

    #[test]
    fn the_file_is_whole_after_every_trace() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut file, read) = made(&folder);
        assert_eq!(read(), "[]");
        file.add(b"{\"id\":1},{\"id\":1}".to_vec()).expect("written");
        assert_eq!(read(), "[{\"id\":1},{\"id\":1}]");
        file.add(b"{\"id\":2}".to_vec()).expect("written");
        assert_eq!(read(), "[{\"id\":1},{\"id\":1},{\"id\":2}]");
    }

    #[test]
    fn what_a_failed_write_left_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut file, read) = made(&folder);
        file.add(b"1".to_vec()).expect("written");
        // The state after the disk was full in the middle of the next trace.
        file.file.write_all_at(b",{\"id", file.end).expect("written");
        file.undo().expect("there is room");
        assert_eq!(read(), "[1]");
        file.file.write_all_at(b",{\"id\":\"long", file.end).expect("written");
        file.is_torn = true;
        file.add(b"2".to_vec()).expect("written");
        assert_eq!(read(), "[1,2]");
    }

    #[test]
    fn a_file_that_was_removed_or_renamed_is_made_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut file, read) = made(&folder);
        file.add(b"1".to_vec()).expect("written");
        fs::rename(folder.path().join("t.json"), folder.path().join("old.json")).expect("renamed");
        file.add(b"2".to_vec()).expect("written");
        file.add(b"3".to_vec()).expect("written");
        assert_eq!(read(), "[2,3]");
        assert_eq!(fs::read_to_string(folder.path().join("old.json")).expect("the old one"), "[1]");
        fs::remove_dir_all(folder.path()).expect("removed");
        let lost = file.add(b"4".to_vec()).expect_err("there is no folder").to_string();
        assert!(lost.starts_with("failed creating trace file '"), "{lost}");
        fs::create_dir(folder.path()).expect("made");
        file.add(b"5".to_vec()).expect("written");
        assert_eq!(read(), "[5]");
    }

    #[test]
    fn what_took_the_place_of_the_file_keeps_its_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("t.json"), folder.path().join("old.json"));
        fs::write(&path, "of an earlier server").expect("written");
        let (mut file, read) = made(&folder);
        assert_eq!(read(), "[]", "as in Triton");
        file.add(b"1".to_vec()).expect("written");
        fs::rename(&path, &old).expect("renamed");
        fs::write(&path, "another's").expect("written");
        let kept = file.add(b"2".to_vec()).expect_err("it is another file").to_string();
        assert!(
            kept.ends_with("t.json': another file of 9 bytes is there by now, which is kept; move it away"),
            "{kept}"
        );
        assert_eq!(read(), "another's");
        fs::write(&path, "").expect("written, as `create` of logrotate does");
        file.add(b"3".to_vec()).expect("it is empty");
        assert_eq!(read(), "[3]");
        assert_eq!(fs::read_to_string(&old).expect("the old one"), "[1]");
        fs::remove_file(&path).expect("removed");
        fs::rename(&old, &path).expect("renamed");
        assert!(file.add(b"4".to_vec()).is_err());
        assert_eq!(read(), "[1]");
    }

    #[test]
    fn a_fifo_is_an_error_whoever_reads_it_and_blocks_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.json");
        let (mut file, _) = made(&folder);
        fs::remove_file(&path).expect("removed");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o600)).expect("a FIFO");
        let check = |error: io::Error| {
            let text = "t.json': it is a FIFO; name a regular file, or a path where there is nothing";
            assert!(error.to_string().ends_with(text), "{error}");
        };
        check(TraceFile::create(&path).expect_err("nobody reads it"));
        check(file.add(b"1".to_vec()).expect_err("nobody reads it"));
        let _reader = open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("a reader");
        check(TraceFile::create(&path).expect_err("it has no places"));
        check(file.add(b"1".to_vec()).expect_err("it has no places"));
        let of_folder = TraceFile::create(folder.path()).expect_err("no file").to_string();
        assert!(of_folder.contains("it is a directory; name a regular file"), "{of_folder}");
    }

    #[test]
    fn an_error_says_what_failed() {
        let failed = TraceFile::create(Path::new("/dev/full")).expect_err("no room").to_string();
        assert!(failed.starts_with("failed creating trace file '/dev/full': No space left"), "{failed}");
        assert!(Path::new("/dev/full").exists());
    }
}
