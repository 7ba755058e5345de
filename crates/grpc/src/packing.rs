//! How may the messages of a call come?

use nerite_compress::{Encoding, InflateError, compressed_bytes_max};

use crate::failure::Failure;

/// What is known of a call's messages before they come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    /// Bytes that each may have.
    pub(crate) bytes_max: usize,
    /// How those are compressed that are; `None` if none may be.
    pub(crate) encoding: Option<Encoding>,
    /// What each may become, in bytes.
    pub(crate) inflated_bytes_max: u64,
    /// A plain message that is longer comes in parts of about so many bytes.
    pub(crate) part_bytes: Option<usize>,
}

impl Packing {
    /// How a message with the flag is compressed, which will have `len` bytes.
    pub(crate) fn encoding_of(&self, len: usize) -> Result<Encoding, Failure> {
        let bytes_max = self.inflated_bytes_max;
        if len as u64 > compressed_bytes_max(bytes_max) {
            return Err(Failure::inflates_too_far(&InflateError::TooLarge { bytes_max }, self.bytes_max));
        }
        self.encoding.ok_or_else(|| Failure::unreadable("the message is compressed, but no grpc-encoding says how"))
    }
}
