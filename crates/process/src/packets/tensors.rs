//! How do packets describe tensors and their memory?

use std::fmt::{Display, Formatter, Result, Write};

use nerite_tensor::{DataType, Shape};
use serde_json::Value;

/// The position of bytes in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOffset {
    /// The number of the segment.
    pub segment: u64,
    /// The offset of the first byte.
    pub offset: usize,
}

/// A tensor, and where it lies. The location is `None` if the tensor has no bytes, or more bytes than fit into its
/// memory. `[name, datatype, shape, segment, offset, bytes]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorAt<'a, S = Shape> {
    /// Its name.
    pub name: &'a str,
    /// Its datatype.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: S,
    /// Where it lies.
    pub location: Option<SegmentOffset>,
    /// Its size in bytes.
    pub bytes: usize,
}

impl<'a> TensorAt<'a> {
    /// Parses JSON. `None` if it is invalid.
    pub fn read(value: &'a Value) -> Option<TensorAt<'a>> {
        let [name, datatype, shape, segment, offset, bytes] = value.as_array()?.as_slice() else { return None };
        let shape: Option<Shape> = shape.as_array()?.iter().map(Value::as_i64).collect();
        let location = segment.as_u64().zip(offset.as_u64());
        Some(TensorAt {
            name: name.as_str()?,
            datatype: DataType::from_name(datatype.as_str()?)?,
            shape: shape?,
            location: location.map(|(segment, offset)| SegmentOffset { segment, offset: offset as usize }),
            bytes: bytes.as_u64()? as usize,
        })
    }
}

impl<S: AsRef<[i64]>> Display for TensorAt<'_, S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let TensorAt { name, datatype, shape, location, bytes } = self;
        let (name, shape) = (Text(name), List(shape.as_ref().iter()));
        write!(f, r#"[{name},"{}",{shape},{},{bytes}]"#, datatype.name(), At(*location))
    }
}

/// The memory for an output. `[name, segment, offset, capacity, fixed]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputMemory<'a> {
    /// The output's name.
    pub name: &'a str,
    /// Where it lies. `None` if it is not known yet.
    pub location: Option<SegmentOffset>,
    /// Its capacity in bytes.
    pub capacity: usize,
    /// Whether the client named it, so that no other memory may replace it.
    pub fixed: bool,
}

impl<'a> OutputMemory<'a> {
    /// Parses JSON. `None` if it is invalid.
    pub fn read(value: &'a Value) -> Option<OutputMemory<'a>> {
        let [name, segment, offset, capacity, fixed] = value.as_array()?.as_slice() else { return None };
        let (offset, capacity) = (offset.as_u64()? as usize, capacity.as_u64()? as usize);
        let location = segment.as_u64().map(|segment| SegmentOffset { segment, offset });
        Some(OutputMemory { name: name.as_str()?, location, capacity, fixed: fixed.as_bool()? })
    }
}

impl Display for OutputMemory<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let OutputMemory { name, location, capacity, fixed } = self;
        write!(f, "[{},{},{capacity},{fixed}]", Text(name), At(*location))
    }
}

/// The word for memory that a process maps privately.
const PRIVATE: &str = "private";

/// Memory that a packet introduces. Its descriptor comes with the packet. `[segment, bytes, file_offset, is_region]`, with a fifth item in two cases.
/// For memory of a device, it is the device's number, and the descriptor is of a file that holds the memory's IPC handle. For memory that the process
/// maps privately, it is the word `"private"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number.
    pub number: u64,
    /// Its size in bytes.
    pub bytes: usize,
    /// Its offset in the descriptor's file.
    pub file_offset: u64,
    /// Whether its owner may shrink it, so that a guard must watch it.
    pub is_region: bool,
    /// The device that it lies on. `None` for the host.
    pub device: Option<u32>,
    /// Whether the process maps it privately, so that nobody else sees what it writes there.
    pub is_private: bool,
}

impl Segment {
    /// Parses JSON. `None` if it is invalid.
    pub fn read(value: &Value) -> Option<Segment> {
        let [number, bytes, file_offset, is_region, more @ ..] = value.as_array()?.as_slice() else { return None };
        Some(Segment {
            number: number.as_u64()?,
            bytes: bytes.as_u64()? as usize,
            file_offset: file_offset.as_u64()?,
            is_region: is_region.as_bool()?,
            device: more.first().and_then(Value::as_u64).map(|ordinal| ordinal as u32),
            is_private: more.first().and_then(Value::as_str) == Some(PRIVATE),
        })
    }
}

impl Display for Segment {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Segment { number, bytes, file_offset, is_region, device, is_private } = self;
        write!(f, "[{number},{bytes},{file_offset},{is_region}")?;
        if let Some(ordinal) = device {
            write!(f, ",{ordinal}")?;
        } else if *is_private {
            write!(f, r#","{PRIVATE}""#)?;
        }
        f.write_char(']')
    }
}

/// Writes the items of an iterator as a JSON list.
#[derive(Clone, Copy, Debug)]
pub struct List<I>(pub I);

impl<I: Iterator<Item: Display> + Clone> Display for List<I> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_char('[')?;
        for (at, one) in self.0.clone().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{one}")?;
        }
        f.write_char(']')
    }
}

/// Writes a JSON string.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let plain = self.0.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\');
        if plain { write!(f, "\"{}\"", self.0) } else { Value::from(self.0).fmt(f) }
    }
}

/// Writes a segment and an offset as JSON.
pub(super) struct At(pub(super) Option<SegmentOffset>);

impl Display for At {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.0 {
            Some(SegmentOffset { segment, offset }) => write!(f, "{segment},{offset}"),
            None => f.write_str("null,0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str) {
        assert_eq!(Text(text).to_string(), Value::from(text).to_string());
    }

    #[test]
    fn texts_are_quoted_as_json_does() {
        ["", "plain", "a\"b", "a\\b", "\n", "\u{7f}", "\u{e9}", "\u{1f600}"].into_iter().for_each(check);
    }
}
