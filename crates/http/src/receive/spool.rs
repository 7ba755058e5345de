//! How does a body come in that is too long for memory?
//!
//! Up to a few MiB are kept in memory. What is longer goes to a file without a name, which the system removes with its last
//! descriptor, however the request, or the server, ends.

use std::fs::File;
use std::io::{self, Write};
use std::pin::pin;

use bytes::Bytes;
use http_body::Body;
use nerite_api::on_disk;
use nerite_budget::{Account, Charge};
use nerite_listen::Gate;
use nerite_request::Status;

use super::{Chunks, Expected, Refusal};
use crate::limits::{SPOOL_BYTES_MIN, SPOOL_STEP_BYTES};
use crate::reply::Failure;

/// A whole body, wherever it lies.
#[derive(Debug)]
pub enum Text {
    /// All of it.
    Memory(Vec<u8>),
    /// In a file that has no name.
    Disk {
        /// The file.
        file: File,
        /// Bytes of the body.
        len: u64,
    },
}

/// Reads `body` to its end. More than `bytes_max` bytes are refused as `too_large` says, before they come if the client declared them.
/// What is kept in memory meanwhile is at the expense of `account`.
pub async fn spool<B>(
    body: B,
    bytes_max: u64,
    too_large: impl Fn(u64) -> Failure,
    account: &Account,
) -> Result<Text, Failure>
where
    B: Body<Data = Bytes, Error: std::fmt::Display>,
{
    let declared = body.size_hint().exact();
    if let Some(declared) = declared.filter(|declared| *declared > bytes_max) {
        return Err(too_large(declared));
    }
    let mut body = pin!(body);
    // The limit is looked at here, because its text is the caller's.
    let beyond = |_, _| Status::internal("a load has no other limit");
    let expected = Expected { declared, tail_at: None, bytes_max: u64::MAX, too_large: beyond };
    let mut chunks = Chunks { expected, count: 0, bytes: 0, charge: Charge::default(), gate: Gate::new(account) };
    let mut charge = account.charge(0);
    let (mut held, mut file, mut len) = (Vec::new(), None, 0u64);
    while let Some(frame) = chunks.next(body.as_mut()).await.map_err(Refusal::into_failure)? {
        len += frame.len() as u64;
        if len > bytes_max {
            return Err(too_large(len));
        }
        held.extend_from_slice(&frame);
        charge.resize(held.len());
        let most = if file.is_some() { SPOOL_STEP_BYTES } else { SPOOL_BYTES_MIN };
        if held.len() > most {
            let full = std::mem::take(&mut held);
            file = Some(on_disk(move || write(file, &full)).await?.map_err(|error| no_disk(len, &error))?);
        }
    }
    let Some(file) = file else { return Ok(Text::Memory(held)) };
    let file = on_disk(move || write(Some(file), &held)).await?.map_err(|error| no_disk(len, &error))?;
    Ok(Text::Disk { file, len })
}

fn write(file: Option<File>, bytes: &[u8]) -> io::Result<File> {
    let mut file = match file {
        Some(file) => file,
        None => tempfile::tempfile()?,
    };
    file.write_all(bytes)?;
    Ok(file)
}

/// The client may try again; the rest of its body is not read.
fn no_disk(len: u64, error: &io::Error) -> Failure {
    let place = std::env::temp_dir();
    let text = format!(
        "{len} bytes of a load request could not be kept in {}: {error}; make room there, or name another directory in TMPDIR",
        place.display()
    );
    Failure { close: true, ..Status::unavailable(text).into() }
}
