//! How are bodies compressed and inflated?

use std::io::{self, Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use nerite_memory::{Spool, shortage};
use nerite_request::Status;

use crate::receive::Store;

/// A compression that both sides may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Gzip,
    Deflate,
}

/// The first bytes of a gzip stream, by which it is told from a zlib one whatever the header says.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

impl Encoding {
    /// The word for it in a header.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Gzip => "gzip",
            Encoding::Deflate => "deflate",
        }
    }

    /// What a request's Content-Encoding says; `None` for a body as it is.
    pub fn of_request(header: Option<&[u8]>) -> Result<Option<Encoding>, Status> {
        match header {
            None | Some(b"" | b"identity") => Ok(None),
            Some(b"gzip") => Ok(Some(Encoding::Gzip)),
            Some(b"deflate") => Ok(Some(Encoding::Deflate)),
            Some(_) => Err(Status::unsupported("Unsupported compression type")),
        }
    }

    /// What a client's Accept-Encoding likes best, the first of equals; `None` for a body as it is.
    pub fn of_response(header: Option<&[u8]>) -> Option<Encoding> {
        let text = std::str::from_utf8(header?).ok()?;
        let (mut best, mut weight) = (None, 0.0);
        for item in text.split(',') {
            let (name, quality) = item.split_once(";q=").unwrap_or((item, "1"));
            let encoding = match name.trim_start_matches(' ') {
                "gzip" => Some(Encoding::Gzip),
                "deflate" => Some(Encoding::Deflate),
                "identity" => None,
                _ => continue,
            };
            let Ok(quality) = quality.trim().parse::<f64>() else { continue };
            if quality > weight {
                (best, weight) = (encoding, quality);
            }
        }
        best
    }

    /// Compresses the pieces into one body.
    pub fn compress<'p>(self, pieces: impl Iterator<Item = &'p [u8]>) -> Result<Bytes, Status> {
        let out = self.compress_into(pieces).map_err(|error| match shortage(&error) {
            Some(refused) => Status::no_memory("the compressed answer", refused),
            None => Status::internal(format!("the answer could not be compressed: {error}")),
        })?;
        Ok(out.finish().into_bytes())
    }

    fn compress_into<'p>(self, mut pieces: impl Iterator<Item = &'p [u8]>) -> io::Result<Spool> {
        let out = Spool::with_capacity(0).map_err(io::Error::other)?;
        match self {
            Encoding::Gzip => {
                let mut out = GzEncoder::new(out, Compression::default());
                pieces.try_for_each(|piece| out.write_all(piece))?;
                out.finish()
            }
            Encoding::Deflate => {
                let mut out = ZlibEncoder::new(out, Compression::default());
                pieces.try_for_each(|piece| out.write_all(piece))?;
                out.finish()
            }
        }
    }

    /// Inflates a body into `store`, up to `bytes_max`.
    pub fn inflate(self, body: &[u8], store: &mut Store, bytes_max: u64) -> Result<(), Status> {
        if body.starts_with(&GZIP_MAGIC) {
            self.inflate_from(MultiGzDecoder::new(body), store, bytes_max)
        } else {
            self.inflate_from(ZlibDecoder::new(body), store, bytes_max)
        }
    }

    fn inflate_from(self, mut from: impl Read, store: &mut Store, bytes_max: u64) -> Result<(), Status> {
        loop {
            let read = match from.read(store.room()?) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let name = self.name();
                    return Err(Status::invalid(format!("the request body is no whole {name} stream: {error}")));
                }
            };
            store.advance(read);
            if store.len() as u64 > bytes_max {
                return Err(Status::invalid(format!(
                    "Decompressed data size exceeds the maximum allowed value of {bytes_max} bytes. Use \
                     --http-max-input-size to increase the limit."
                )));
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_accept(header: &str, encoding: Option<Encoding>) {
        assert_eq!(Encoding::of_response(Some(header.as_bytes())), encoding, "{header}");
    }

    #[test]
    fn the_best_liked_encoding_is_chosen_and_the_first_of_equals() {
        check_accept("gzip, deflate", Some(Encoding::Gzip));
        check_accept("deflate, gzip", Some(Encoding::Deflate));
        check_accept("identity, gzip", None);
        check_accept("gzip;q=0.5, deflate;q=0.8", Some(Encoding::Deflate));
        check_accept("gzip;q=0", None);
        check_accept("gzip;q=x, deflate", Some(Encoding::Deflate));
        check_accept("br, *", None);
        check_accept("", None);
        assert_eq!(Encoding::of_response(None), None);
    }

    #[test]
    fn a_request_is_gzip_deflate_or_plain() {
        assert_eq!(Encoding::of_request(None), Ok(None));
        assert_eq!(Encoding::of_request(Some(b"identity")), Ok(None));
        assert_eq!(Encoding::of_request(Some(b"deflate")), Ok(Some(Encoding::Deflate)));
        assert_eq!(Encoding::of_request(Some(b"br")).unwrap_err().message, "Unsupported compression type");
    }

    #[test]
    fn what_was_compressed_is_inflated_whatever_the_header_says() {
        let text = b"tensor".repeat(100_000);
        for (made, said) in [
            (Encoding::Gzip, Encoding::Gzip),
            (Encoding::Deflate, Encoding::Deflate),
            (Encoding::Gzip, Encoding::Deflate),
        ] {
            let body = made.compress([&text[..7], &text[7..]].into_iter()).unwrap();
            let mut store = Store::new(5, None).unwrap();
            said.inflate(&body, &mut store, text.len() as u64).unwrap();
            assert_eq!(store.finish().private_bytes(), Some(&text[..]));
        }
    }

    #[test]
    fn a_corrupt_or_cut_or_too_large_stream_is_refused() {
        let body = Encoding::Gzip.compress([&b"tensor".repeat(100)[..]].into_iter()).unwrap();
        let refused = |body: &[u8], max| {
            let mut store = Store::new(0, None).unwrap();
            Encoding::Gzip.inflate(body, &mut store, max).unwrap_err().message
        };
        assert!(refused(b"garbage", 1000).starts_with("the request body is no whole gzip stream: "));
        assert!(refused(&body[..body.len() - 9], 1000).starts_with("the request body is no whole gzip stream: "));
        assert_eq!(
            refused(&body, 599),
            "Decompressed data size exceeds the maximum allowed value of 599 bytes. Use --http-max-input-size to \
             increase the limit."
        );
    }
}
