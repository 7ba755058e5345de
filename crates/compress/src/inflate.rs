//! How large may a message become, and how is it inflated?

use std::io::{self, BufRead, Read};
use std::task::{Context, Poll};

use bytes::Buf;
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use nerite_request::Status;

use crate::encoding::Encoding;
use crate::limits::{INFLATED_FLOOR_BYTES, INFLATED_RATIO_MAX, INLINE_INFLATE_BYTES_IN, INLINE_INFLATE_BYTES_OUT};
use crate::steps::{Lane, Progress, StepBudget, Work, run};

/// The destination of inflated bytes.
pub trait Sink: Send + 'static {
    /// The buffer for the next bytes. Never empty.
    fn buffer(&mut self) -> Result<&mut [u8], Status>;
    /// Reports that `written` bytes were written to the start of the buffer.
    fn advance(&mut self, written: usize) -> Result<(), Status>;
    /// Ready when the sink can take more. Called before each step, which writes about a MiB at most.
    fn poll_more(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }
}

/// Why a message could not be inflated.
#[derive(Debug, thiserror::Error)]
pub enum InflateError {
    /// It is larger than the operator's limit.
    #[error(
        "Decompressed data size exceeds the maximum allowed value of {bytes_max} bytes. Use --http-max-input-size to \
         increase the limit."
    )]
    TooLarge {
        /// The operator's limit.
        bytes_max: u64,
    },
    /// It inflates to too many times its compressed size.
    #[error(
        "Decompressed data size exceeds the maximum allowed value of {bytes_max} bytes for {bytes_in} compressed bytes: \
         {INFLATED_RATIO_MAX} times as many, or {INFLATED_FLOOR_BYTES} if that is more. Send this data uncompressed."
    )]
    TooDense {
        /// Its compressed size.
        bytes_in: u64,
        /// The most bytes that it may inflate to.
        bytes_max: u64,
    },
    /// It is not a valid stream, or the stream is incomplete.
    #[error("{0}")]
    Damaged(io::Error),
    /// There was no memory for it, or no thread could be started.
    #[error("{0}")]
    Refused(Status),
}

impl From<Status> for InflateError {
    fn from(status: Status) -> InflateError {
        InflateError::Refused(status)
    }
}

/// The largest compressed message that may be accepted if `bytes_max` is the limit for the inflated one. Compression never makes data much larger, so
/// a larger message inflates to too many bytes.
pub fn compressed_bytes_max(bytes_max: u64) -> u64 {
    bytes_max.saturating_mul(2)
}

/// Inflates all of `from` into `sink`. The result is limited to `bytes_max` bytes, and by the compressed size.
pub async fn inflate<S: Sink>(
    from: impl Buf + Send + 'static,
    encoding: Encoding,
    bytes_max: u64,
    sink: S,
    lane: &Lane,
) -> Result<S, InflateError> {
    let bytes_in = from.remaining();
    let bound = Bound::of(bytes_in as u64, bytes_max);
    let work = Inflate { decoder: Decoder::new(from, encoding), sink, bound, left: bound.bytes };
    let is_small = bytes_in <= INLINE_INFLATE_BYTES_IN;
    let first = is_small.then_some(StepBudget { bytes_in, bytes_out: INLINE_INFLATE_BYTES_OUT });
    run(work, first, lane).await.map(|done| done.sink)
}

/// The limit for an inflated message, and the rule that determines it.
#[derive(Clone, Copy, Debug)]
struct Bound {
    bytes: u64,
    bytes_in: u64,
    by_ratio: bool,
}

impl Bound {
    fn of(bytes_in: u64, bytes_max: u64) -> Bound {
        let by_ratio = bytes_in.saturating_mul(INFLATED_RATIO_MAX).max(INFLATED_FLOOR_BYTES);
        Bound { bytes: by_ratio.min(bytes_max), bytes_in, by_ratio: by_ratio < bytes_max }
    }

    fn exceeded(self) -> InflateError {
        let Bound { bytes: bytes_max, bytes_in, by_ratio } = self;
        if by_ratio { InflateError::TooDense { bytes_in, bytes_max } } else { InflateError::TooLarge { bytes_max } }
    }
}

/// A message that is being inflated.
struct Inflate<B, S> {
    decoder: Decoder<B>,
    sink: S,
    bound: Bound,
    /// Bytes that it may still inflate to.
    left: u64,
}

impl<B: Buf + Send + 'static, S: Sink> Work for Inflate<B, S> {
    type Error = InflateError;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), InflateError>> {
        self.sink.poll_more(cx).map_err(InflateError::from)
    }

    fn step(&mut self, budget: StepBudget) -> Result<Progress, InflateError> {
        self.decoder.feed().allowed = budget.bytes_in;
        let mut step_left = budget.bytes_out;
        while step_left > 0 {
            let buffer = self.sink.buffer()?;
            // One byte more than allowed, to detect a message that is too large.
            let most = usize::try_from(self.left.saturating_add(1)).unwrap_or(usize::MAX);
            let len = buffer.len().min(step_left).min(most);
            let read = match self.decoder.read(&mut buffer[..len]) {
                Ok(0) => return Ok(Progress::Done),
                Ok(read) => read,
                Err(fault) if fault.kind() == io::ErrorKind::Interrupted => continue,
                Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => return Ok(Progress::More),
                Err(fault) => return Err(InflateError::Damaged(fault)),
            };
            self.left = self.left.checked_sub(read as u64).ok_or_else(|| self.bound.exceeded())?;
            self.sink.advance(read)?;
            step_left -= read;
        }
        Ok(Progress::More)
    }
}

enum Decoder<B> {
    /// One or more streams in sequence.
    Gzip(MultiGzDecoder<Feed<B>>),
    Zlib(ZlibDecoder<Feed<B>>),
}

impl<B: Buf> Decoder<B> {
    fn new(from: B, encoding: Encoding) -> Decoder<B> {
        let feed = Feed { from, allowed: 0 };
        match encoding {
            Encoding::Gzip => Decoder::Gzip(MultiGzDecoder::new(feed)),
            Encoding::Deflate => Decoder::Zlib(ZlibDecoder::new(feed)),
        }
    }

    fn feed(&mut self) -> &mut Feed<B> {
        match self {
            Decoder::Gzip(decoder) => decoder.get_mut(),
            Decoder::Zlib(decoder) => decoder.get_mut(),
        }
    }

    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Gzip(decoder) => decoder.read(to),
            Decoder::Zlib(decoder) => decoder.read(to),
        }
    }
}

/// Compressed bytes, of which a step may read `allowed`. Without this limit a step could read a long stream that inflates to nothing.
struct Feed<B> {
    from: B,
    allowed: usize,
}

impl<B: Buf> BufRead for Feed<B> {
    /// Returns `WouldBlock` when the step has read all that it may. The decoders keep their state then.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.allowed == 0 && self.from.has_remaining() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let chunk = self.from.chunk();
        Ok(&chunk[..chunk.len().min(self.allowed)])
    }

    fn consume(&mut self, count: usize) {
        self.from.advance(count);
        self.allowed -= count;
    }
}

impl<B: Buf> Read for Feed<B> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let count = from.len().min(to.len());
        to[..count].copy_from_slice(&from[..count]);
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
