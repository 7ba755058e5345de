//! How are BYTES elements converted to strings of ONNX Runtime and back?
//!
//! The library's strings have a length, so an element keeps all its bytes, including zeros. The library's older calls for C strings, which end at the
//! first zero, are not used.

use nerite_memory::{Buffer, MemoryReservation, NoMemory, Reason, Slot, count_copied};
use nerite_tensor::strings::{self, StringsError};
use nerite_tensor::{Tensor, element_count};
use ort::{AsPointer, memory::Allocator};

use crate::signature::to_sys;
use crate::value::{Value, done};

/// The memory that a string of the library takes beside its bytes. The bytes of a short string lie within it.
const STRING_BYTES: usize = 64;
/// No memory is reserved for fewer bytes.
const RESERVED_BYTES_MIN: usize = 1 << 20;

/// Why strings could not be passed to the library, or read from it.
pub enum StringsFault {
    /// The client's bytes are not what its shape says.
    Client(String),
    /// The library's error.
    Library(ort::Error),
    /// There is no memory for them.
    NoMemory(NoMemory),
}

impl From<ort::Error> for StringsFault {
    fn from(error: ort::Error) -> StringsFault {
        StringsFault::Library(error)
    }
}

impl From<NoMemory> for StringsFault {
    fn from(refused: NoMemory) -> StringsFault {
        StringsFault::NoMemory(refused)
    }
}

/// A tensor of strings with the elements of a BYTES tensor, in `shape`.
#[expect(clippy::disallowed_methods, reason = "the string was just made, and nobody else has it")]
pub fn to_value(tensor: &Tensor, shape: &[i64]) -> Result<Value<'static>, StringsFault> {
    let of_client = |text: String| StringsFault::Client(format!("input '{}': {text}", tensor.name));
    let expected = element_count(shape).map_err(|e| of_client(e.to_string()))?;
    // Lengths may lie in memory that the client still writes. They are read once here, and only these extents are used.
    let extents = strings::extents(&tensor.data, expected).map_err(|e| match e {
        StringsError::NoMemory(refused) => StringsFault::NoMemory(refused),
        other => of_client(other.to_string()),
    })?;
    let _reservation = reserve(extents.len().saturating_mul(STRING_BYTES).saturating_add(tensor.data.len()))?;
    let allocator = Allocator::default();
    let mut out = std::ptr::null_mut();
    let create = ort::api().CreateTensorAsOrtValue;
    // SAFETY: the default allocator lives as long as the library, `shape` is readable for its length, `out` is a place for
    // one pointer.
    let status = unsafe {
        create(allocator.ptr().cast_mut(), shape.as_ptr(), shape.len(), to_sys(tensor.datatype), &raw mut out)
    };
    done(status)?;
    let value = Value::from_made(out)?;
    for (index, extent) in extents.into_iter().enumerate() {
        let mut content = std::ptr::null_mut();
        let resize = ort::api().GetResizedStringTensorElementBuffer;
        // SAFETY: the value is a tensor of `expected` strings and `index` is below that.
        done(unsafe { resize(value.as_ptr(), index, extent.len(), &raw mut content) })?;
        if extent.is_empty() || content.is_null() {
            continue;
        }
        // SAFETY: the call has just made the string `len` initialised bytes long and returned the address of its first byte; nobody else has the
        // value, so nobody moves the string before the next call.
        let content = unsafe { std::slice::from_raw_parts_mut(content.cast::<u8>(), extent.len()) };
        tensor.data.slice(extent).copy_to(content, Reason::Strings);
    }
    Ok(value)
}

/// The bytes of all strings of a tensor of `count` of them, and where each starts.
pub fn from_value(value: &Value<'static>, count: usize) -> Result<(Buffer, Vec<usize>), StringsFault> {
    let mut len = 0;
    // SAFETY: the value is alive; the library returns an error if it is no tensor of strings.
    done(unsafe { (ort::api().GetStringTensorDataLength)(value.as_ptr(), &raw mut len) })?;
    let _reservation = reserve(count.saturating_mul(size_of::<usize>()))?;
    let (mut bytes, mut starts) = (Slot::try_heap(len)?, vec![0usize; count]);
    let content = ort::api().GetStringTensorContent;
    // SAFETY: slot and vector are writable for the lengths given; the library checks them against what the tensor has.
    done(unsafe { content(value.as_ptr(), bytes.as_mut_ptr().cast(), len, starts.as_mut_ptr(), count) })?;
    count_copied(Reason::Strings, len);
    Ok((bytes.filled().into_buffer(), starts))
}

fn reserve(bytes: usize) -> Result<MemoryReservation, NoMemory> {
    if bytes < RESERVED_BYTES_MIN { Ok(MemoryReservation::none()) } else { MemoryReservation::take(bytes) }
}

/// The elements that `from_value` found.
pub fn elements<'a>(bytes: &'a [u8], starts: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    starts.iter().zip(ends).map(|(start, end)| bytes.get(*start..end).unwrap_or_default())
}
