//! How are tensors converted to arrays of the crate `ndarray` and back?
//!
//! Arrays own their elements, so data in shared memory is copied once in each direction. No function here lends memory that the server may write.

use ndarray::{ArrayBase, ArrayD, ArrayViewD, Data, Dimension, IxDyn};
use nerite_memory::{CellsMut, Number};

use crate::{Element, Error, Output, SharedMemory, Tensor, TensorBuffer, View};

impl Tensor {
    /// A tensor of an array's elements in row-major order. The array itself may have another order in memory.
    ///
    /// ```
    /// use nerite_client::Tensor;
    ///
    /// let tensor = Tensor::from_array("INPUT0", &ndarray::array![[1i32, 2], [3, 4]].t())?;
    /// assert_eq!(tensor.bytes()[..8], [1, 0, 0, 0, 3, 0, 0, 0]);
    /// # Ok::<(), nerite_client::Error>(())
    /// ```
    pub fn from_array<T: Element, D: Dimension>(
        name: &str,
        array: &ArrayBase<impl Data<Elem = T>, D>,
    ) -> Result<Tensor, Error> {
        let shape: Vec<i64> = array.shape().iter().map(|dim| *dim as i64).collect();
        match array.as_slice() {
            Some(elements) => Tensor::from_slice(name, &shape, elements),
            None => Tensor::from_slice(name, &shape, &array.iter().copied().collect::<Vec<T>>()),
        }
    }
}

impl Output {
    /// A copy of the elements as an array of the output's shape.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client, request: nerite_client::Request)
    /// # -> Result<(), nerite_client::Error> {
    /// let response = client.infer(&request).await?;
    /// let sums: ndarray::ArrayD<i32> = response.output("OUTPUT0")?.to_array()?;
    /// # Ok(()) }
    /// ```
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>, Error> {
        array(&self.name, &dims(&self.name, &self.shape)?, self.to_vec()?)
    }

    /// An array of the output's shape over the elements, without a copy. As [`Output::as_slice`], it returns an error for an output in a lease.
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>, Error> {
        let (shape, elements) = (dims(&self.name, &self.shape)?, self.as_slice::<T>()?);
        let have = size_of_val(elements);
        ArrayViewD::from_shape(IxDyn(&shape), elements).map_err(|_| uneven::<T>(&self.name, &shape, have))
    }
}

