//! How are messages made smaller, and large again?

use std::io::{self, Read, Write};

use bytes::{Buf, Bytes, BytesMut};
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use http::{HeaderMap, HeaderValue};
use nerite_memory::{Reason, Spool, count_copied};
use nerite_wire::proto::{Chain, Chunks, Gather, MESSAGE_BYTES_MAX, PREFIX_BYTES};

use crate::failure::Failure;
use crate::options::CompressionLevel;

/// What is inflated at once.
const INFLATE_STEP_BYTES: usize = 256 << 10;
/// Smaller messages do not get smaller.
const COMPRESS_BYTES_MIN: usize = 64;

/// The encodings we know.
pub(crate) const ACCEPTED: HeaderValue = HeaderValue::from_static("identity, deflate, gzip");

/// How a message is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Gzip,
    /// zlib's format, as everywhere in HTTP.
    Deflate,
}

impl Encoding {
    /// How the client's messages are compressed, if those with the flag are.
    pub(crate) fn of_request(headers: &HeaderMap) -> Result<Option<Encoding>, Failure> {
        let Some(name) = headers.get("grpc-encoding") else { return Ok(None) };
        match name.as_bytes() {
            b"identity" | b"" => Ok(None),
            b"gzip" => Ok(Some(Encoding::Gzip)),
            b"deflate" => Ok(Some(Encoding::Deflate)),
            other => Err(Failure::unknown_encoding(&String::from_utf8_lossy(other))),
        }
    }

    /// How a response is to be compressed, if the operator wants it and the client can read it.
    pub(crate) fn of_response(headers: &HeaderMap, level: CompressionLevel) -> Option<Encoding> {
        if level == CompressionLevel::None {
            return None;
        }
        let accepted = headers.get("grpc-accept-encoding")?.to_str().ok()?;
        let accepts = |name| accepted.split(',').any(|word| word.trim() == name);
        if accepts("gzip") { Some(Encoding::Gzip) } else { accepts("deflate").then_some(Encoding::Deflate) }
    }

    /// Its name in metadata.
    pub(crate) fn header(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Encoding::Gzip => "gzip",
            Encoding::Deflate => "deflate",
        })
    }
}

/// The message that `message` was before it was compressed.
pub(crate) fn inflate(message: Chain, encoding: Encoding) -> Result<Chain, Failure> {
    let reader = message.into_reader().reader();
    match encoding {
        Encoding::Gzip => inflate_from(GzDecoder::new(reader)),
        Encoding::Deflate => inflate_from(ZlibDecoder::new(reader)),
    }
}

fn inflate_from(mut from: impl Read) -> Result<Chain, Failure> {
    // Its length is not known, but what is compressed is mostly large.
    let (mut gather, mut len) = (Gather::new(usize::MAX), 0);
    loop {
        let mut step = Vec::with_capacity(INFLATE_STEP_BYTES);
        let got = (&mut from).take(INFLATE_STEP_BYTES as u64).read_to_end(&mut step);
        let got =
            got.map_err(|fault| Failure::unreadable(format_args!("the compressed message is damaged ({fault})")))?;
        if got == 0 {
            return Ok(gather.finish());
        }
        len += got;
        if len > MESSAGE_BYTES_MAX {
            return Err(Failure::too_large(len, MESSAGE_BYTES_MAX));
        }
        gather.push(Bytes::from(step))?;
    }
}

/// The same framed message, compressed if that makes it smaller.
pub(crate) fn deflate(chunks: Chunks, encoding: Encoding, level: CompressionLevel) -> Chunks {
    let len: usize = chunks.iter().map(Bytes::len).sum();
    if len < PREFIX_BYTES + COMPRESS_BYTES_MIN {
        return chunks;
    }
    let level = match level {
        CompressionLevel::None => return chunks,
        CompressionLevel::Low => Compression::fast(),
        CompressionLevel::Medium => Compression::default(),
        CompressionLevel::High => Compression::best(),
    };
    // Without memory to make it smaller it goes out as it is, as it does where it would become larger.
    match deflated(&chunks, encoding, level) {
        Ok(bytes) if bytes.len() < len => {
            count_copied(Reason::InlineResponse, len);
            Chunks::from_iter([bytes])
        }
        _ => chunks,
    }
}

