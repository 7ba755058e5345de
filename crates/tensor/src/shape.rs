//! How many elements and bytes does a tensor of a given shape have?

use smallvec::SmallVec;

use crate::DataType;

/// Dimensions, outermost first.
pub type Shape = SmallVec<[i64; 6]>;

/// The largest element count and byte size a tensor may have: what fits a signed 64-bit number, as in Triton.
pub const ELEMENTS_MAX: u64 = i64::MAX as u64;

/// Why the number of elements or bytes of a shape cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A dimension is negative.
    #[error("dimension {index} is {dim}")]
    Negative {
        /// The index of the dimension, from 0.
        index: usize,
        /// Its value.
        dim: i64,
    },
    /// The product of the dimensions is too large.
    #[error("element count exceeds maximum size of {ELEMENTS_MAX}")]
    TooManyElements,
    /// The product of element count and element size is too large.
    #[error("{elements} elements of {element_size} bytes exceed maximum size of {ELEMENTS_MAX}")]
    TooManyBytes {
        /// Elements of the shape.
        elements: u64,
        /// Bytes of one element.
        element_size: usize,
    },
}

/// Product of the dimensions; 1 for a scalar.
pub fn element_count(shape: &[i64]) -> Result<u64, ShapeError> {
    if let Some((index, &dim)) = shape.iter().enumerate().find(|(_, dim)| **dim < 0) {
        return Err(ShapeError::Negative { index, dim });
    }
    if shape.contains(&0) {
        return Ok(0);
    }
    let product = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim as u64));
    product.filter(|n| *n <= ELEMENTS_MAX).ok_or(ShapeError::TooManyElements)
}

/// Bytes of a tensor of this datatype and shape; `None` for BYTES, where the size depends on the data.
pub fn byte_size(datatype: DataType, shape: &[i64]) -> Result<Option<usize>, ShapeError> {
    let elements = element_count(shape)?;
    let Some(element_size) = datatype.size() else { return Ok(None) };
    match elements.checked_mul(element_size as u64) {
        Some(bytes) if bytes <= ELEMENTS_MAX => Ok(Some(bytes as usize)),
        _ => Err(ShapeError::TooManyBytes { elements, element_size }),
    }
}

/// A shape as Triton's messages print it: `[1,16]`.
pub fn show_shape(shape: &[i64]) -> String {
    let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(shape: &[i64], elements: Result<u64, ShapeError>) {
        assert_eq!(element_count(shape), elements, "{shape:?}");
    }

    #[test]
    fn elements_are_counted_without_overflow() {
        check(&[], Ok(1));
        check(&[2, 3], Ok(6));
        check(&[2, 0, i64::MAX], Ok(0));
        check(&[2, -1], Err(ShapeError::Negative { index: 1, dim: -1 }));
        check(&[i64::MAX], Ok(ELEMENTS_MAX));
        check(&[i64::MAX, 2], Err(ShapeError::TooManyElements));
        check(&[1 << 32, 1 << 32], Err(ShapeError::TooManyElements));
    }

    #[test]
    fn bytes_overflow_one_step_before_the_word_does() {
        assert_eq!(byte_size(DataType::Fp32, &[2, 3]), Ok(Some(24)));
        assert_eq!(byte_size(DataType::Bytes, &[2, 3]), Ok(None));
        let fault = ShapeError::TooManyBytes { elements: ELEMENTS_MAX, element_size: 2 };
        assert_eq!(byte_size(DataType::Fp16, &[i64::MAX]), Err(fault));
    }

    #[test]
    fn a_shape_prints_without_spaces() {
        assert_eq!(show_shape(&[-1, 16]), "[-1,16]");
        assert_eq!(show_shape(&[]), "[]");
    }
}
