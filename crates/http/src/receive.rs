//! How is a body received with at most one copy?
//!
//! ```text
//!   block    ├── lead ──┤├── JSON ──┤├── binary tensors …
//!                                    └ a multiple of 64
//! ```

mod spool;
mod store;

use std::error::Error;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::task::{Poll, ready};

use bytes::Bytes;
use http_body::Body;
use nerite_budget::{Account, Charge, Shed};
use nerite_listen::BodyReadLimit;
use nerite_memory::{Buffer, Extent};
use nerite_request::Status;

use crate::limits::{
    CHARGED_BYTES_MIN, CHUNK_COUNTED_BYTES_MAX, CHUNKS_MAX, DISCARD_MAX, TAIL_ALIGN, TAIL_KEPT_BYTES_MAX,
};
use crate::reply::Failure;
pub use spool::{Text, spool};
pub use store::Store;

/// Facts about a body before it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Bytes that the client declared. `None` for a chunked body.
    pub declared: Option<u64>,
    /// The offset of its binary part. `None` if it has none.
    pub tail_at: Option<usize>,
    /// Bytes it may have.
    pub bytes_max: u64,
    /// Makes the error for a larger body, from the number of bytes so far and `bytes_max`.
    pub too_large: fn(u64, u64) -> Status,
}

/// A whole body in one piece.
#[derive(Debug)]
pub struct Received {
    body: Whole,
    charge: Charge,
}

#[derive(Debug)]
enum Whole {
    /// The buffer that the socket delivered.
    Frame(Bytes),
    /// A block of this process, into which the pieces were copied.
    Block(Buffer),
}

impl Received {
    /// A body whose pieces were copied into `block`.
    pub fn block(block: Buffer, charge: Charge) -> Received {
        Received { body: Whole::Block(block), charge }
    }

    /// Takes the charge for its bytes. The caller keeps it from here on.
    pub fn take_charge(&mut self) -> Charge {
        std::mem::take(&mut self.charge)
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.body {
            Whole::Frame(bytes) => bytes,
            Whole::Block(buffer) => buffer.private_bytes().expect("a block is this process's own"),
        }
    }

