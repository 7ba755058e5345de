//! How are bodies compressed and inflated?

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use nerite_budget::{Account, Charge};
use nerite_compress::{CompressError, InflateError, Lane, Level, Sink};
use nerite_listen::BodyReadLimit;
use nerite_memory::GrowableBuffer;
use nerite_request::Status;

pub use nerite_compress::Encoding;

use crate::receive::{Received, Store};

/// The encoding in a request's Content-Encoding; `None` for an uncompressed body.
pub fn request_encoding(header: Option<&[u8]>) -> Result<Option<Encoding>, Status> {
    match header {
        None | Some(b"" | b"identity") => Ok(None),
        Some(b"gzip") => Ok(Some(Encoding::Gzip)),
        Some(b"deflate") => Ok(Some(Encoding::Deflate)),
        Some(_) => Err(Status::unsupported("Unsupported compression type")),
    }
}

/// The encoding that a client's Accept-Encoding prefers. If several are preferred equally, the first one. `None` for no encoding.
pub fn response_encoding(header: Option<&[u8]>) -> Option<Encoding> {
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
pub async fn compress(pieces: VecDeque<Bytes>, encoding: Encoding) -> Result<Bytes, Status> {
    let no_memory = |refused| Status::no_memory("the compressed answer", refused);
    let out = GrowableBuffer::with_capacity(0).map_err(no_memory)?;
    // Each answer gets a lane of its own, because a connection sends one answer at a time.
    let out = nerite_compress::compress(pieces, encoding, Level::default(), out, &Lane::new()).await;
    let out = out.map_err(|fault| match fault {
        CompressError::NoMemory(refused) => no_memory(refused),
        CompressError::Refused(status) => status,
        CompressError::Failed(fault) => Status::internal(format!("the answer could not be compressed: {fault}")),
    })?;
    Ok(out.finish().into_bytes())
}

/// Inflates a body into `store`, up to `bytes_max`. The first bytes of the body decide its encoding; `declared` is only named in errors.
pub async fn inflate(
    body: impl Buf + Send + 'static,
    declared: Encoding,
    store: Inflated,
    bytes_max: u64,
) -> Result<Inflated, Status> {
    let encoding = Encoding::of_body(body.chunk());
    let inflated = nerite_compress::inflate(body, encoding, bytes_max, store, &Lane::new()).await;
    inflated.map_err(|fault| match fault {
        InflateError::TooLarge { .. } | InflateError::TooDense { .. } => Status::invalid(fault.to_string()),
        InflateError::Damaged(fault) => {
            Status::invalid(format!("the request body is no whole {} stream: {fault}", declared.name()))
        }
        InflateError::Refused(status) => status,
    })
}

/// The memory of an inflated body, and the client's charge for it.
#[derive(Debug)]
pub struct Inflated {
    store: Store,
    charge: Charge,
    read_limit: BodyReadLimit,
}

impl Inflated {
    /// Collects a body in `store`. Its bytes are charged to `account`.
    pub fn new(store: Store, account: &Account) -> Inflated {
        Inflated { store, charge: account.charge(0), read_limit: BodyReadLimit::new(account) }
    }

    /// The whole body.
    pub fn finish(self) -> Received {
        Received::block(self.store.finish(), self.charge)
    }
}

impl Sink for Inflated {
    fn buffer(&mut self) -> Result<&mut [u8], Status> {
        self.store.room()
    }

    fn advance(&mut self, written: usize) -> Result<(), Status> {
        self.store.advance(written);
        self.charge.grow(written);
        Ok(())
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.read_limit.poll_ready(cx, self.charge.bytes()).map_err(|shed| Status::unavailable(shed.to_string()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_accept(header: &str, encoding: Option<Encoding>) {
        assert_eq!(response_encoding(Some(header.as_bytes())), encoding, "{header}");
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
        assert_eq!(response_encoding(None), None);
    }

    #[test]
    fn a_request_is_gzip_deflate_or_plain() {
        assert_eq!(request_encoding(None), Ok(None));
        assert_eq!(request_encoding(Some(b"identity")), Ok(None));
        assert_eq!(request_encoding(Some(b"deflate")), Ok(Some(Encoding::Deflate)));
        assert_eq!(request_encoding(Some(b"br")).unwrap_err().message, "Unsupported compression type");
    }

    #[tokio::test]
    async fn what_was_compressed_is_inflated_whatever_the_header_says() {
        let text = Bytes::from(b"tensor".repeat(100_000));
        for (made, declared) in [
            (Encoding::Gzip, Encoding::Gzip),
            (Encoding::Deflate, Encoding::Deflate),
            (Encoding::Gzip, Encoding::Deflate),
        ] {
            let body = compress(VecDeque::from([text.slice(..7), text.slice(7..)]), made).await.unwrap();
            let store = Inflated::new(Store::new(5, None).unwrap(), &Account::unlimited());
            let inflated = inflate(body, declared, store, text.len() as u64).await.unwrap();
            assert_eq!(inflated.store.finish().private_bytes(), Some(&text[..]));
        }
    }

    #[tokio::test]
    async fn a_corrupt_or_cut_or_too_large_stream_is_refused() {
        let body = compress(VecDeque::from([b"tensor".repeat(100).into()]), Encoding::Gzip).await.unwrap();
        let refused = async |body: &[u8], max| {
            let store = Inflated::new(Store::new(0, None).unwrap(), &Account::unlimited());
            inflate(Bytes::copy_from_slice(body), Encoding::Gzip, store, max).await.unwrap_err().message
        };
        assert!(refused(b"garbage", 1000).await.starts_with("the request body is no whole gzip stream: "));
        assert!(refused(&body[..body.len() - 9], 1000).await.starts_with("the request body is no whole gzip stream: "));
        assert_eq!(
            refused(&body, 599).await,
            "Decompressed data size exceeds the maximum allowed value of 599 bytes. Use --http-max-input-size to \
             increase the limit."
        );
    }
}
