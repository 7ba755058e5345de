//! Which encodings do HTTP and gRPC support?

pub use flate2::Compression as Level;

/// An encoding of compressed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// gzip's format (RFC 1952).
    Gzip,
    /// zlib's format (RFC 1950), which HTTP calls deflate.
    Deflate,
}

/// The first bytes of a gzip stream. No zlib stream begins with them.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

impl Encoding {
    /// Its name in a header.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Gzip => "gzip",
            Encoding::Deflate => "deflate",
        }
    }

    /// The encoding, determined by the first bytes of `body`. The header is ignored.
    pub fn of_body(body: &[u8]) -> Encoding {
        if body.starts_with(&GZIP_MAGIC) { Encoding::Gzip } else { Encoding::Deflate }
    }
}
