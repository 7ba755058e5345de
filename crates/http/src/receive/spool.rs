//! How is a body received if it is too long for memory?
//!
//! A body of up to a few MiB is kept in memory. A longer one is written to disk.

use std::fs::File;
use std::pin::pin;

use bytes::Bytes;
use http_body::Body;
use nerite_api::Upload;
use nerite_budget::{Account, Charge};
use nerite_listen::BodyReadLimit;
use nerite_request::Status;

use super::{Chunks, Expected, Refusal};
use crate::limits::{SPOOL_BYTES_MIN, SPOOL_STEP_BYTES};
use crate::reply::Failure;

/// A whole body, in memory or on disk.
#[derive(Debug)]
pub enum Text {
    /// In memory, with its charge.
    Memory(Vec<u8>, Charge),
    /// In an unnamed file.
    Disk {
        /// The file.
        file: File,
        /// Bytes of the body.
        len: u64,
    },
}

/// Reads `body` to its end. More than `bytes_max` bytes are refused with the error of `too_large`, and the connection closes. Bytes in memory are charged
/// to `account`.
pub async fn spool<B>(
    body: B,
    bytes_max: u64,
    too_large: impl Fn(u64) -> Failure,
    account: &Account,
) -> Result<Text, Failure>
where
    B: Body<Data = Bytes, Error: std::error::Error + 'static>,
{
    let declared = body.size_hint().exact();
    let mut body = pin!(body);
    // The limit is checked below, because `too_large` is a closure, which `Expected` cannot hold.
    let beyond = |_, _| Status::internal("a load has no other limit");
    let expected = Expected { declared, tail_at: None, bytes_max: u64::MAX, too_large: beyond };
    let mut chunks =
        Chunks { expected, count: 0, bytes: 0, charge: Charge::default(), read_limit: BodyReadLimit::new(account) };
    let mut charge = account.charge(0);
    let (mut held, mut upload, mut len) = (Vec::new(), Upload::default(), 0u64);
    while let Some(frame) = chunks.next(body.as_mut()).await.map_err(Refusal::into_failure)? {
        len += frame.len() as u64;
        if len > bytes_max {
            return Err(Failure { close: true, ..too_large(len) });
        }
        held.extend_from_slice(&frame);
        charge.resize(held.len());
        let most = if upload.is_empty() { SPOOL_BYTES_MIN } else { SPOOL_STEP_BYTES };
        if held.len() > most {
            append(&mut upload, account, &mut held).await?;
        }
    }
    if !upload.is_empty() {
        append(&mut upload, account, &mut held).await?;
    }
    Ok(match upload.into_file() {
        Some(file) => Text::Disk { file, len },
        None => Text::Memory(held, charge),
    })
}

/// Appends the bytes in memory to the file. An error closes the connection, because the rest of the body is not read.
async fn append(upload: &mut Upload, account: &Account, held: &mut Vec<u8>) -> Result<(), Failure> {
    let full = Bytes::from(std::mem::take(held));
    upload.append(account, vec![full]).await.map_err(|status| Failure { close: true, ..status.into() })
}
