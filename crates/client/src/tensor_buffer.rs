//! Where is a tensor stored so that the model can read it in place, if the server lends memory?

use bytes::Bytes;
use nerite_memory::{Buffer, CellsMut, Reason, Slot};
use nerite_request::Code;
use nerite_tensor::{DataType, Shape, byte_size, element_count, strings};

use crate::{Element, Error, Lease, Session, View};

/// Memory for one input tensor: a lease of a session. Without a session, or if the session has no memory left, it is memory of this process, and the bytes are
/// sent in the request. The program makes, fills and sends it in the same way in both cases.
///
/// ```no_run
/// use nerite_client::{CellsMut, DataType, TensorBuffer, Request, http};
///
/// # async fn call() -> Result<(), nerite_client::Error> {
/// let client = http::Client::new("http://localhost:8000")?;
/// let session = client.session().await?; // None with a server on another host, or of another kind
/// let mut image = TensorBuffer::new(session.as_ref(), DataType::Fp32, &[1, 64]).await?;
/// image.fill(|mut pixels: CellsMut<'_, f32>| pixels.fill(0.5))?;
/// let request = Request::new("digits").input_buffer("image", &image).output_leased("probabilities", session.as_ref());
/// let response = client.infer(&request).await?;
/// println!("{:?}", response.output("probabilities")?.to_vec::<f32>()?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TensorBuffer {
    datatype: DataType,
    shape: Shape,
    byte_size: usize,
    memory: Memory,
}

#[derive(Clone, Debug)]
enum Memory {
    Lease(Lease),
    Heap(Buffer),
}

impl TensorBuffer {
    /// Memory for a tensor of a datatype of fixed size. The initial content is undefined.
    pub async fn new<'s>(
        session: impl Into<Option<&'s Session>>,
        datatype: DataType,
        shape: &[i64],
    ) -> Result<TensorBuffer, Error> {
        let size =
            byte_size(datatype, shape).map_err(|source| Error::Shape { name: called(datatype, shape), source })?;
        let size = size.ok_or_else(|| Error::Strings {
            name: called(datatype, shape),
            reason: "the size of a BYTES tensor does not follow from its shape: use TensorBuffer::of_strings"
                .to_owned(),
        })?;
        TensorBuffer::of(session.into(), datatype, shape, size).await
    }

    /// A BYTES tensor of these elements.
    pub async fn of_strings<'s, S: AsRef<[u8]>>(
        session: impl Into<Option<&'s Session>>,
        shape: &[i64],
        elements: &[S],
    ) -> Result<TensorBuffer, Error> {
        let fault = |reason: String| Error::Strings { name: called(DataType::Bytes, shape), reason };
        let expected = element_count(shape).map_err(|reason| fault(reason.to_string()))?;
        if expected != elements.len() as u64 {
            return Err(fault(format!("its shape has {expected} elements, {} are given", elements.len())));
        }
        let mut bytes = Vec::with_capacity(elements.iter().map(|element| 4 + element.as_ref().len()).sum());
        for element in elements {
            strings::push(&mut bytes, element.as_ref())
                .ok_or_else(|| fault("an element of 4 GiB or more".to_owned()))?;
        }
        let mut buffer = TensorBuffer::of(session.into(), DataType::Bytes, shape, bytes.len()).await?;
        match &mut buffer.memory {
            Memory::Lease(lease) => lease.write_bytes(0, &bytes)?,
            Memory::Heap(heap) => *heap = Buffer::from(bytes),
        }
        Ok(buffer)
    }

    /// Calls `write` with the tensor's numbers, to change them. If the memory is a lease, the change also applies to requests that were made with the buffer
    /// and are not sent yet.
    pub fn fill<T: Element>(&mut self, write: impl FnOnce(CellsMut<'_, T>)) -> Result<(), Error> {
        self.check::<T>()?;
        let count = self.byte_size / size_of::<T>();
        match &mut self.memory {
            Memory::Lease(lease) => lease.edit(0, count, write),
            Memory::Heap(heap) => {
                // A request may hold the old bytes, so they are not changed.
                let mut slot = own_memory(self.byte_size, self.datatype, &self.shape)?;
                // It cannot fail, because both have the tensor's size.
                let _ = slot.fill_from(0, heap, Reason::InlineRequest);
                write(slot.cells_mut::<T>().ok_or_else(uneven)?);
                *heap = slot.filled().into_buffer();
                Ok(())
            }
        }
    }

    /// The tensor's numbers, in place.
    pub fn view<T: Element>(&self) -> Result<View<T>, Error> {
        self.check::<T>()?;
        match &self.memory {
            Memory::Lease(lease) => lease.view(0, self.byte_size / size_of::<T>()),
            Memory::Heap(heap) => View::new(heap.clone().aligned(align_of::<T>())).ok_or_else(uneven),
        }
    }

    /// Whether the model reads the tensor in place. Otherwise its bytes are sent in the request.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Lease(_))
    }

    /// The tensor's datatype.
    pub fn datatype(&self) -> DataType {
        self.datatype
    }

    /// Its dimensions.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Its size in bytes.
    pub fn byte_size(&self) -> usize {
        self.byte_size
    }

    /// The lease it lies in.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.memory {
            Memory::Lease(lease) => Some(lease),
            Memory::Heap(_) => None,
        }
    }

    /// The bytes to send, if the tensor lies in no lease.
    pub(crate) fn bytes(&self) -> Bytes {
        match &self.memory {
            Memory::Lease(_) => Bytes::new(),
            Memory::Heap(heap) => heap.clone().into_bytes(),
        }
    }

    async fn of(
        session: Option<&Session>,
        datatype: DataType,
        shape: &[i64],
        byte_size: usize,
    ) -> Result<TensorBuffer, Error> {
        let memory = match lend(session, byte_size).await? {
            Some(lease) => Memory::Lease(lease),
            None => Memory::Heap(own_memory(byte_size, datatype, shape)?.filled().into_buffer()),
        };
        Ok(TensorBuffer { datatype, shape: Shape::from_slice(shape), byte_size, memory })
    }

    fn check<T: Element>(&self) -> Result<(), Error> {
        if T::reads(self.datatype) {
            return Ok(());
        }
        let name = called(self.datatype, &self.shape);
        Err(Error::Datatype { name, held: self.datatype, requested: T::DATATYPE })
    }
}