fn deflated(chunks: &Chunks, encoding: Encoding, level: Compression) -> io::Result<Bytes> {
    let mut out = Spool::with_capacity(0).map_err(io::Error::other)?;
    out.write_all(&[1; PREFIX_BYTES])?;
    let mut out = match encoding {
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(out, level);
            write_message(&mut encoder, chunks)?;
            encoder.finish()?
        }
        Encoding::Deflate => {
            let mut encoder = ZlibEncoder::new(out, level);
            write_message(&mut encoder, chunks)?;
            encoder.finish()?
        }
    };
    let len = u32::try_from(out.len() - PREFIX_BYTES).map_err(io::Error::other)?;
    out.replace(1, &len.to_be_bytes());
    Ok(out.finish().into_bytes())
}

/// Everything but the prefix, which the first chunk begins with.
fn write_message(to: &mut impl Write, chunks: &Chunks) -> io::Result<()> {
    let mut skip = PREFIX_BYTES;
    for chunk in chunks {
        to.write_all(&chunk[skip..])?;
        skip = 0;
    }
    Ok(())
}

/// A framed message that was not compressed.
pub(crate) fn framed(message: &impl prost::Message) -> Result<Chunks, Failure> {
    let len = message.encoded_len();
    if len > MESSAGE_BYTES_MAX {
        return Err(Failure::too_large(len, MESSAGE_BYTES_MAX));
    }
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + len);
    out.extend_from_slice(&[0]);
    out.extend_from_slice(&(len as u32).to_be_bytes());
    message.encode(&mut out).expect("the buffer grows as it must");
    Ok(Chunks::from_iter([out.freeze()]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn message(len: usize) -> Chunks {
        let mut head = vec![0u8; PREFIX_BYTES];
        head[1..].copy_from_slice(&(len as u32).to_be_bytes());
        let tail: Vec<u8> = (0..len).map(|n| (n / 7) as u8).collect();
        Chunks::from_iter([Bytes::from(head), Bytes::from(tail)])
    }

    #[track_caller]
    fn check(len: usize, encoding: Encoding, level: CompressionLevel, compressed: bool) {
        let plain = message(len);
        let sent = deflate(plain.clone(), encoding, level);
        assert_eq!(sent[0][0] == 1, compressed);
        if compressed {
            let all = Bytes::from(sent.concat());
            assert_eq!(u32::from_be_bytes(all[1..5].try_into().unwrap()) as usize, all.len() - PREFIX_BYTES);
            let back = inflate(Chain::from(all.slice(PREFIX_BYTES..)), encoding).unwrap();
            assert!(back.into_reader().copy_to_bytes(len) == plain[1]);
        }
    }

    #[test]
    fn what_was_deflated_inflates_to_itself() {
        for encoding in [Encoding::Gzip, Encoding::Deflate] {
            for level in [CompressionLevel::Low, CompressionLevel::Medium, CompressionLevel::High] {
                check(1000, encoding, level, true);
                check(1_000_000, encoding, level, true);
                check(3, encoding, level, false);
            }
            check(1000, encoding, CompressionLevel::None, false);
        }
    }

    #[test]
    fn damaged_messages_are_refused() {
        let sent = Bytes::from(deflate(message(1000), Encoding::Gzip, CompressionLevel::Low).concat());
        for end in [PREFIX_BYTES + 3, sent.len() / 2, sent.len() - 1] {
            assert!(inflate(Chain::from(sent.slice(PREFIX_BYTES..end)), Encoding::Gzip).is_err(), "{end}");
        }
        assert!(inflate(Chain::from(Bytes::from_static(b"nonsense")), Encoding::Deflate).is_err());
    }

    #[track_caller]
    fn check_headers(
        name: &'static str,
        value: &'static str,
        request: Result<Option<Encoding>, ()>,
        response: Option<Encoding>,
    ) {
        let headers: HeaderMap = [(name.parse().unwrap(), HeaderValue::from_static(value))].into_iter().collect();
        assert_eq!(Encoding::of_request(&headers).map_err(drop), request, "{name}: {value}");
        assert_eq!(Encoding::of_response(&headers, CompressionLevel::Low), response, "{name}: {value}");
        assert_eq!(Encoding::of_response(&headers, CompressionLevel::None), None);
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
