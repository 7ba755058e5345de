//! How are tensors passed to ONNX Runtime and read from it?
//!
//! A [`Value`] is the library's handle of a tensor. A value over our memory borrows that memory, so that the compiler keeps it alive and unmoved for
//! as long as the library may access it. A value that the library made owns its memory and can become a [`Buffer`] without a copy.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use nerite_memory::{Access, Buffer, MemoryOwner, Place, Slot};
use nerite_tensor::{DataType, Shape};
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::SharedSessionInner;
use ort::{AsPointer, sys};

use crate::signature::to_sys;

/// The address of a tensor without elements. Some operators read the first element of a scale or a size without a check
/// whether there is one. They must not read what lies behind a client's empty range.
static NO_ELEMENTS: NoElements = NoElements([0; 256]);

#[repr(align(64))]
struct NoElements([u8; 256]);

/// A tensor that the library can access.
pub struct Value<'a> {
    ptr: NonNull<sys::OrtValue>,
    on_device: bool,
    memory: PhantomData<&'a ()>,
}

// SAFETY: an OrtValue has no thread affinity: it is a counted reference to a tensor, whose count is atomic and whose
// allocator locks.
unsafe impl Send for Value<'_> {}
// SAFETY: through a shared Value the tensor is only read.
unsafe impl Sync for Value<'_> {}

/// The memory that tensors of one instance may lie in, as the library names it.
pub struct Memory {
    /// This host's.
    pub host: MemoryInfo<'static>,
    device: Option<(u32, MemoryInfo<'static>)>,
}

impl Memory {
    /// This host's, and that of the device that the instance computes on.
    pub fn new(device: Option<u32>) -> Result<Memory, ort::Error> {
        let info = |on, number| MemoryInfo::new(on, number, AllocatorType::Device, MemoryType::Default);
        let on_device = |ordinal: u32| {
            let number =
                i32::try_from(ordinal).map_err(|_| ort::Error::new("a device of that number cannot be named"))?;
            Ok::<_, ort::Error>((ordinal, info(AllocationDevice::CUDA, number)?))
        };
        Ok(Memory { host: info(AllocationDevice::CPU, 0)?, device: device.map(on_device).transpose()? })
    }

    /// The device it has besides the host.
    pub fn device(&self) -> Option<u32> {
        self.device.as_ref().map(|(ordinal, _)| *ordinal)
    }

    fn of(&self, place: Place) -> Result<&MemoryInfo<'static>, ort::Error> {
        match (place, &self.device) {
            (Place::Host | Place::Pinned, _) => Ok(&self.host),
            (Place::Device(at), Some((ordinal, info))) if at == *ordinal => Ok(info),
            (Place::Device(_), _) => Err(ort::Error::new(format!("a tensor in {place:?} is out of reach"))),
        }
    }
}

impl<'a> Value<'a> {
    /// A tensor over the bytes of `buffer`, on the host or on a device. The library only reads its inputs: the caller's
    /// reference is counted for every graph input, so that no operator computes in place there.
    pub fn over(memory: &Memory, buffer: &'a Buffer, datatype: DataType, shape: &[i64]) -> Result<Self, ort::Error> {
        let info = memory.of(buffer.place())?;
        let is_empty = buffer.is_empty() && buffer.place().is_host();
        let data = if is_empty { NO_ELEMENTS.0.as_ptr() } else { buffer.as_ptr() };
        // SAFETY: `len` readable bytes that `buffer` keeps mapped for 'a, in the memory that `info` names (`of`), and that are
        // only read, as said above; or none, on this host, at an address of a static's.
        let mut value = unsafe { Value::with_data(info, data.cast_mut(), buffer.len(), datatype, shape) }?;
        value.on_device = !buffer.place().is_host();
        Ok(value)
    }

