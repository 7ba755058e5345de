//! How is a file of unknown size read within a limit?

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The content of a file of at most `bytes_max` bytes, or the error text.
pub(super) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let sentence =
        |cause: io::Error| format!("failed to open text file for read {}: {}", path.display(), spoken(&cause));
    let file = File::open(path).map_err(sentence)?;
    let mut content = Vec::new();
    // One byte more than allowed, to detect a file that is too large.
    file.take(bytes_max + 1).read_to_end(&mut content).map_err(sentence)?;
    if content.len() as u64 > bytes_max {
        return Err(format!("{} has more than {bytes_max} bytes", path.display()));
    }
    Ok(content)
}

/// The system's error text, without the number that Rust appends.
fn spoken(cause: &io::Error) -> String {
    let text = cause.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}
