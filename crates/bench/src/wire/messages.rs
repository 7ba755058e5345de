//! Where does one message of a gRPC stream end, and the next one begin?

use std::io::Result;

use super::bad;
use super::grpc::MESSAGE_HEAD_BYTES;

/// The bytes of a stream that are received, but not yet taken as messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) bytes: Vec<u8>,
    /// The part of `bytes` that was taken.
    taken: usize,
}

impl Messages {
    /// The next complete message.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>> {
        let unread = &self.bytes[self.taken..];
        let Some((head, rest)) = unread.split_first_chunk::<MESSAGE_HEAD_BYTES>() else {
            self.drop_taken();
            return Ok(None);
        };
        let [is_compressed, a, b, c, d] = *head;
        if is_compressed != 0 {
            return Err(bad("a compressed response, which was not requested"));
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if rest.len() < len {
            self.drop_taken();
            return Ok(None);
        }
        let start = self.taken + MESSAGE_HEAD_BYTES;
        self.taken = start + len;
        Ok(Some(&self.bytes[start..self.taken]))
    }

    fn drop_taken(&mut self) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_when_they_are_complete() {
        let mut messages = Messages::default();
        messages.bytes.extend([0, 0, 0, 0, 2, b'a', b'b', 0, 0, 0]);
        assert_eq!(messages.next().expect("sound"), Some(&b"ab"[..]));
        assert_eq!(messages.next().expect("sound"), None);
        messages.bytes.extend([0, 1, b'c']);
        assert_eq!(messages.next().expect("sound"), Some(&b"c"[..]));
        messages.bytes.extend([1, 0, 0, 0, 0]);
        assert!(messages.next().is_err());
    }
}
