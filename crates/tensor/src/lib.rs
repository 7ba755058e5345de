//! What is a tensor?
//!
//! A name, a [`DataType`], a [`Shape`] and a `Buffer` of row-major little-endian elements. BYTES elements carry their
//! length in four bytes before them; [`strings`] reads and writes that form.
//!
//! ```
//! use nerite_tensor::{Buffer, DataType, byte_size, strings};
//!
//! assert_eq!(byte_size(DataType::Fp32, &[2, 3])?, Some(24));
//! let mut data = Vec::new();
//! strings::push(&mut data, b"zero").ok_or("an element of 4 GiB or more")?;
//! let data = Buffer::from(data);
//! assert_eq!(strings::extents(&data, 1)?[0].len(), 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod datatype;
mod shape;
pub mod strings;

pub use datatype::DataType;
pub use nerite_memory::Buffer;
pub use shape::{ELEMENTS_MAX, Shape, ShapeError, byte_size, element_count, show_shape};

/// A name of a model, a tensor, a region or a request. A name of up to 23 bytes is stored inline, so making it allocates nothing. Copies of a longer
/// one share its text, so no copy allocates anything.
pub type Name = smol_str::SmolStr;

/// A named tensor with its data.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The model's name for it.
    pub name: Name,
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions, outermost first.
    pub shape: Shape,
    /// Its elements, row-major, little-endian.
    pub data: Buffer,
}
