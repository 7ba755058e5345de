//! Where is the message of a load kept if it is too long for memory?
//!
//! In a file without a name. The system removes it with its last descriptor, also if the server is killed.

use std::fs::File;
use std::io::{self, Write};

use bytes::Bytes;
use nerite_budget::Account;
use nerite_memory::FileBytes;
use nerite_request::Status;

use crate::on_disk;

/// The bytes of one load that are on disk so far.
#[derive(Debug, Default)]
pub struct Upload {
    file: Option<File>,
    len: u64,
}

impl Upload {
    /// The number of bytes on disk.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no bytes are on disk.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends these bytes, which came over the connection of `account`. If the disk is full, the error says that the client may try again later.
    pub async fn append(&mut self, account: &Account, pieces: Vec<Bytes>) -> Result<(), Status> {
        let file = self.file.take();
        self.len += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let written = on_disk(account, move || write(file, &pieces)).await?;
        self.file = Some(written.map_err(|error| self.no_place(&error))?);
        Ok(())
    }

    /// The file, if there is one.
    pub fn into_file(self) -> Option<File> {
        self.file
    }

    /// Maps the whole file, so that it is read like memory. The system loads and evicts its pages as needed.
    pub fn into_bytes(mut self) -> Result<Bytes, Status> {
        let Some(file) = self.file.take() else { return Ok(Bytes::new()) };
        match FileBytes::map(file, self.len) {
            Ok(bytes) => Ok(Bytes::from_owner(bytes)),
            // A mapping takes addresses, which may be limited, and no memory.
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(Status::unavailable(format!(
                "the server has no memory for a load request of {} bytes: {error}; put the model into the repository, or raise the \
                 server's limit on address space",
                self.len
            ))),
            Err(error) => Err(self.no_place(&error)),
        }
    }

    fn no_place(&self, error: &io::Error) -> Status {
        Status::unavailable(format!(
            "{} bytes of a load request could not be kept in {}: {error}; make room there, or name another directory in TMPDIR",
            self.len,
            std::env::temp_dir().display()
        ))
    }
}

fn write(file: Option<File>, pieces: &[Bytes]) -> io::Result<File> {
    let mut file = match file {
        Some(file) => file,
        None => tempfile::tempfile()?,
    };
    pieces.iter().try_for_each(|piece| file.write_all(piece))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn appended_pieces_are_read_as_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(append_and_read());
    }

    async fn append_and_read() {
        let (mut upload, account) = (Upload::default(), Account::unlimited());
        assert!(upload.is_empty() && Upload::default().into_bytes().unwrap().is_empty());
        for piece in 0..40 {
            let pieces = vec![Bytes::from(vec![piece; 5000]), Bytes::from_static(b"-")];
            upload.append(&account, pieces).await.unwrap();
        }
        assert_eq!(upload.len(), 40 * 5001);
        let bytes = upload.into_bytes().unwrap();
        assert_eq!(bytes.len(), 40 * 5001);
        for piece in 0..40 {
            let at = 5001 * usize::from(piece);
            assert_eq!(bytes[at..at + 5001], [&[piece; 5000][..], b"-"].concat());
        }
        let tail = bytes.slice(bytes.len() - 1..);
        drop(bytes);
        assert_eq!(tail, &b"-"[..]);
    }
}
