//! How does a Rust value become a tensor?

use bytes::Bytes;
use nerite_memory::{Buffer, Number, Slot};
use nerite_tensor::{DataType, Shape, byte_size, element_count, strings};

use crate::Error;

/// A Rust number that has a datatype of its own.
pub trait Element: Number {
    /// The datatype as which it is sent.
    const DATATYPE: DataType;

    /// Whether a tensor of `datatype` can be read as numbers of this type. The type's own datatype can. So can datatypes for which Rust has no number: BOOL is
    /// read as `u8`, and FP16 and BF16 are read as the `u16` of their bits. With the feature `half` the latter two have types of their own as well.
    fn reads(datatype: DataType) -> bool {
        datatype == Self::DATATYPE
            || match datatype {
                DataType::Bool => Self::DATATYPE == DataType::Uint8,
                DataType::Fp16 | DataType::Bf16 => Self::DATATYPE == DataType::Uint16,
                _ => false,
            }
    }
}

macro_rules! elements {
    ($($rust:ty = $datatype:ident),* $(,)?) => {
        $(impl Element for $rust { const DATATYPE: DataType = DataType::$datatype; })*
    };
}

elements! {
    u8 = Uint8, u16 = Uint16, u32 = Uint32, u64 = Uint64,
    i8 = Int8, i16 = Int16, i32 = Int32, i64 = Int64,
    f32 = Fp32, f64 = Fp64,
}

#[cfg(feature = "half")]
elements! { half::f16 = Fp16, half::bf16 = Bf16 }

/// A named tensor that is sent in the message itself.
///
/// ```
/// use nerite_client::Tensor;
///
/// let tensor = Tensor::from_slice("INPUT0", &[1, 3], &[1i32, 2, 3])?;
/// assert_eq!(tensor.bytes().len(), 12);
/// # Ok::<(), nerite_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    pub(crate) shape: Shape,
    pub(crate) data: Bytes,
}

impl Tensor {
    /// A tensor of numbers in row-major order. They are copied once, to memory that is sent without another copy.
    pub fn from_slice<T: Element>(name: &str, shape: &[i64], values: &[T]) -> Result<Tensor, Error> {
        let mut slot = Slot::heap(size_of_val(values));
        if let Some(mut place) = slot.cells_mut::<T>() {
            place.copy_from(0, values);
        }
        Tensor::from_bytes(name, T::DATATYPE, shape, slot.filled().into_buffer().into_bytes())
    }

    /// A tensor of these bytes, which are little-endian numbers in row-major order, or serialised strings. Copies nothing.
    pub fn from_bytes(name: &str, datatype: DataType, shape: &[i64], data: impl Into<Bytes>) -> Result<Tensor, Error> {
        let data = data.into();
        let fault = |source| Error::Shape { name: name.to_owned(), source };
        match byte_size(datatype, shape).map_err(fault)? {
            Some(need) if need != data.len() => {
                return Err(Error::Size { name: name.to_owned(), need, have: data.len() });
            }
            Some(_) => {}
            None => {
                let elements = element_count(shape).map_err(fault)?;
                strings::extents(&Buffer::from(data.clone()), elements)
                    .map_err(|reason| Error::Strings { name: name.to_owned(), reason: reason.to_string() })?;
            }
        }
        Ok(Tensor { name: name.to_owned(), datatype, shape: Shape::from_slice(shape), data })
    }

    /// A BYTES tensor of these elements.
    pub fn from_strings<S: AsRef<[u8]>>(name: &str, shape: &[i64], elements: &[S]) -> Result<Tensor, Error> {
        let mut data = Vec::new();
        for element in elements {
            let fault = || Error::Strings { name: name.to_owned(), reason: "an element of 4 GiB or more".to_owned() };
            strings::push(&mut data, element.as_ref()).ok_or_else(fault)?;
        }
        Tensor::from_bytes(name, DataType::Bytes, shape, data)
    }

    /// Its elements as they are sent.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_little_endian_bytes() {
        let tensor = Tensor::from_slice("x", &[2], &[1u16, 0x0203]).expect("two of two");
        assert_eq!((tensor.datatype, &tensor.data[..]), (DataType::Uint16, &[1u8, 0, 3, 2][..]));
    }

    #[test]
    fn strings_carry_their_lengths() {
        let tensor = Tensor::from_strings("x", &[2], &["ab", ""]).expect("two of two");
        assert_eq!(&tensor.data[..], b"\x02\0\0\0ab\0\0\0\0");
    }

    #[test]
    fn a_shape_that_does_not_fit_the_data_is_refused() {
        assert!(matches!(Tensor::from_slice("x", &[3], &[1i8, 2]), Err(Error::Size { need: 3, have: 2, .. })));
        assert!(matches!(Tensor::from_slice("x", &[-1], &[1i8]), Err(Error::Shape { .. })));
        assert!(matches!(Tensor::from_strings("x", &[1], &["a", "b"]), Err(Error::Strings { .. })));
    }

    #[cfg(feature = "half")]
    #[test]
    fn halves_are_elements_of_their_own_datatypes() {
        use half::{bf16, f16};
        let tensor = Tensor::from_slice("x", &[2], &[f16::from_f32(1.0), f16::from_f32(-2.0)]).expect("two of two");
        assert_eq!((tensor.datatype, &tensor.data[..]), (DataType::Fp16, &[0, 0x3c, 0, 0xc0][..]));
        let tensor = Tensor::from_slice("x", &[1], &[bf16::from_f32(1.0)]).expect("one of one");
        assert_eq!((tensor.datatype, &tensor.data[..]), (DataType::Bf16, &[0x80, 0x3f][..]));
        assert!(f16::reads(DataType::Fp16) && !f16::reads(DataType::Bf16) && !bf16::reads(DataType::Uint16));
    }
}