    /// A tensor over the first `size` bytes of `slot`, for the library to compute into.
    pub fn into_slot(
        memory: &Memory,
        slot: &'a mut Slot,
        size: usize,
        datatype: DataType,
        shape: &[i64],
    ) -> Result<Self, ort::Error> {
        assert!(size <= slot.len(), "{size} bytes into {slot:?}");
        let info = memory.of(slot.place())?;
        // SAFETY: `size` writable bytes (asserted), in the memory that `info` names (`of`), ours alone for 'a by the mutable
        // borrow.
        let mut value = unsafe { Value::with_data(info, slot.as_mut_ptr(), size, datatype, shape) }?;
        value.on_device = !slot.place().is_host();
        Ok(value)
    }

    /// # Safety
    /// `len` bytes at `data`, an address of the memory that `info` names, are readable for 'a, and writable if the value is
    /// used as an output.
    unsafe fn with_data(
        info: &MemoryInfo<'_>,
        data: *mut u8,
        len: usize,
        datatype: DataType,
        shape: &[i64],
    ) -> Result<Self, ort::Error> {
        let mut out = std::ptr::null_mut();
        let create = ort::api().CreateTensorWithDataAsOrtValue;
        // SAFETY: `info` is alive, `data` and `len` are as promised (the library checks `len` against shape and datatype),
        // `shape` is readable for its length, `out` is a place for one pointer.
        let status = unsafe {
            create(info.ptr(), data.cast(), len, shape.as_ptr(), shape.len(), to_sys(datatype), &raw mut out)
        };
        done(status)?;
        Value::from_made(out)
    }

    /// Whether the tensor lies on this host.
    fn is_on_host(&self) -> Result<bool, ort::Error> {
        let mut info = std::ptr::null();
        // SAFETY: the value is alive; the library returns an error if it is no tensor. What it returns lives as long as the value.
        done(unsafe { (ort::api().GetTensorMemoryInfo)(self.ptr.as_ptr(), &raw mut info) })?;
        // A number and not the enum, because a library newer than the bindings may return one that the enum does not have.
        let mut number = -1i32;
        // SAFETY: `info` lives as long as the value; the enum is `repr(i32)`, so its place is one of an i32.
        unsafe { (ort::api().MemoryInfoGetDeviceType)(info, (&raw mut number).cast()) };
        Ok(number == sys::OrtMemoryInfoDeviceType::OrtMemoryInfoDeviceType_CPU as i32)
    }

    /// Whether it is a tensor over memory of a device.
    pub fn is_on_device(&self) -> bool {
        self.on_device
    }

    /// The handle, for the library to read.
    pub fn as_ptr(&self) -> *mut sys::OrtValue {
        self.ptr.as_ptr()
    }
}

