//! What does a request contain, and how are its tensors read?

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{null, null_mut};

use crate::context::text;
use crate::datatype::DataType;
use crate::error::Error;
use crate::interface as raw;
use crate::text::{from_c, to_c};

/// The most dimensions of a tensor.
const DIMS_MAX: u32 = 1024;

/// A request of a batch. The backend owns it until its answer is sent.
pub struct Request {
    raw: *mut raw::Request,
}

impl Request {
    /// # Safety
    /// `raw` is a request that the server gave to this backend, and was not released, as long as this lives.
    pub(crate) unsafe fn new(raw: *mut raw::Request) -> Request {
        Request { raw }
    }

    pub(crate) fn raw(&self) -> *mut raw::Request {
        self.raw
    }

    /// The client's id of the request. Empty if it has none.
    pub fn id(&self) -> Result<String, Error> {
        // SAFETY: the request is good by the promise of `new`, the place is the one that `text` gives.
        text(|place| unsafe { raw::TRITONBACKEND_RequestId(self.raw, place) })
    }

    /// Whether its client does not need the answer any more.
    pub fn is_cancelled(&self) -> bool {
        let mut is_cancelled = false;
        // SAFETY: as in `id`, and the place outlives the call.
        let result = unsafe { raw::TRITONBACKEND_RequestIsCancelled(self.raw, &raw mut is_cancelled) };
        result.check().is_ok() && is_cancelled
    }

    /// All its inputs.
    pub fn inputs(&self) -> Result<Vec<Input<'_>>, Error> {
        let mut count = 0;
        // SAFETY: as in `id`, and `count` outlives the call.
        unsafe { raw::TRITONBACKEND_RequestInputCount(self.raw, &raw mut count) }.check()?;
        let one = |index| {
            let mut input = null_mut();
            // SAFETY: as above.
            unsafe { raw::TRITONBACKEND_RequestInputByIndex(self.raw, index, &raw mut input) }.check()?;
            // SAFETY: the server gave this input of the request, which lives as long as `self`.
            unsafe { Input::new(input) }
        };
        (0..count).map(one).collect()
    }

    /// The input of that name.
    pub fn input(&self, name: &str) -> Result<Input<'_>, Error> {
        let (name, mut input) = (to_c(name), null_mut());
        // SAFETY: as in `id`; the name ends with a zero and lives during the call.
        unsafe { raw::TRITONBACKEND_RequestInput(self.raw, name.as_ptr(), &raw mut input) }.check()?;
        // SAFETY: the server gave this input of the request, which lives as long as `self`.
        unsafe { Input::new(input) }
    }

    /// The names of the outputs that the client requested.
    pub fn wanted(&self) -> Result<Vec<String>, Error> {
        let mut count = 0;
        // SAFETY: as in `id`, and `count` outlives the call.
        unsafe { raw::TRITONBACKEND_RequestOutputCount(self.raw, &raw mut count) }.check()?;
        // SAFETY: as in `id`.
        let one = |index| text(|place| unsafe { raw::TRITONBACKEND_RequestOutputName(self.raw, index, place) });
        (0..count).map(one).collect()
    }

    /// Whether the client requested this output.
    pub fn wants(&self, output: &str) -> Result<bool, Error> {
        Ok(self.wanted()?.iter().any(|name| name == output))
    }
}

/// An input of a request. The client may write to its memory at the same time, so the bytes can only be copied out.
pub struct Input<'r> {
    raw: *mut raw::Input,
    name: String,
    datatype: DataType,
    shape: Vec<i64>,
    bytes: usize,
    parts: u32,
    request: PhantomData<&'r Request>,
}

