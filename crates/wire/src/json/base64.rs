//! How is base64 decoded?

use nerite_memory::{MemoryReservation, NoMemory};

use super::limits::RESERVED_BYTES_MIN;

/// Decodes as the library behind Triton does. Characters outside of the alphabet, including line ends and padding, are skipped. Bits that do not fill
/// a byte are dropped. So no text is refused.
pub fn decode(text: &[u8]) -> Result<Vec<u8>, NoMemory> {
    let len_max = text.len() / 4 * 3 + 3;
    let _reservation =
        if len_max < RESERVED_BYTES_MIN { MemoryReservation::none() } else { MemoryReservation::take(len_max)? };
    let mut out = Vec::with_capacity(len_max);
    let mut decoder = Decoder::default();
    for &byte in text {
        out.extend(decoder.push(byte));
    }
    Ok(out)
}

/// Decodes byte by byte.
#[derive(Debug, Default)]
pub struct Decoder {
    bits: u32,
    held: u32,
}

impl Decoder {
    /// Takes the next character. Returns the byte that it completes, if any.
    pub fn push(&mut self, character: u8) -> Option<u8> {
        self.bits = self.bits << 6 | sextet(character)?;
        self.held += 6;
        self.held.checked_sub(8).map(|left| {
            self.held = left;
            (self.bits >> left) as u8
        })
    }
}

fn sextet(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, bytes: &[u8]) {
        assert_eq!(decode(text.as_bytes()).as_deref(), Ok(bytes), "{text:?}");
    }

    #[test]
    fn text_of_every_length_and_with_line_ends_is_decoded() {
        check("", b"");
        check("Zg==", b"f");
        check("Zm8=", b"fo");
        check("Zm9v", b"foo");
        check("Zm9vYg", b"foob");
        check("Zm9v\nYmFy\r\n", b"foobar");
        check("+/+/", &[0xfb, 0xff, 0xbf]);
        check("!!", b"");
    }
}
