//! How do BYTES elements lie in a buffer?
//!
//! ```text
//!   | len u32 LE | bytes … | len u32 LE | bytes … |
//! ```
//! The lengths may lie in memory that a peer writes at the same time. So each length is read once and checked, and only the
//! value that was read is used. All readers go through [`walk`] or [`extents`], and access the bytes by the extents that these
//! return.

use nerite_memory::{Buffer, Extent, MemoryReservation, NoMemory};

/// Bytes of a length word.
pub const LENGTH_BYTES: usize = 4;

/// Why a buffer does not hold the BYTES elements it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StringsError {
    /// The buffer ends inside a length word.
    #[error("incomplete string length indicator: expecting 4 bytes but only {left} bytes available")]
    IncompleteLength {
        /// Bytes left where four are needed.
        left: usize,
    },
    /// The buffer ends inside an element.
    #[error("incomplete string data: expecting string of length {len} but only {left} bytes available")]
    IncompleteData {
        /// Length the element claims.
        len: usize,
        /// Bytes left.
        left: usize,
    },
    /// More elements than the shape has.
    #[error("unexpected number of string elements {found}, expecting {expected}")]
    TooMany {
        /// Elements found so far (the walk stops here).
        found: u64,
        /// Elements of the shape.
        expected: u64,
    },
    /// Fewer elements than the shape has.
    #[error("expected {expected} string elements, got {found}")]
    TooFew {
        /// Elements found.
        found: u64,
        /// Elements of the shape.
        expected: u64,
    },
    /// There is no memory for the list of extents.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// If there are fewer elements, memory for their extents is not reserved before it is allocated.
const RESERVED_ELEMENTS_MIN: usize = 64 << 10;

/// Where each of the `expected` elements lies in `data`, which they must fill exactly.
pub fn extents(data: &Buffer, expected: u64) -> Result<Vec<Extent>, StringsError> {
    let most = usize::try_from(expected).unwrap_or(usize::MAX).min(data.len() / LENGTH_BYTES);
    let mut found = Vec::new();
    if most >= RESERVED_ELEMENTS_MIN {
        let _reservation = MemoryReservation::take(most.saturating_mul(size_of::<Extent>()))?;
        found.reserve_exact(most);
    }
    walk(data, expected, |extent| found.push(extent))?;
    Ok(found)
}

/// Calls `each` with the place of each of the `expected` elements in `data`, which they must fill exactly.
pub fn walk(data: &Buffer, expected: u64, mut each: impl FnMut(Extent)) -> Result<(), StringsError> {
    let (mut at, mut found) = (0, 0);
    while at < data.len() {
        let left = data.len() - at;
        let len = data.read_u32(at).ok_or(StringsError::IncompleteLength { left })? as usize;
        at += LENGTH_BYTES;
        if found >= expected {
            return Err(StringsError::TooMany { found: found + 1, expected });
        }
        let left = data.len() - at;
        let extent = Extent::new(at, len, data.len()).map_err(|_| StringsError::IncompleteData { len, left })?;
        at = extent.end();
        found += 1;
        each(extent);
    }
    if found < expected {
        return Err(StringsError::TooFew { found, expected });
    }
    Ok(())
}

/// The word that precedes an element. Elements of 4 GiB and more cannot be expressed and give `None`.
pub fn length_word(element: &[u8]) -> Option<[u8; LENGTH_BYTES]> {
    u32::try_from(element.len()).ok().map(u32::to_le_bytes)
}

/// Appends one element to `out`. Elements of 4 GiB and more cannot be expressed and give `None`.
pub fn push(out: &mut Vec<u8>, element: &[u8]) -> Option<()> {
    out.extend_from_slice(&length_word(element)?);
    out.extend_from_slice(element);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(data: &[u8], expected: u64, outcome: Result<&[&[u8]], StringsError>) {
        let buffer = Buffer::from(data.to_vec());
        let found = extents(&buffer, expected)
            .map(|all| all.into_iter().map(|e| &data[e.offset()..e.end()]).collect::<Vec<_>>());
        assert_eq!(found.as_deref(), outcome.as_ref().copied());
    }

    #[test]
    fn elements_are_found_where_they_lie_and_lies_are_refused() {
        check(b"", 0, Ok(&[]));
        check(b"\x02\0\0\0ab\0\0\0\0", 2, Ok(&[b"ab", b""]));
        check(b"", 1, Err(StringsError::TooFew { found: 0, expected: 1 }));
        check(b"\x01\0\0", 1, Err(StringsError::IncompleteLength { left: 3 }));
        check(b"\x05\0\0\0ab", 1, Err(StringsError::IncompleteData { len: 5, left: 2 }));
        check(b"\xff\xff\xff\xffab", 1, Err(StringsError::IncompleteData { len: u32::MAX as usize, left: 2 }));
        check(b"\0\0\0\0\0\0\0\0", 1, Err(StringsError::TooMany { found: 2, expected: 1 }));
    }

    #[test]
    fn what_was_pushed_is_found() {
        let mut out = Vec::new();
        push(&mut out, b"\0nul").expect("short");
        push(&mut out, "grün".as_bytes()).expect("short");
        check(&out, 2, Ok(&[b"\0nul", "grün".as_bytes()]));
    }
}
