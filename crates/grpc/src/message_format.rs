//! Which sizes and encodings may the messages of a call have?

use nerite_compress::{Encoding, InflateError, compressed_bytes_max};

use crate::failure::Failure;

/// The allowed sizes and encodings of the messages of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageFormat {
    /// The most bytes of each message.
    pub(crate) bytes_max: usize,
    /// The encoding of compressed messages. `None` if messages may not be compressed.
    pub(crate) encoding: Option<Encoding>,
    /// The most bytes of each inflated message.
    pub(crate) inflated_bytes_max: u64,
    /// A longer uncompressed message is delivered in parts of about this size.
    pub(crate) part_bytes: Option<usize>,
}

impl MessageFormat {
    /// The encoding of a compressed message that will have `len` bytes.
    pub(crate) fn encoding_of(&self, len: usize) -> Result<Encoding, Failure> {
        let bytes_max = self.inflated_bytes_max;
        if len as u64 > compressed_bytes_max(bytes_max) {
            return Err(Failure::inflates_too_far(&InflateError::TooLarge { bytes_max }, self.bytes_max));
        }
        self.encoding.ok_or_else(|| Failure::unreadable("the message is compressed, but no grpc-encoding says how"))
    }
}