impl Input<'_> {
    /// # Safety
    /// `raw` is an input of a request that lives as long as this.
    unsafe fn new(raw: *mut raw::Input) -> Result<Self, Error> {
        let (mut name, mut shape, mut datatype) = (null(), null(), 0);
        let (mut dims, mut bytes, mut parts) = (0, 0, 0);
        // SAFETY: the input is good by the caller's promise, and all places outlive the call.
        let result = unsafe {
            raw::TRITONBACKEND_InputProperties(
                raw,
                &raw mut name,
                &raw mut datatype,
                &raw mut shape,
                &raw mut dims,
                &raw mut bytes,
                &raw mut parts,
            )
        };
        result.check()?;
        // SAFETY: a text of the server, which lives as long as the input.
        let name = unsafe { from_c(name) };
        let datatype = DataType::of_number(datatype);
        let datatype = datatype.ok_or_else(|| Error::invalid(format!("input '{name}' has no valid datatype")))?;
        if dims > DIMS_MAX {
            return Err(Error::invalid(format!("input '{name}' has {dims} dimensions, at most {DIMS_MAX} are taken")));
        }
        // SAFETY: by the interface `dims` numbers lie there, which are the server's own and do not change.
        let shape = (0..dims as usize).map(|index| unsafe { shape.wrapping_add(index).read() }).collect();
        let bytes = usize::try_from(bytes).map_err(|_| Error::invalid(format!("input '{name}' has {bytes} bytes")))?;
        Ok(Input { raw, name, datatype, shape, bytes, parts, request: PhantomData })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its datatype.
    pub fn datatype(&self) -> DataType {
        self.datatype
    }

    /// Its shape, the number of rows included.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A copy of its bytes.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let refused = |_| Error::unavailable(format!("no memory for {} bytes of input '{}'", self.bytes, self.name));
        bytes.try_reserve_exact(self.bytes).map_err(refused)?;
        bytes.resize(self.bytes, 0);
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// Copies its bytes to a buffer of the same size.
    pub fn read_into(&self, to: &mut [u8]) -> Result<(), Error> {
        if to.len() != self.bytes {
            return Err(Error::internal(format!(
                "a place of {} bytes is given for the {} bytes of input '{}'",
                to.len(),
                self.bytes,
                self.name
            )));
        }
        self.each_part(|at, from, bytes| {
            let to = to.get_mut(at..at + bytes).ok_or_else(|| self.changed())?;
            // SAFETY: the server promised `bytes` bytes at `from` until the request is released, and `to` has as many, which are
            // ours alone.
            unsafe { copy(from, to.as_mut_ptr(), bytes) };
            Ok(())
        })
    }

    /// Calls `copy` with each part: its offset in the tensor, its address, and its length. All parts together have the bytes of the tensor.
    pub(crate) fn each_part(
        &self,
        mut copy: impl FnMut(usize, *const u8, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut at = 0;
        for index in 0..self.parts {
            let (mut base, mut bytes): (*const c_void, u64) = (null(), 0);
            let (mut memory, mut memory_id) = (raw::CPU, 0);
            // SAFETY: the input is good by the promise of `new`, and all places outlive the call.
            let result = unsafe {
                raw::TRITONBACKEND_InputBuffer(
                    self.raw,
                    index,
                    &raw mut base,
                    &raw mut bytes,
                    &raw mut memory,
                    &raw mut memory_id,
                )
            };
            result.check()?;
            if memory != raw::CPU && memory != raw::CPU_PINNED {
                return Err(Error::unsupported(format!("input '{}' lies in the memory of a GPU", self.name)));
            }
            let bytes = usize::try_from(bytes).map_err(|_| self.changed())?;
            if bytes > self.bytes - at || (base.is_null() && bytes > 0) {
                return Err(self.changed());
            }
            if bytes > 0 {
                copy(at, base.cast(), bytes)?;
            }
            at += bytes;
        }
        if at == self.bytes { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> Error {
        Error::internal(format!("the parts of input '{}' do not have {} bytes together", self.name, self.bytes))
    }
}

/// Copies bytes. A client may write to one side at the same time. The ranges may overlap, because the client may have named one place twice.
///
/// # Safety
/// `from` can be read and `to` written for `bytes` bytes.
#[expect(clippy::disallowed_methods, reason = "a backend is no part of the server, which counts its own copies")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller promised both places. It is `memmove` of the C library: nothing is assumed of what others write meanwhile.
    unsafe { std::ptr::copy(from, to, bytes) };
}
