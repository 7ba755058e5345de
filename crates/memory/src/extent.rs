//! Which bytes of a larger thing are meant, and do they exist?

/// An offset and a length that were checked against a limit: the only place where the two are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    offset: usize,
    len: usize,
}

/// Why an offset and a length do not name bytes of a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentError {
    /// `offset + len` does not fit in the machine's word.
    Overflow {
        /// First byte asked for.
        offset: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// The end lies past the limit.
    Beyond {
        /// First byte asked for.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Bytes there are.
        limit: usize,
    },
}

impl std::fmt::Display for ExtentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ExtentError::Overflow { offset, len } => {
                write!(f, "offset {offset} + size {len} overflows")
            }
            ExtentError::Beyond { offset, len, limit } => {
                write!(f, "has {limit} bytes, asked for {len} at offset {offset}")
            }
        }
    }
}

impl std::error::Error for ExtentError {}

impl Extent {
    /// `len` bytes from `offset` on, of a thing that has `limit` bytes.
    pub fn new(offset: usize, len: usize, limit: usize) -> Result<Extent, ExtentError> {
        let end = offset.checked_add(len).ok_or(ExtentError::Overflow { offset, len })?;
        if end > limit {
            return Err(ExtentError::Beyond { offset, len, limit });
        }
        Ok(Extent { offset, len })
    }

    /// All of a thing that has `len` bytes.
    pub fn whole(len: usize) -> Extent {
        Extent { offset: 0, len }
    }

    /// First byte.
    pub fn offset(self) -> usize {
        self.offset
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether no byte is meant.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// One past the last byte; cannot overflow, because `new` checked it.
    pub fn end(self) -> usize {
        self.offset + self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(offset: usize, len: usize, limit: usize, fits: bool) {
        assert_eq!(Extent::new(offset, len, limit).is_ok(), fits, "{offset}+{len} of {limit}");
    }

    #[test]
    fn an_extent_exists_only_inside_its_limit() {
        check(0, 0, 0, true);
        check(0, 1, 0, false);
        check(4, 4, 8, true);
        check(5, 4, 8, false);
        check(8, 0, 8, true);
        check(9, 0, 8, false);
        check(usize::MAX, 1, usize::MAX, false);
        check(usize::MAX, 0, usize::MAX, true);
    }
}
