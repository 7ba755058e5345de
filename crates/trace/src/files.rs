//! How are traces written to files that are complete JSON at every moment?

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Only the server's user may read a new file, because it may contain tensors of any client.
const MODE: u32 = 0o600;

/// A file of traces. It is a JSON array. Each trace is added to it by one write.
#[derive(Debug)]
pub struct TraceFile {
    file: File,
    /// Where the closing bracket is.
    end: u64,
}

impl TraceFile {
    /// Makes a file with an empty array. An existing file is overwritten.
    pub fn create(path: &Path) -> io::Result<TraceFile> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)?;
        file.write_all_at(b"[]", 0)?;
        Ok(TraceFile { file, end: 1 })
    }

    /// Adds the objects of a trace.
    pub fn add(&mut self, mut objects: Vec<u8>) -> io::Result<()> {
        if self.end > 1 {
            objects.insert(0, b',');
        }
        objects.push(b']');
        self.file.write_all_at(&objects, self.end)?;
        self.end += objects.len() as u64 - 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_after_every_trace() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.json");
        let read = || std::fs::read_to_string(&path).expect("the file");
        let mut file = TraceFile::create(&path).expect("a file");
        assert_eq!(read(), "[]");
        file.add(b"{\"id\":1},{\"id\":1}".to_vec()).expect("written");
        assert_eq!(read(), "[{\"id\":1},{\"id\":1}]");
        file.add(b"{\"id\":2}".to_vec()).expect("written");
        assert_eq!(read(), "[{\"id\":1},{\"id\":1},{\"id\":2}]");
    }
}
