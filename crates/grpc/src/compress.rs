//! How are messages compressed and inflated?

use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use nerite_budget::{Account, Charge};
use nerite_compress::{Encoding, InflateError, Lane, Level, Sink, compress};
use nerite_listen::BodyReadLimit;
use nerite_memory::{GrowableBuffer, NoMemory, Reason, Slot, count_copied};
use nerite_request::Status;
use nerite_wire::proto::{Chain, Chunks, Gather, MESSAGE_BYTES_MAX, PREFIX_BYTES};

use crate::failure::Failure;
use crate::limits::{COMPRESS_BYTES_MIN, INFLATED_PIECE_BYTES, INFLATED_SMALL_BYTES_MAX, INFLATED_SMALL_BYTES_MIN};
use crate::message_format::MessageFormat;
use crate::options::CompressionLevel;

/// The supported encodings.
pub(crate) const ACCEPTED: HeaderValue = HeaderValue::from_static("identity, deflate, gzip");

/// The encoding of the client's messages that have the compression flag.
pub(crate) fn request_encoding(headers: &HeaderMap) -> Result<Option<Encoding>, Failure> {
    let Some(name) = headers.get("grpc-encoding") else { return Ok(None) };
    match name.as_bytes() {
        b"identity" | b"" => Ok(None),
        b"gzip" => Ok(Some(Encoding::Gzip)),
        b"deflate" => Ok(Some(Encoding::Deflate)),
        other => Err(Failure::unknown_encoding(&String::from_utf8_lossy(other))),
    }
}

/// Inflates `message`.
pub(crate) async fn inflate(
    message: Chain,
    encoding: Encoding,
    format: MessageFormat,
    lane: Lane,
    account: Account,
) -> Result<Chain, Failure> {
    let (bytes_max, sink) = (format.inflated_bytes_max, Inflated::new(&account));
    let inflated = nerite_compress::inflate(message.into_reader(), encoding, bytes_max, sink, &lane).await;
    match inflated.map(Inflated::finish) {
        Ok(message) => Ok(message?),
        Err(fault @ (InflateError::TooLarge { .. } | InflateError::TooDense { .. })) => {
            Err(Failure::inflates_too_far(&fault, format.bytes_max))
        }
        Err(InflateError::Damaged(fault)) => {
            Err(Failure::unreadable(format_args!("the compressed message is damaged ({fault})")))
        }
        Err(InflateError::Refused(status)) => Err(status.into()),
    }
}

/// The part of a message that was inflated so far.
struct Inflated {
    gather: Gather,
    piece: Piece,
    filled: usize,
    /// Charge for these bytes.
    charge: Charge,
    read_limit: BodyReadLimit,
}

/// The piece that is being filled.
enum Piece {
    /// The first pieces. Most messages have no others.
    Small(Vec<u8>),
    /// A block, whose memory is returned to the system when it is freed. The allocator of small pieces keeps freed memory for each thread. It does
    /// not return that to the system while memory next to it is in use.
    Large(Slot),
}

impl Inflated {
    fn new(account: &Account) -> Inflated {
        // The length is not known, but most compressed messages are large.
        let (gather, piece) = (Gather::new(usize::MAX), Piece::Small(Vec::new()));
        Inflated { gather, piece, filled: 0, charge: account.charge(0), read_limit: BodyReadLimit::new(account) }
    }

    fn push(&mut self) -> Result<(), Status> {
        let next = match self.piece.len().saturating_mul(2) {
            larger if larger <= INFLATED_SMALL_BYTES_MAX => Piece::Small(vec![0; larger.max(INFLATED_SMALL_BYTES_MIN)]),
            _ => {
                let slot = Slot::try_heap(INFLATED_PIECE_BYTES);
                Piece::Large(slot.map_err(|refused| Status::no_memory("an inflated message", refused))?)
            }
        };
        let piece = std::mem::replace(&mut self.piece, next).into_bytes(self.filled);
        self.filled = 0;
        self.gather.push(piece)
    }

    fn finish(mut self) -> Result<Chain, Status> {
        self.gather.push(self.piece.into_bytes(self.filled))?;
        Ok(self.gather.finish())
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Small(bytes) => bytes.len(),
            Piece::Large(slot) => slot.len(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Piece::Small(bytes) => bytes,
            Piece::Large(slot) => slot.private_bytes_mut().expect("a heap slot is this process's own"),
        }
    }