impl Value<'static> {
    /// Takes ownership of a value that the library made.
    ///
    /// Null becomes an error. Any other value must be an owned handle, as each `out` of the library's calls is.
    pub(crate) fn from_made(ptr: *mut sys::OrtValue) -> Result<Value<'static>, ort::Error> {
        let ptr = NonNull::new(ptr).ok_or_else(|| ort::Error::new("the library made no tensor"))?;
        Ok(Value { ptr, on_device: false, memory: PhantomData })
    }

    /// Datatype and shape. The datatype is `None` if no response can have it. A value that is no tensor is an error.
    pub fn describe(&self) -> Result<(Option<DataType>, Shape), ort::Error> {
        let mut info = std::ptr::null_mut();
        // SAFETY: the value is alive; the library returns an error if it is no tensor.
        done(unsafe { (ort::api().GetTensorTypeAndShape)(self.ptr.as_ptr(), &raw mut info) })?;
        let info = TypeAndShape(info);
        // A number and not the enum, because a library newer than the bindings may return one that the enum does not have.
        let mut number = 0i32;
        // SAFETY: `info` is alive; the enum is `repr(i32)`, so its place is one of an i32.
        done(unsafe { (ort::api().GetTensorElementType)(info.0, (&raw mut number).cast()) })?;
        let mut rank = 0;
        // SAFETY: `info` is alive, `rank` is a place for one count.
        done(unsafe { (ort::api().GetDimensionsCount)(info.0, &raw mut rank) })?;
        let mut shape = Shape::from_elem(0, rank);
        // SAFETY: `info` is alive, `shape` has room for the `rank` dimensions that are requested.
        done(unsafe { (ort::api().GetDimensions)(info.0, shape.as_mut_ptr(), rank) })?;
        let datatype = DataType::ALL.into_iter().find(|datatype| to_sys(*datatype) as i32 == number);
        Ok((datatype, shape))
    }

    /// The `len` bytes of a tensor of numbers, where the library left them on this host. They live as long as the Buffer, and
    /// `session` with them.
    pub fn into_buffer(self, len: usize, session: Arc<SharedSessionInner>) -> Result<Buffer, ort::Error> {
        if !self.is_on_host()? {
            return Err(ort::Error::new("the library left a tensor on a device that was asked for on the host"));
        }
        let mut data = std::ptr::null_mut();
        // SAFETY: the value is alive; the library returns an error if it is no tensor of numbers.
        done(unsafe { (ort::api().GetTensorMutableData)(self.ptr.as_ptr(), &raw mut data) })?;
        let Some(data) = NonNull::new(data.cast::<u8>()).filter(|_| len > 0) else { return Ok(Buffer::empty()) };
        let keep: Arc<dyn MemoryOwner> = Arc::new(Made { _value: self, bytes: len, _session: session });
        // SAFETY: the tensor is on this host (checked above) and has `len` bytes (the caller computed them from its own shape and datatype), all
        // computed by the run that made it; `keep` owns the tensor; nobody else has the handle, so nobody writes.
        Ok(unsafe { Buffer::from_raw(data, len, Place::Host, Access::Private, keep) })
    }
}

impl Drop for Value<'_> {
    fn drop(&mut self) {
        // SAFETY: we own the handle and release it once.
        unsafe { (ort::api().ReleaseValue)(self.ptr.as_ptr()) };
    }
}

/// A tensor of the library's, and the session whose allocator it came from. Fields drop in this order.
struct Made {
    _value: Value<'static>,
    bytes: usize,
    _session: Arc<SharedSessionInner>,
}

impl MemoryOwner for Made {
    fn held_bytes(&self) -> Option<usize> {
        Some(self.bytes)
    }
}

struct TypeAndShape(*mut sys::OrtTensorTypeAndShapeInfo);

impl Drop for TypeAndShape {
    fn drop(&mut self) {
        // SAFETY: made by the library for us and released once.
        unsafe { (ort::api().ReleaseTensorTypeAndShapeInfo)(self.0) };
    }
}

/// A status as a result.
pub fn done(status: sys::OrtStatusPtr) -> Result<(), ort::Error> {
    // SAFETY: every caller hands over the status that a call of the library has just returned.
    unsafe { ort::Error::result_from_status(status) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{OnnxRuntime, find_library};

    struct Nothing;
    impl MemoryOwner for Nothing {}

    #[test]
    fn the_library_is_told_where_a_tensor_lies() {
        let Some(library) = find_library(None) else { return };
        OnnxRuntime::open(&library).unwrap();
        let memory = Memory::new(Some(1)).unwrap();
        for (place, expected) in [
            (Place::Host, Some(true)),
            (Place::Pinned, Some(true)),
            (Place::Device(1), Some(false)),
            (Place::Device(0), None),
        ] {
            let (mut bytes, keep) = ([0u8; 8], Arc::new(Nothing));
            let at = NonNull::new(bytes.as_mut_ptr()).unwrap();
            // SAFETY: eight bytes that outlive the buffer. If the buffer says that they lie elsewhere, nobody reads them.
            let buffer = unsafe { Buffer::from_raw(at, 8, place, Access::Shared, keep) };
            let value = Value::over(&memory, &buffer, DataType::Int64, &[1]);
            let found = value.ok().map(|value| value.is_on_host().unwrap());
            assert_eq!(found, expected, "{place:?}");
        }
    }
}
