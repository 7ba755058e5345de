//! How is a message compressed?

use std::collections::VecDeque;
use std::io::{self, Write};

use bytes::{Buf, Bytes};
use flate2::write::{GzEncoder, ZlibEncoder};
use nerite_memory::{GrowableBuffer, NoMemory, shortage};
use nerite_request::Status;

use crate::encoding::{Encoding, Level};
use crate::limits::INLINE_COMPRESS_BYTES;
use crate::steps::{Lane, Progress, StepBudget, Work, run};

/// Why a message could not be compressed.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// There was no memory for the result.
    #[error("{0}")]
    NoMemory(NoMemory),
    /// No thread could be started for it.
    #[error("{0}")]
    Refused(Status),
    /// The encoder failed.
    #[error("{0}")]
    Failed(io::Error),
}

impl From<Status> for CompressError {
    fn from(status: Status) -> CompressError {
        CompressError::Refused(status)
    }
}

impl From<io::Error> for CompressError {
    fn from(fault: io::Error) -> CompressError {
        shortage(&fault).map_or(CompressError::Failed(fault), CompressError::NoMemory)
    }
}

/// Compresses the pieces as one message, and appends it to `to`.
pub async fn compress(
    pieces: impl IntoIterator<Item = Bytes>,
    encoding: Encoding,
    level: Level,
    to: GrowableBuffer,
    lane: &Lane,
) -> Result<GrowableBuffer, CompressError> {
    let pieces: VecDeque<Bytes> = pieces.into_iter().collect();
    let bytes_in: usize = pieces.iter().map(Bytes::len).sum();
    let work = Compress { pieces, encoder: Encoder::new(to, encoding, level) };
    let first = (bytes_in <= INLINE_COMPRESS_BYTES).then_some(StepBudget { bytes_in, bytes_out: usize::MAX });
    run(work, first, lane).await?.encoder.finish()
}

/// A message that is being compressed.
struct Compress {
    /// Pieces that are not compressed yet.
    pieces: VecDeque<Bytes>,
    encoder: Encoder,
}

impl Work for Compress {
    type Error = CompressError;

    fn step(&mut self, budget: StepBudget) -> Result<Progress, CompressError> {
        let mut left = budget.bytes_in;
        while let Some(piece) = self.pieces.front_mut() {
            let count = piece.len().min(left);
            self.encoder.write(&piece[..count])?;
            piece.advance(count);
            left -= count;
            if !piece.is_empty() {
                return Ok(Progress::More);
            }
            self.pieces.pop_front();
        }
        Ok(Progress::Done)
    }
}

enum Encoder {
    Gzip(GzEncoder<GrowableBuffer>),
    Zlib(ZlibEncoder<GrowableBuffer>),
}

impl Encoder {
    fn new(to: GrowableBuffer, encoding: Encoding, level: Level) -> Encoder {
        match encoding {
            Encoding::Gzip => Encoder::Gzip(GzEncoder::new(to, level)),
            Encoding::Deflate => Encoder::Zlib(ZlibEncoder::new(to, level)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Encoder::Gzip(encoder) => encoder.write_all(bytes),
            Encoder::Zlib(encoder) => encoder.write_all(bytes),
        }
    }

    /// Writes the end of the stream. This includes the bytes that the encoder still holds, a few tens of KiB at most.
    fn finish(self) -> Result<GrowableBuffer, CompressError> {
        Ok(match self {
            Encoder::Gzip(encoder) => encoder.finish()?,
            Encoder::Zlib(encoder) => encoder.finish()?,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read;

    use super::*;

    async fn check(lens: &[usize], encoding: Encoding) {
        let pieces: Vec<Bytes> =
            lens.iter().map(|len| (0..*len).map(|at| (at / 7) as u8).collect::<Vec<u8>>().into()).collect();
        let mut head = GrowableBuffer::with_capacity(0).unwrap();
        head.push(b"head").unwrap();
        let buffer = compress(pieces.clone(), encoding, Level::fast(), head, &Lane::new()).await.unwrap();
        let made = buffer.finish();
        let made = made.private_bytes().unwrap().strip_prefix(b"head").unwrap();
        let mut back = Vec::new();
        match encoding {
            Encoding::Gzip => flate2::read::GzDecoder::new(made).read_to_end(&mut back).unwrap(),
            Encoding::Deflate => flate2::read::ZlibDecoder::new(made).read_to_end(&mut back).unwrap(),
        };
        assert!(back == pieces.concat(), "{lens:?}");
        assert_eq!(Encoding::of_body(made), encoding);
    }

    #[tokio::test]
    async fn a_compressed_message_is_appended_and_inflates_to_the_original() {
        for encoding in [Encoding::Gzip, Encoding::Deflate] {
            check(&[], encoding).await;
            check(&[0, 3, 0], encoding).await;
            check(&[1000, 2000], encoding).await;
            check(&[3, 1_000_000, 5, 300_000], encoding).await;
        }
    }
}
