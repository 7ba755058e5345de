//! How is a small file read if its path may lead to a FIFO, a device or a large file?

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads a regular file of at most `bytes_max` bytes. A larger file is an error. So is a file that is not regular: a FIFO, for example, would block the thread
/// until another process writes to it.
pub fn read_regular_file(path: &Path, bytes_max: u64) -> io::Result<(Vec<u8>, Metadata)> {
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    // The file may grow after `metadata` was called, so reading is limited as well.
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let text = format!("it has {} bytes or more; at most {bytes_max} are read", metadata.len().max(bytes_max + 1));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok((bytes, metadata))
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(path: &Path, expected: &str) {
        let found = read_regular_file(path, 4).map(|(bytes, _)| String::from_utf8(bytes).unwrap());
        assert_eq!(found.unwrap_or_else(|error| error.to_string()), expected);
    }

    #[test]
    fn what_is_no_small_file_is_an_error_and_blocks_nobody() {
        let folder = std::env::temp_dir().join(format!("nerite-regular-file-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("file");
        std::fs::write(&path, "four").unwrap();
        check(&path, "four");
        std::fs::write(&path, "fives").unwrap();
        check(&path, "it has 5 bytes or more; at most 4 are read");
        check(&folder, "it is no regular file");
        check(Path::new("/dev/zero"), "it is no regular file");
        std::fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        check(&path, "it is no regular file");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