    /// The bytes from `at` on, without a copy.
    pub fn tail(&self, at: usize) -> Buffer {
        let all = self.bytes().len();
        let Ok(extent) = Extent::new(at, all.saturating_sub(at), all) else { return Buffer::empty() };
        match &self.body {
            _ if extent.is_empty() => Buffer::empty(),
            Whole::Frame(bytes) => Buffer::from(bytes.slice(at..)),
            Whole::Block(buffer) => buffer.slice(extent),
        }
    }
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// Reads `body` to its end. Its bytes are charged to `account`.
pub async fn receive<B>(body: B, expected: Expected, account: &Account) -> Result<Received, Failure>
where
    B: Body<Data = Bytes, Error: Error + 'static>,
{
    if expected.declared.is_some_and(|declared| declared > expected.bytes_max) {
        return Err((expected.too_large)(expected.declared.unwrap_or_default(), expected.bytes_max).into());
    }
    if let Err(over) = account.check_announced(expected.declared.unwrap_or_default()) {
        return Err(Status::unavailable(over.to_string()).into());
    }
    let mut body = pin!(body);
    let charge = account.charge(0);
    let mut chunks = Chunks { expected, count: 0, bytes: 0, charge, read_limit: BodyReadLimit::new(account) };
    let first = match chunks.next(body.as_mut()).await {
        Ok(first) => first.unwrap_or_default(),
        Err(failure) => return Err(refuse(failure, body).await),
    };
    let is_whole = expected.declared == Some(first.len() as u64) || body.is_end_stream();
    if is_whole && can_stay(&first, expected.tail_at) {
        return Ok(Received { body: Whole::Frame(first), charge: chunks.charge });
    }
    match collect(body.as_mut(), &mut chunks, first).await {
        Ok(block) => Ok(Received::block(block, chunks.charge)),
        Err(failure) => {
            drop(chunks);
            Err(refuse(failure, body).await)
        }
    }
}

/// Reads and discards the rest of a refused body, unless the connection closes. The bytes that were received before are freed already.
async fn refuse<B: Body<Data = Bytes>>(failure: Refusal, body: Pin<&mut B>) -> Failure {
    match failure {
        Refusal::Of(failure) => {
            if !failure.close {
                discard(body).await;
            }
            failure
        }
        Refusal::Shed(_) => {
            // The connection ends soon, even if its client does not read.
            let _ = tokio::time::timeout(DISCARD_MAX, discard(body)).await;
            failure.into_failure()
        }
    }
}

/// Why a body is not read to its end.
enum Refusal {
    Of(Failure),
    /// The memory budgets require the connection to end.
    Shed(Shed),
}

impl Refusal {
    /// The error that the client gets.
    fn into_failure(self) -> Failure {
        match self {
            Refusal::Of(failure) => failure,
            Refusal::Shed(shed) => Failure { close: true, ..Status::unavailable(shed.to_string()).into() },
        }
    }
}

impl<F: Into<Failure>> From<F> for Refusal {
    fn from(failure: F) -> Refusal {
        Refusal::Of(failure.into())
    }
}

/// Copies `first` and the pieces after it into one block.
async fn collect<B>(mut body: Pin<&mut B>, chunks: &mut Chunks, first: Bytes) -> Result<Buffer, Refusal>
where
    B: Body<Data = Bytes, Error: Error + 'static>,
{
    let mut store = Store::new(chunks.expected.tail_at.unwrap_or_default(), chunks.expected.declared)?;
    store.write(&first)?;
    drop(first);
    while let Some(frame) = chunks.next(body.as_mut()).await? {
        store.write(&frame)?;
    }
    Ok(store.finish())
}

/// Reads `body` to its end and discards it. The client finishes sending and can then read why it was refused.
pub async fn discard<B: Body<Data = Bytes>>(body: B) {
    let mut body = pin!(body);
    while let Some(Ok(_)) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {}
}

/// Whether a body that arrived in one piece can be used without a copy.
fn can_stay(frame: &Bytes, tail_at: Option<usize>) -> bool {
    let Some(tail) = tail_at.and_then(|at| frame.get(at..)) else { return true };
    tail.len() < TAIL_KEPT_BYTES_MAX || tail.as_ptr().addr().is_multiple_of(TAIL_ALIGN)
}

/// Counts the pieces and bytes of a body as they are read.
struct Chunks {
    expected: Expected,
    count: usize,
    bytes: u64,
    charge: Charge,
    read_limit: BodyReadLimit,
}

impl Chunks {
    async fn next<B>(&mut self, mut body: Pin<&mut B>) -> Result<Option<Bytes>, Refusal>
    where
        B: Body<Data = Bytes, Error: Error + 'static>,
    {
        loop {
            let (read_limit, held) = (&mut self.read_limit, self.charge.bytes());
            let frame = poll_fn(|cx| match ready!(read_limit.poll_ready(cx, held)) {
                Ok(()) => body.as_mut().poll_frame(cx).map(Ok),
                Err(shed) => Poll::Ready(Err(Refusal::Shed(shed))),
            });
            let Some(frame) = frame.await? else { return Ok(None) };
            let frame = frame.map_err(|error| {
                let status = Status::invalid(format!("the request body broke off: {error}"));
                Failure { close: true, has_gone: has_gone(&error), ..Failure::plain(status) }
            })?;
            match frame.into_data() {
                Ok(data) if !data.is_empty() => return Ok(Some(self.count(data)?)),
                // Trailers are ignored.
                _ => {}
            }
        }
    }

    fn count(&mut self, data: Bytes) -> Result<Bytes, Failure> {
        self.bytes += data.len() as u64;
        if self.bytes > self.expected.bytes_max {
            let status = (self.expected.too_large)(self.bytes, self.expected.bytes_max);
            return Err(Failure { close: true, ..status.into() });
        }
        if self.bytes >= CHARGED_BYTES_MIN as u64 {
            self.charge.resize(self.bytes as usize);
        }
        self.count += usize::from(data.len() < CHUNK_COUNTED_BYTES_MAX);
        if self.expected.declared.is_none() && self.count > CHUNKS_MAX {
            let status = Status::invalid(format!(
                "Chunked request body exceeds maximum of {CHUNKS_MAX} non-empty chunks. Send fewer or larger HTTP chunks."
            ));
            return Err(Failure { close: true, ..status.into() });
        }
        Ok(data)
    }
}

/// Whether a body ended because its connection ended. Otherwise the client sent an invalid body, and waits for the answer.
fn has_gone(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests;