    /// The first `filled` bytes.
    fn into_bytes(self, filled: usize) -> Bytes {
        match self {
            Piece::Small(mut bytes) => {
                bytes.truncate(filled);
                bytes.into()
            }
            Piece::Large(mut slot) => {
                slot.truncate(filled);
                slot.filled().into_buffer().into_bytes()
            }
        }
    }
}

impl Sink for Inflated {
    fn buffer(&mut self) -> Result<&mut [u8], Status> {
        if self.filled == self.piece.len() {
            self.push()?;
        }
        Ok(&mut self.piece.bytes_mut()[self.filled..])
    }

    fn advance(&mut self, written: usize) -> Result<(), Status> {
        self.filled += written;
        self.charge.grow(written);
        Ok(())
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.read_limit.poll_ready(cx, self.charge.bytes()).map_err(|shed| Status::unavailable(shed.to_string()))
    }
}

/// How the answers of one call are compressed.
#[derive(Clone, Debug)]
pub(crate) struct Compression {
    encoding: Encoding,
    level: Level,
    lane: Lane,
}

impl Compression {
    /// The compression of responses. `None` if the operator disabled it or the client does not accept it.
    pub(crate) fn of_response(headers: &HeaderMap, level: CompressionLevel, lane: &Lane) -> Option<Compression> {
        let level = match level {
            CompressionLevel::None => return None,
            CompressionLevel::Low => Level::fast(),
            CompressionLevel::Medium => Level::default(),
            CompressionLevel::High => Level::best(),
        };
        let accepted = headers.get("grpc-accept-encoding")?.to_str().ok()?;
        let accepts = |encoding: &Encoding| accepted.split(',').any(|word| word.trim() == encoding.name());
        let encoding = [Encoding::Gzip, Encoding::Deflate].into_iter().find(accepts)?;
        Some(Compression { encoding, level, lane: lane.clone() })
    }

    /// The encoding's name in metadata.
    pub(crate) fn header(&self) -> HeaderValue {
        HeaderValue::from_static(self.encoding.name())
    }

    /// Compresses a framed message. If that does not make it smaller, returns it unchanged.
    pub(crate) async fn apply(self, chunks: Chunks) -> Chunks {
        let len: usize = chunks.iter().map(Bytes::len).sum();
        if len < PREFIX_BYTES + COMPRESS_BYTES_MIN {
            return chunks;
        }
        let mut pieces = chunks.clone();
        let Ok(prefixed) = prefix_buffer() else { return chunks };
        // The first chunk begins with the prefix.
        pieces[0] = pieces[0].slice(PREFIX_BYTES..);
        // If there is no memory for compressing it, the message is sent uncompressed.
        match compress(pieces, self.encoding, self.level, prefixed, &self.lane).await.map(framed_again) {
            Ok(Some(bytes)) if bytes.len() < len => {
                count_copied(Reason::InlineResponse, len);
                Chunks::from_iter([bytes])
            }
            _ => chunks,
        }
    }
}

/// A buffer with the prefix of a compressed message. `framed_again` writes the length into the prefix.
fn prefix_buffer() -> Result<GrowableBuffer, NoMemory> {
    let mut buffer = GrowableBuffer::with_capacity(0)?;
    buffer.push(&[1; PREFIX_BYTES])?;
    Ok(buffer)
}

/// Writes the message's length into its prefix. `None` if the length does not fit.
fn framed_again(mut buffer: GrowableBuffer) -> Option<Bytes> {
    let len = u32::try_from(buffer.len() - PREFIX_BYTES).ok()?;
    buffer.replace(1, &len.to_be_bytes());
    Some(buffer.finish().into_bytes())
}

