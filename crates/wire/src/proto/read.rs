//! How are the fields of a protobuf message read?

use nerite_memory::NoMemory;
use nerite_request::limits::{NAME_BYTES_MAX, TooMany};

/// Why bytes are not a valid protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A length exceeds the rest of the message.
    #[error("a field of {need} bytes where {left} are left")]
    Truncated {
        /// Bytes that are left.
        left: usize,
        /// The length.
        need: usize,
    },
    /// A number of more than ten bytes.
    #[error("a number does not end within 10 bytes")]
    LongVarint,
    /// Field number 0, or one above 2^29 - 1.
    #[error("a tag of value {0}")]
    BadTag(u64),
    /// A wire type that does not exist.
    #[error("wire type {0}")]
    BadWireType(u8),
    /// The end of a group that was not open, or of another group than the open one.
    #[error("the end of group {0}, which was not open")]
    StrayGroupEnd(u32),
    /// Groups are nested too deep.
    #[error("groups nested deeper than {GROUP_DEPTH_MAX}")]
    Depth,
    /// Text that is not UTF-8.
    #[error("the text of field {0} is not UTF-8")]
    NotUtf8(&'static str),
    /// A name is too long.
    #[error("field {field} has {len} bytes, a name has at most {NAME_BYTES_MAX}")]
    LongName {
        /// The field.
        field: &'static str,
        /// Its length in bytes.
        len: usize,
    },
    /// Typed tensor contents are not valid.
    #[error("tensor contents that cannot be read")]
    Contents,
    /// The message is valid, but has more items than a request may have.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// There is no memory to read the message.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// The nesting depth of groups that are skipped. The same as in protobuf.
const GROUP_DEPTH_MAX: u32 = 100;
const FIELD_NUMBER_MAX: u64 = (1 << 29) - 1;

/// The wire type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Varint,
    Fixed64,
    Len,
    GroupStart,
    GroupEnd,
    Fixed32,
}

impl Wire {
    pub(super) fn from_bits(bits: u8) -> Result<Wire, Malformed> {
        Ok(match bits {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Len,
            3 => Wire::GroupStart,
            4 => Wire::GroupEnd,
            5 => Wire::Fixed32,
            other => return Err(Malformed::BadWireType(other)),
        })
    }
}

/// Bytes that are read from front to back.
pub(super) trait Read {
    /// Bytes left.
    fn left(&self) -> usize;
    /// The next byte.
    fn byte(&mut self) -> Result<u8, Malformed>;
    /// Skips `len` bytes.
    fn skip(&mut self, len: usize) -> Result<(), Malformed>;

    /// A number of up to 64 bits. Higher bits are dropped, as in every protobuf reader.
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed::LongVarint)
    }

    /// The number and wire type of the next field. `None` at the end.
    fn tag(&mut self) -> Result<Option<(u32, Wire)>, Malformed> {
        if self.left() == 0 {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > FIELD_NUMBER_MAX {
            return Err(Malformed::BadTag(tag));
        }
        Ok(Some((number as u32, Wire::from_bits((tag & 7) as u8)?)))
    }

    /// Reads the length of a field of wire type `Len`.
    fn length(&mut self) -> Result<usize, Malformed> {
        let need = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        let left = self.left();
        if need > left { Err(Malformed::Truncated { left, need }) } else { Ok(need) }
    }

    /// Skips a field whose tag was just read.
    fn skip_field(&mut self, number: u32, wire: Wire) -> Result<(), Malformed> {
        self.skip_nested(number, wire, 0)
    }

    /// As [`Read::skip_field`], inside `depth` groups.
    fn skip_nested(&mut self, number: u32, wire: Wire, depth: u32) -> Result<(), Malformed> {
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.skip(8),
            Wire::Fixed32 => self.skip(4),
            Wire::Len => self.length().and_then(|len| self.skip(len)),
            Wire::GroupEnd => Err(Malformed::StrayGroupEnd(number)),
            Wire::GroupStart if depth >= GROUP_DEPTH_MAX => Err(Malformed::Depth),
            Wire::GroupStart => loop {
                match self.tag()? {
                    None => return Err(Malformed::Truncated { left: 0, need: 1 }),
                    Some((end, Wire::GroupEnd)) if end == number => return Ok(()),
                    Some((inner, wire)) => self.skip_nested(inner, wire, depth + 1)?,
                }
            },
        }
    }
}

