//! What does a model answer?

use std::borrow::Cow;

use nerite_memory::{Access, Buffer, Cells, Extent};
use nerite_request::{Parameters, RegionRef};
use nerite_tensor::{DataType, Shape, element_count, strings};

use crate::{Element, Error};

/// The answer to one inference request.
#[derive(Clone, Debug)]
pub struct Response {
    /// The model that answered.
    pub model: String,
    /// Its version.
    pub version: String,
    /// The request's own id.
    pub id: String,
    /// Parameters that the model or the server added.
    pub parameters: Parameters,
    /// The outputs, in the order in which the model made them.
    pub outputs: Vec<Output>,
}

/// One output tensor.
#[derive(Clone, Debug)]
pub struct Output {
    /// The name of the output.
    pub name: String,
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions, outermost first.
    pub shape: Shape,
    /// Its bytes. `None` if it was placed in a region.
    pub(crate) data: Option<Buffer>,
    /// The part of a lease in which the server placed the bytes, until the client has mapped the lease.
    pub(crate) leased_at: Option<RegionRef>,
}

impl Response {
    /// The output of this name.
    pub fn output(&self, name: &str) -> Result<&Output, Error> {
        self.outputs.iter().find(|output| output.name == name).ok_or_else(|| {
            let have: Vec<&str> = self.outputs.iter().map(|output| output.name.as_str()).collect();
            Error::NoOutput { name: name.to_owned(), have: have.join(", ") }
        })
    }
}

impl Output {
    /// Whether the tensor lies in a region, and not in the response.
    pub fn is_placed(&self) -> bool {
        self.data.is_none()
    }

    /// The elements as numbers, without a copy. BOOL reads as `u8`, FP16 and BF16 as `u16`.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client, request: nerite_client::Request)
    /// # -> Result<(), nerite_client::Error> {
    /// let response = client.infer(&request).await?;
    /// let sums: &[i32] = response.output("OUTPUT0")?.as_slice::<i32>()?;
    /// # Ok(()) }
    /// ```
    ///
    /// An output in a lease is an error, because the server may write that memory too. [`Output::cells`] and [`Output::to_vec`] read such outputs.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Error> {
        let data = self.holding::<T>()?;
        if data.access() == Access::Shared {
            let name = &self.name;
            return Err(Error::Answer(format!("output '{name}' lies in shared memory: use `cells` or `to_vec`")));
        }
        data.numbers::<T>().ok_or_else(|| self.uneven())
    }

    /// The elements as numbers, without a copy, even in shared memory.
    pub fn cells<T: Element>(&self) -> Result<Cells<'_, T>, Error> {
        self.holding::<T>()?.cells::<T>().ok_or_else(|| self.uneven())
    }

    /// A copy of the elements as numbers.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        Ok(self.cells::<T>()?.to_vec())
    }

    /// The raw bytes: little-endian, row-major. Copied if they lie in shared memory.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, Error> {
        let data = self.here()?;
        if let Some(bytes) = data.numbers::<u8>() {
            return Ok(Cow::Borrowed(bytes));
        }
        Ok(Cow::Owned(data.cells::<u8>().map(|bytes| bytes.to_vec()).unwrap_or_default()))
    }

    /// The elements of a BYTES tensor. Copied if they lie in shared memory.
    pub fn strings(&self) -> Result<Vec<Cow<'_, [u8]>>, Error> {
        if self.datatype != DataType::Bytes {
            let name = self.name.clone();
            return Err(Error::Datatype { name, held: self.datatype, requested: DataType::Bytes });
        }
        let fault = |reason: String| Error::Strings { name: self.name.clone(), reason };
        let elements = element_count(&self.shape).map_err(|reason| fault(reason.to_string()))?;
        let extents = |data: &Buffer| strings::extents(data, elements).map_err(|reason| fault(reason.to_string()));
        match self.bytes()? {
            Cow::Borrowed(bytes) => {
                let found = extents(self.here()?)?;
                let part = |extent: &Extent| bytes.get(extent.offset()..extent.end()).map(Cow::Borrowed);
                Ok(found.iter().filter_map(part).collect())
            }
            // The lengths are read from the copy, which nobody changes.
            Cow::Owned(bytes) => {
                let data = Buffer::from(bytes);
                let bytes = data.numbers::<u8>().unwrap_or_default();
                let found = extents(&data)?;
                let part = |extent: &Extent| bytes.get(extent.offset()..extent.end()).map(|part| part.to_vec().into());
                Ok(found.iter().filter_map(part).collect())
            }
        }
    }

    /// The bytes, if the elements can be read as `T`.
    fn holding<T: Element>(&self) -> Result<&Buffer, Error> {
        if !T::reads(self.datatype) {
            let (name, held, requested) = (self.name.clone(), self.datatype, T::DATATYPE);
            return Err(Error::Datatype { name, held, requested });
        }
        self.here()
    }

    /// The bytes were aligned when they were received, so only their number can be wrong.
    fn uneven(&self) -> Error {
        Error::Answer(format!("output '{}' has a size that is no multiple of its elements", self.name))
    }

    fn here(&self) -> Result<&Buffer, Error> {
        self.data.as_ref().ok_or_else(|| Error::InSharedMemory { name: self.name.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(datatype: DataType, shape: &[i64], data: &[u8]) -> Output {
        let data = Some(Buffer::from(data.to_vec()).aligned(8));
        Output { name: "OUT".into(), datatype, shape: Shape::from_slice(shape), data, leased_at: None }
    }

    #[test]
    fn elements_are_read_as_what_they_are() {
        let ints = output(DataType::Int32, &[2], &[1, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(ints.as_slice::<i32>().expect("INT32"), [1, -1]);
        assert!(matches!(ints.as_slice::<f32>(), Err(Error::Datatype { .. })));
        assert_eq!(output(DataType::Bool, &[2], &[1, 0]).as_slice::<u8>().expect("BOOL"), [1, 0]);
        let text = output(DataType::Bytes, &[2], b"\x02\0\0\0ab\0\0\0\0");
        assert_eq!(text.strings().expect("two"), [&b"ab"[..], b""]);
    }

    #[test]
    fn a_missing_output_is_distinguished_from_one_that_lies_elsewhere() {
        let mut placed = output(DataType::Int8, &[1], &[1]);
        placed.data = None;
        let outputs = vec![placed];
        let (model, version, id) = ("m".into(), "1".into(), String::new());
        let response = Response { model, version, id, parameters: Parameters::new(), outputs };
        assert!(matches!(response.output("OUT").and_then(Output::bytes), Err(Error::InSharedMemory { .. })));
        let missing = response.output("PUT").expect_err("no such output").to_string();
        assert_eq!(missing, "no output 'PUT' in the answer, which has [OUT]");
    }
}