/// A framed message without compression.
pub(crate) fn framed(message: &impl prost::Message) -> Result<Chunks, Failure> {
    let len = message.encoded_len();
    if len > MESSAGE_BYTES_MAX {
        return Err(Failure::too_large(len, MESSAGE_BYTES_MAX));
    }
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + len);
    out.put_u8(0);
    out.put_u32(len as u32);
    message.encode(&mut out).expect("the buffer grows as it must");
    Ok(Chunks::from_iter([out.freeze()]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Buf;

    use super::*;

    fn message(len: usize) -> Chunks {
        let mut head = vec![0u8; PREFIX_BYTES];
        head[1..].copy_from_slice(&(len as u32).to_be_bytes());
        let tail: Vec<u8> = (0..len).map(|n| (n / 7) as u8).collect();
        Chunks::from_iter([Bytes::from(head), Bytes::from(tail)])
    }

    fn compression(encoding: Encoding, level: Level) -> Compression {
        Compression { encoding, level, lane: Lane::new() }
    }

    async fn inflate(message: Bytes, encoding: Encoding) -> Result<Chain, Failure> {
        let format =
            MessageFormat { bytes_max: 2 << 20, encoding: None, inflated_bytes_max: 1 << 20, part_bytes: None };
        super::inflate(Chain::from(message), encoding, format, Lane::new(), Account::unlimited()).await
    }

    async fn check(len: usize, encoding: Encoding, level: Level, compressed: bool) {
        let plain = message(len);
        let sent = compression(encoding, level).apply(plain.clone()).await;
        assert_eq!(sent[0][0] == 1, compressed);
        if compressed {
            let all = Bytes::from(sent.concat());
            assert_eq!(u32::from_be_bytes(all[1..5].try_into().unwrap()) as usize, all.len() - PREFIX_BYTES);
            let back = inflate(all.slice(PREFIX_BYTES..), encoding).await.unwrap();
            assert!(back.into_reader().copy_to_bytes(len) == plain[1]);
        }
    }

    #[tokio::test]
    async fn compressed_messages_inflate_to_the_original() {
        for encoding in [Encoding::Gzip, Encoding::Deflate] {
            for level in [Level::fast(), Level::default(), Level::best()] {
                check(1000, encoding, level, true).await;
                check(1_000_000, encoding, level, true).await;
                check(3, encoding, level, false).await;
            }
        }
    }

    #[tokio::test]
    async fn damaged_and_too_large_messages_are_refused() {
        let sent = Bytes::from(compression(Encoding::Gzip, Level::fast()).apply(message(1000)).await.concat());
        for end in [PREFIX_BYTES + 3, sent.len() / 2, sent.len() - 1] {
            assert!(inflate(sent.slice(PREFIX_BYTES..end), Encoding::Gzip).await.is_err(), "{end}");
        }
        assert!(inflate(Bytes::from_static(b"nonsense"), Encoding::Deflate).await.is_err());
        let large =
            Bytes::from(compression(Encoding::Gzip, Level::fast()).apply(message((1 << 20) + 1)).await.concat());
        let too_large = InflateError::TooLarge { bytes_max: 1 << 20 };
        let refused = inflate(large.slice(PREFIX_BYTES..), Encoding::Gzip).await.unwrap_err();
        assert_eq!(refused, Failure::inflates_too_far(&too_large, 2 << 20));
    }

    #[track_caller]
    fn check_headers(
        name: &'static str,
        value: &'static str,
        request: Result<Option<Encoding>, ()>,
        response: Option<Encoding>,
    ) {
        let headers: HeaderMap = [(name.parse().unwrap(), HeaderValue::from_static(value))].into_iter().collect();
        assert_eq!(request_encoding(&headers).map_err(drop), request, "{name}: {value}");
        let chosen = |level| Compression::of_response(&headers, level, &Lane::new()).map(|chosen| chosen.encoding);
        assert_eq!(chosen(CompressionLevel::Low), response, "{name}: {value}");
        assert_eq!(chosen(CompressionLevel::None), None);
    }

    #[test]
    fn metadata_chooses_the_encoding() {
        check_headers("grpc-encoding", "gzip", Ok(Some(Encoding::Gzip)), None);
        check_headers("grpc-encoding", "deflate", Ok(Some(Encoding::Deflate)), None);
        check_headers("grpc-encoding", "identity", Ok(None), None);
        check_headers("grpc-encoding", "snappy", Err(()), None);
        check_headers("grpc-accept-encoding", "identity, deflate, gzip", Ok(None), Some(Encoding::Gzip));
        check_headers("grpc-accept-encoding", "identity,deflate", Ok(None), Some(Encoding::Deflate));
        check_headers("grpc-accept-encoding", "identity", Ok(None), None);
        check_headers("grpc-accept-encoding", "gzipped", Ok(None), None);
    }
}
