//! What is known of a tensor before a run?

use nerite_backend_sdk::DataType;

use crate::limits::{KNOWN_MAX, RANK_MAX, STRING_BYTES};

/// A tensor: its datatype, its shape, and its elements if they depend only on the shapes of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// Its datatype.
    pub datatype: DataType,
    /// Its shape.
    pub dims: Vec<usize>,
    /// The elements of an integer tensor, if they are known.
    pub known: Option<Vec<i64>>,
    /// The most bytes of a string in it.
    pub text_max: u64,
}

impl Fact {
    /// A tensor of that datatype and shape.
    pub fn new(datatype: DataType, dims: Vec<usize>) -> Fact {
        Fact { datatype, dims, known: None, text_max: 0 }
    }

    /// The same with another shape.
    pub fn reshaped(&self, dims: Vec<usize>) -> Fact {
        Fact { dims, ..self.clone() }
    }

    /// An integer tensor with known elements.
    pub fn of_numbers(datatype: DataType, dims: Vec<usize>, known: Vec<i64>) -> Fact {
        Fact { known: (known.len() <= KNOWN_MAX).then_some(known), ..Fact::new(datatype, dims) }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements. `None` if it overflows.
    pub fn volume(&self) -> Option<usize> {
        self.dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim))
    }

    /// Bytes that it occupies. `None` if that overflows, or if it has too many dimensions.
    pub fn bytes(&self) -> Option<u64> {
        let each = self.datatype.size().map_or(STRING_BYTES + self.text_max, |size| size as u64);
        let volume = self.volume().filter(|_| self.rank() <= RANK_MAX)? as u64;
        volume.checked_mul(each)
    }

    /// The axis of a number that counts from the end if it is negative.
    pub fn axis(&self, axis: i64, extra: usize) -> Result<usize, String> {
        let rank = (self.rank() + extra) as i64;
        let found = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&found) {
            return Ok(found as usize);
        }
        Err(format!("axis {axis} is not one of a tensor of shape {:?}", self.dims))
    }
}
