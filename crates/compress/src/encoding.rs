//! Which encodings of compressed messages do both protocols support?

pub use flate2::Compression as Level;

/// A compression that both sides may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As RFC 1952 says.
    Gzip,
    /// zlib's format (RFC 1950), as everywhere in HTTP.
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

    /// The encoding by the first bytes of `body`, whatever its header says.
    pub fn of_body(body: &[u8]) -> Encoding {
        if body.starts_with(&GZIP_MAGIC) { Encoding::Gzip } else { Encoding::Deflate }
    }
}