impl SharedMemory {
    /// Copies an array's elements in row-major order, from byte `offset` on. The offset must be a multiple of the element size.
    pub fn write_array<T: Number, D: Dimension>(
        &self,
        offset: usize,
        array: &ArrayBase<impl Data<Elem = T>, D>,
    ) -> Result<(), Error> {
        self.edit(offset, array.len(), |place: CellsMut<'_, T>| fill(place, array))
    }
}

impl TensorBuffer {
    /// Copies an array of the buffer's shape into the buffer.
    pub fn fill_from_array<T: Element, D: Dimension>(
        &mut self,
        array: &ArrayBase<impl Data<Elem = T>, D>,
    ) -> Result<(), Error> {
        let name = format!("buffer of {} {:?}", self.datatype(), self.shape());
        let shape = dims(&name, self.shape())?;
        if shape != array.shape() {
            return Err(Error::ArrayShape { name, need: shape, have: array.shape().to_vec() });
        }
        self.fill(|place: CellsMut<'_, T>| fill(place, array))
    }
}

impl<T: Number> View<T> {
    /// A copy of all numbers as an array of this shape.
    pub fn to_array(&self, shape: &[usize]) -> Result<ArrayD<T>, Error> {
        array("view", shape, self.to_vec())
    }
}

fn fill<T: Number, D: Dimension>(mut place: CellsMut<'_, T>, array: &ArrayBase<impl Data<Elem = T>, D>) {
    if let Some(elements) = array.as_slice() {
        return place.copy_from(0, elements);
    }
    for (at, element) in array.iter().enumerate() {
        assert!(place.set(at, *element), "both callers compared the sizes");
    }
}

fn array<T>(name: &str, shape: &[usize], elements: Vec<T>) -> Result<ArrayD<T>, Error> {
    let have = size_of_val(elements.as_slice());
    ArrayD::from_shape_vec(IxDyn(shape), elements).map_err(|_| uneven::<T>(name, shape, have))
}

/// The error if the shape, which the server or the caller gave, does not fit the number of elements.
fn uneven<T>(name: &str, shape: &[usize], have: usize) -> Error {
    let need = shape.iter().fold(size_of::<T>(), |bytes, dim| bytes.saturating_mul(*dim));
    Error::Size { name: name.to_owned(), need, have }
}

fn dims(name: &str, shape: &[i64]) -> Result<Vec<usize>, Error> {
    let dims: Result<Vec<usize>, _> = shape.iter().map(|dim| usize::try_from(*dim)).collect();
    dims.map_err(|_| Error::Answer(format!("tensor '{name}' has the shape {shape:?}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ndarray::{Array, array};
    use nerite_memory::Buffer;
    use nerite_tensor::{DataType, Shape};

    use super::*;
    use crate::Region;

    fn output(shape: &[i64], bytes: &[u8]) -> Output {
        let data = Some(Buffer::from(bytes.to_vec()).aligned(8));
        Output { name: "OUT".into(), datatype: DataType::Int16, shape: Shape::from_slice(shape), data, leased_at: None }
    }

    #[test]
    fn arrays_of_any_order_travel_row_major() {
        let numbers = array![[1i16, 2, 3], [4, 5, 6]];
        let content = |tensor: Tensor| (tensor.shape.to_vec(), tensor.datatype, tensor.data.to_vec());
        let expected = content(Tensor::from_slice("x", &[3, 2], &[1i16, 4, 2, 5, 3, 6]).unwrap());
        assert_eq!(content(Tensor::from_array("x", &numbers.t()).unwrap()), expected);
        assert_eq!(content(Tensor::from_array("x", &numbers.t().as_standard_layout()).unwrap()), expected);
    }

    #[test]
    fn outputs_become_arrays_of_their_shape() {
        let numbers = output(&[2, 2], &[1, 0, 2, 0, 3, 0, 4, 0]);
        let expected = array![[1i16, 2], [3, 4]].into_dyn();
        assert_eq!(numbers.to_array::<i16>().unwrap(), expected);
        assert_eq!(numbers.as_array::<i16>().unwrap(), expected);
        assert!(matches!(numbers.to_array::<f32>(), Err(Error::Datatype { .. })));
        let wrong = output(&[3], &[1, 0]);
        assert!(matches!(wrong.to_array::<i16>(), Err(Error::Size { need: 6, have: 2, .. })));
        assert!(matches!(wrong.as_array::<i16>(), Err(Error::Size { need: 6, have: 2, .. })));
        assert!(matches!(output(&[-1], &[1, 0]).to_array::<i16>(), Err(Error::Answer(_))));
    }

    #[test]
    fn shared_memory_takes_and_gives_arrays() {
        let region = Region::create(&format!("/nerite_client_{}_arrays", std::process::id()), 64).unwrap();
        let numbers = array![[1.5f32, 2.5], [3.5, 4.5]];
        region.write_array(8, &numbers.t()).unwrap();
        let view = region.view::<f32>(8, 4).unwrap();
        assert_eq!(view.to_vec(), [1.5, 3.5, 2.5, 4.5]);
        assert_eq!(view.to_array(&[2, 2]).unwrap(), numbers.t().into_dyn());
        assert!(matches!(view.to_array(&[5]), Err(Error::Size { need: 20, have: 16, .. })));
        assert!(matches!(region.write_array(60, &numbers), Err(Error::Region { .. })));
    }

    #[tokio::test]
    async fn a_buffer_takes_arrays_of_its_shape() {
        let mut buffer = TensorBuffer::new(None, DataType::Int32, &[2, 2]).await.unwrap();
        buffer.fill_from_array(&array![[1, 2], [3, 4]]).unwrap();
        assert_eq!(buffer.view::<i32>().unwrap().to_vec(), [1, 2, 3, 4]);
        let error = buffer.fill_from_array(&Array::<i32, _>::zeros(4)).unwrap_err().to_string();
        assert_eq!(error, "tensor 'buffer of INT32 [2, 2]' has the shape [2, 2], the array [4]");
    }
}
