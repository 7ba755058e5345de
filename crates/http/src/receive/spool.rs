//! How does a body come in that is too long for memory?
//!
//! Up to a few MiB are kept in memory. What is longer goes to disk.

use std::fs::File;
use std::pin::pin;

use bytes::Bytes;
use http_body::Body;
use nerite_api::Upload;
use nerite_budget::{Account, Charge};
use nerite_listen::Gate;
use nerite_request::Status;

use super::{Chunks, Expected, Refusal};
use crate::limits::{SPOOL_BYTES_MIN, SPOOL_STEP_BYTES};
use crate::reply::Failure;

/// A whole body, wherever it lies.
#[derive(Debug)]
pub enum Text {
    /// All of it, and what the client is charged for it.
    Memory(Vec<u8>, Charge),
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
    let (mut held, mut upload, mut len) = (Vec::new(), Upload::default(), 0u64);
    while let Some(frame) = chunks.next(body.as_mut()).await.map_err(Refusal::into_failure)? {
        len += frame.len() as u64;
        if len > bytes_max {
            return Err(too_large(len));
        }
        held.extend_from_slice(&frame);
        charge.resize(held.len());
        let most = if upload.is_empty() { SPOOL_BYTES_MIN } else { SPOOL_STEP_BYTES };
        if held.len() > most {
            append(&mut upload, &mut held).await?;
        }
    }
    if !upload.is_empty() {
        append(&mut upload, &mut held).await?;
    }
    Ok(match upload.into_file() {
        Some(file) => Text::Disk { file, len },
        None => Text::Memory(held, charge),
    })
}

/// What could not be kept ends the connection: the rest of the body is not read.
async fn append(upload: &mut Upload, held: &mut Vec<u8>) -> Result<(), Failure> {
    let full = Bytes::from(std::mem::take(held));
    upload.append(vec![full]).await.map_err(|status| Failure { close: true, ..status.into() })
}
