//! Which bytes of a larger range do an offset and a length name, and do they exist?

/// An offset and a length that were checked against a limit. This is the only place that adds the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    offset: usize,
    len: usize,
}

/// Why an offset and a length do not name bytes of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentError {
    /// `offset + len` does not fit in the machine's word.
    Overflow {
        /// The requested offset.
        offset: usize,
        /// The requested number of bytes.
        len: usize,
    },
    /// The end lies past the limit.
    Beyond {
        /// The requested offset.
        offset: usize,
        /// The requested number of bytes.
        len: usize,
        /// The number of bytes in the range.
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
    /// `len` bytes from `offset` on, in a range of `limit` bytes.
    pub fn new(offset: usize, len: usize, limit: usize) -> Result<Extent, ExtentError> {
        let end = offset.checked_add(len).ok_or(ExtentError::Overflow { offset, len })?;
        if end > limit {
            return Err(ExtentError::Beyond { offset, len, limit });
        }
        Ok(Extent { offset, len })
    }

    /// A whole range of `len` bytes.
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

    /// Whether it is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// One past the last byte. It cannot overflow, because `new` checked it.
    pub fn end(self) -> usize {
        self.offset + self.len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    /// Numbers near zero, near each other, near powers of two and near the end of the range.
    fn edge() -> impl Strategy<Value = usize> {
        prop_oneof![
            0usize..300,
            (0u32..usize::BITS, 0usize..3)
                .prop_map(|(power, more)| (1usize << power).wrapping_add(more).wrapping_sub(1)),
            (0usize..300).prop_map(|less| usize::MAX - less),
            any::<usize>(),
        ]
    }

    proptest! {
        #[test]
        fn an_extent_agrees_with_integers_that_cannot_overflow(offset in edge(), len in edge(), limit in edge()) {
            let end = offset as u128 + len as u128;
            match Extent::new(offset, len, limit) {
                Ok(extent) => {
                    prop_assert!(end <= limit as u128);
                    prop_assert_eq!((extent.offset(), extent.len(), extent.end() as u128), (offset, len, end));
                    prop_assert_eq!(extent.is_empty(), len == 0);
                }
                Err(ExtentError::Overflow { .. }) => prop_assert!(end > usize::MAX as u128),
                Err(error @ ExtentError::Beyond { .. }) => {
                    prop_assert!(end > limit as u128 && end <= usize::MAX as u128);
                    prop_assert_eq!(error, ExtentError::Beyond { offset, len, limit });
                }
            }
        }

        /// A slice of a slice begins at the sum of both offsets.
        #[test]
        fn a_slice_of_a_buffer_agrees_too(whole in 0usize..200, offset in edge(), len in edge(), at in 0usize..200) {
            let bytes: Vec<u8> = (0..whole).map(|n| n as u8).collect();
            let buffer = crate::Buffer::from(bytes::Bytes::from(bytes.clone()));
            let Ok(outer) = Extent::new(offset, len, whole) else { return Ok(()) };
            let part = buffer.slice(outer);
            prop_assert_eq!(part.private_bytes(), Some(&bytes[outer.offset()..outer.end()]));
            if let Ok(inner) = Extent::new(at, 1, part.len()) {
                let byte = part.slice(inner);
                prop_assert_eq!(byte.private_bytes(), Some(&bytes[offset + at..=offset + at]));
            }
        }
    }
}