/// A lease, if there is a session and it has memory left. An empty tensor needs no lease.
async fn lend(session: Option<&Session>, byte_size: usize) -> Result<Option<Lease>, Error> {
    let Some(session) = session.filter(|_| byte_size > 0) else { return Ok(None) };
    match session.borrow(byte_size).await {
        Ok(lease) => Ok(Some(lease)),
        // The tensor is too large for the session now, or for any session. It can be sent in the request.
        Err(Error::Refused(status)) if matches!(status.code, Code::Unavailable | Code::InvalidArg) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Memory of this process. The caller chooses the size, and gets an error if there is no memory.
fn own_memory(byte_size: usize, datatype: DataType, shape: &[i64]) -> Result<Slot, Error> {
    Slot::try_heap(byte_size).map_err(|source| Error::Memory { name: called(datatype, shape), source })
}

/// The name in errors of a tensor that no request has named yet.
fn called(datatype: DataType, shape: &[i64]) -> String {
    format!("buffer of {datatype} {shape:?}")
}

fn uneven() -> Error {
    Error::Answer("a tensor whose size is no multiple of its elements".to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_session_a_buffer_is_memory_of_our_own() {
        let mut buffer = TensorBuffer::new(None, DataType::Int32, &[2, 2]).await.unwrap();
        buffer.fill(|mut numbers: CellsMut<'_, i32>| numbers.copy_from(0, &[1, 2, 3, 4])).unwrap();
        let before = buffer.bytes();
        buffer.fill(|mut numbers: CellsMut<'_, i32>| assert!(numbers.set(0, 9))).unwrap();
        assert_eq!(buffer.view::<i32>().unwrap().to_vec(), [9, 2, 3, 4]);
        assert_eq!((buffer.is_shared(), before[0], buffer.bytes()[0]), (false, 1, 9));
        let wrong = buffer.fill(|_: CellsMut<'_, f32>| {}).unwrap_err().to_string();
        assert_eq!(wrong, "tensor 'buffer of INT32 [2, 2]' holds INT32, asked for as FP32");
        assert!(matches!(TensorBuffer::new(None, DataType::Bytes, &[1]).await, Err(Error::Strings { .. })));
        assert!(matches!(TensorBuffer::new(None, DataType::Int8, &[-1]).await, Err(Error::Shape { .. })));
        assert_eq!(TensorBuffer::new(None, DataType::Int8, &[0]).await.unwrap().byte_size(), 0);
    }

    #[tokio::test]
    async fn a_buffer_that_no_memory_has_room_for_is_an_error() {
        let refused = TensorBuffer::new(None, DataType::Int8, &[1 << 50]).await.unwrap_err();
        assert!(matches!(refused, Error::Memory { .. }));
        assert!(refused.to_string().starts_with("tensor 'buffer of INT8 [1125899906842624]': "), "{refused}");
    }

    #[tokio::test]
    async fn strings_are_as_many_as_the_shape_says() {
        let buffer = TensorBuffer::of_strings(None, &[2], &["ab", ""]).await.unwrap();
        assert_eq!(&buffer.bytes()[..], b"\x02\0\0\0ab\0\0\0\0");
        assert!(matches!(TensorBuffer::of_strings(None, &[3], &["ab"]).await, Err(Error::Strings { .. })));
    }
}