/// The fields of a message whose bytes are contiguous.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Len(&'a [u8]),
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }

    /// The next field that is not a group. `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        while let Some((number, wire)) = self.tag()? {
            let value = match wire {
                Wire::Varint => Value::Varint(self.varint()?),
                Wire::Fixed64 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
                Wire::Fixed32 => Value::Fixed32(u32::from_le_bytes(self.array()?)),
                Wire::Len => {
                    let len = self.length()?;
                    Value::Len(self.take(len)?)
                }
                Wire::GroupStart | Wire::GroupEnd => {
                    self.skip_field(number, wire)?;
                    continue;
                }
            };
            return Ok(Some((number, value)));
        }
        Ok(None)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let left = self.0.len();
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed::Truncated { left, need: len })?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("`take` gave N bytes"))
    }
}

impl Read for Fields<'_> {
    fn left(&self) -> usize {
        self.0.len()
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(Malformed::Truncated { left: 0, need: 1 })?;
        self.0 = rest;
        Ok(first)
    }

    fn skip(&mut self, len: usize) -> Result<(), Malformed> {
        self.take(len).map(drop)
    }
}

/// The bytes of a field as UTF-8 text.
pub(super) fn text<'a>(bytes: &'a [u8], field: &'static str) -> Result<&'a str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed::NotUtf8(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expect: Result<Option<(u32, Value<'_>)>, Malformed>) {
        assert_eq!(Fields::new(bytes).next(), expect, "{bytes:x?}");
    }

    #[test]
    fn each_wire_type_is_read() {
        check(&[], Ok(None));
        check(&[0x08, 0x96, 0x01], Ok(Some((1, Value::Varint(150)))));
        check(&[0x11, 1, 0, 0, 0, 0, 0, 0, 0], Ok(Some((2, Value::Fixed64(1)))));
        check(&[0x15, 1, 0, 0, 0], Ok(Some((2, Value::Fixed32(1)))));
        check(&[0x12, 2, b'h', b'i'], Ok(Some((2, Value::Len(b"hi")))));
        let minus_one = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        check(&minus_one, Ok(Some((1, Value::Varint(u64::MAX)))));
    }

    #[test]
    fn groups_are_passed_over() {
        check(&[0x0b, 0x10, 1, 0x0c, 0x08, 7], Ok(Some((1, Value::Varint(7)))));
        check(&[0x0b, 0x13, 0x14, 0x0c], Ok(None));
        check(&[0x0b, 0x14], Err(Malformed::StrayGroupEnd(2)));
        check(&[0x0c], Err(Malformed::StrayGroupEnd(1)));
        check(&[0x0b], Err(Malformed::Truncated { left: 0, need: 1 }));
        check(&[0x0b; 4096], Err(Malformed::Depth));
    }

    #[test]
    fn malformed_fields_are_refused() {
        check(&[0x08], Err(Malformed::Truncated { left: 0, need: 1 }));
        check(&[0xff; 11], Err(Malformed::LongVarint));
        check(&[0x00], Err(Malformed::BadTag(0)));
        check(&[0x0e, 0], Err(Malformed::BadWireType(6)));
        check(&[0x12, 3, 1, 2], Err(Malformed::Truncated { left: 2, need: 3 }));
        check(&[0x15, 1, 0, 0], Err(Malformed::Truncated { left: 3, need: 4 }));
        let huge = [0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        check(&huge, Err(Malformed::Truncated { left: 0, need: usize::MAX }));
    }
}
