//! Which part of an object may be mapped as a region?

use nerite_memory::Extent;

/// A part of an object that exists, is not empty and begins at a page boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    extent: Extent,
}

/// Why a part of an object cannot be mapped, in the order of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowError {
    /// It reaches past the object's end, or its end overflows.
    Beyond,
    /// It is empty.
    Empty,
    /// It does not begin at a page boundary.
    Unaligned,
}

impl Window {
    /// `byte_size` bytes from `offset` on, of an object of `object_bytes`. Bounds are checked before emptiness: Triton's tests expect "invalid args" for
    /// 0 bytes one past the end.
    pub(crate) fn new(offset: u64, byte_size: u64, object_bytes: u64, page: usize) -> Result<Window, WindowError> {
        // u64 and usize are the same width: `limits` asserts it.
        let extent = Extent::new(offset as usize, byte_size as usize, object_bytes as usize);
        let extent = extent.map_err(|_| WindowError::Beyond)?;
        if extent.is_empty() {
            return Err(WindowError::Empty);
        }
        if !extent.offset().is_multiple_of(page) {
            return Err(WindowError::Unaligned);
        }
        Ok(Window { extent })
    }

    /// First byte.
    pub(crate) fn offset(self) -> usize {
        self.extent.offset()
    }

    /// Number of bytes, at least one.
    pub(crate) fn len(self) -> usize {
        self.extent.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same rule with integers that cannot overflow.
    fn oracle(offset: u64, byte_size: u64, object: u64, page: usize) -> Result<(), WindowError> {
        if u128::from(offset) + u128::from(byte_size) > u128::from(object) {
            Err(WindowError::Beyond)
        } else if byte_size == 0 {
            Err(WindowError::Empty)
        } else if !offset.is_multiple_of(page as u64) {
            Err(WindowError::Unaligned)
        } else {
            Ok(())
        }
    }

    /// Numbers near each other, near page boundaries, near zero and near the end of the range.
    fn edge() -> impl Strategy<Value = u64> {
        prop_oneof![
            0u64..20_000,
            (0u64..8).prop_map(|n| n * 4096),
            (0u64..20_000).prop_map(|n| u64::MAX - n),
            any::<u64>(),
        ]
    }

    proptest! {
        #[test]
        fn a_window_agrees_with_arithmetic_that_cannot_overflow(
            offset in edge(), byte_size in edge(), object in edge(),
        ) {
            let window = Window::new(offset, byte_size, object, 4096);
            prop_assert_eq!(window.map(|_| ()), oracle(offset, byte_size, object, 4096));
            if let Ok(window) = window {
                prop_assert_eq!((window.offset() as u64, window.len() as u64), (offset, byte_size));
            }
        }
    }
}
