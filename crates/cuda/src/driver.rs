//! Is there a driver, and which devices does it have?

use std::ffi::{CStr, c_int};
use std::path::Path;
use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;

use crate::calls::{Calls, Handle, name};
use crate::error::{Absent, CudaError};
use crate::lock_budget::Budget;

/// The name under which NVIDIA installs its driver.
pub const LIBRARY: &str = "libcuda.so.1";

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`.
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;

/// A driver that was loaded and has at least one device. Everything that is made from it keeps it.
pub struct Driver {
    pub(crate) calls: Calls,
    pub(crate) devices: Vec<DeviceState>,
    pub(crate) budget: Arc<Budget>,
}

/// The fixed properties of a device.
pub(crate) struct Facts {
    /// The driver's own number, which calls take.
    pub(crate) raw: c_int,
    pub(crate) ordinal: u32,
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) total_bytes: u64,
    pub(crate) compute_capability: (u32, u32),
}

/// The properties of a device, and what this process has on it.
pub(crate) struct DeviceState {
    pub(crate) facts: Facts,
    /// Its primary context, made when first needed: making one takes long and costs hundreds of MiB on the device.
    pub(crate) context: Mutex<Option<Context>>,
    /// Streams that wait for the next copy.
    pub(crate) streams: Mutex<Vec<Stream>>,
}

/// `CUcontext`.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub(crate) Handle);
/// `CUstream`.
pub(crate) struct Stream(pub(crate) Handle);

// SAFETY: the driver lets any thread push a context; the handle itself is only a name.
unsafe impl Send for Context {}
// SAFETY: the driver lets any thread use a stream; ours are used by one thread at a time.
unsafe impl Send for Stream {}

impl Driver {
    /// Loads the driver: the library at `library`, else [`LIBRARY`]. Starts it and looks at its devices; makes no context.
    pub fn open(library: Option<&Path>) -> Result<Arc<Driver>, Absent> {
        let calls = Calls::load(library.unwrap_or(Path::new(LIBRARY)))?;
        // SAFETY: takes its flags, which must be 0, and no pointer.
        calls.check(name::init, unsafe { (calls.init)(0) })?;
        let mut count: c_int = 0;
        // SAFETY: `count` is a place for one number.
        calls.check(name::device_count, unsafe { (calls.device_count)(&raw mut count) })?;
        let devices = (0..count).map(|ordinal| DeviceState::read(&calls, ordinal)).collect::<Result<Vec<_>, _>>()?;
        if devices.is_empty() {
            return Err(Absent::NoDevice);
        }
        Ok(Arc::new(Driver { calls, devices, budget: Arc::default() }))
    }
}

impl DeviceState {
    fn read(calls: &Calls, ordinal: c_int) -> Result<DeviceState, CudaError> {
        let (mut raw, mut uuid, mut total_bytes) = (0, [0; 16], 0);
        // SAFETY: `raw` is a place for one number.
        calls.check(name::device, unsafe { (calls.device)(&raw mut raw, ordinal) })?;
        // SAFETY: `uuid` is a place for 16 bytes, and `raw` a device that the driver named.
        calls.check(name::device_uuid, unsafe { (calls.device_uuid)(&raw mut uuid, raw) })?;
        // SAFETY: `total_bytes` is a place for one number, and `raw` a device that the driver named.
        calls.check(name::device_bytes, unsafe { (calls.device_bytes)(&raw mut total_bytes, raw) })?;
        let capability = |attribute| {
            let mut number: c_int = 0;
            // SAFETY: `number` is a place for one number, and `raw` a device that the driver named.
            let code = unsafe { (calls.device_attribute)(&raw mut number, attribute, raw) };
            calls.check(name::device_attribute, code).map(|()| u32::try_from(number).unwrap_or(0))
        };
        let compute_capability = (capability(COMPUTE_CAPABILITY_MAJOR)?, capability(COMPUTE_CAPABILITY_MINOR)?);
        let mut text = [0u8; 256];
        let room = text.len() as c_int - 1;
        // SAFETY: `text` has `room` bytes and one more, and `raw` is a device that the driver named.
        calls.check(name::device_name, unsafe { (calls.device_name)(text.as_mut_ptr().cast(), room, raw) })?;
        let title = CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned());
        let facts = Facts {
            raw,
            ordinal: ordinal as u32,
            name: title.unwrap_or_default(),
            uuid,
            total_bytes: total_bytes as u64,
            compute_capability,
        };
        Ok(DeviceState { facts, context: Mutex::new(None), streams: Mutex::default() })
    }
}

impl Drop for Driver {
    /// Everything that was made from the driver holds a reference to it, so only the contexts and their idle streams are left.
    fn drop(&mut self) {
        for slot in &mut self.devices {
            let context = slot.context.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            let streams = std::mem::take(slot.streams.get_mut().unwrap_or_else(PoisonError::into_inner));
            let Some(Context(context)) = context else { continue };
            let calls = &self.calls;
            // SAFETY: the context is retained still; popped below.
            if unsafe { (calls.context_push)(context) } == 0 {
                for Stream(stream) in streams {
                    // SAFETY: an idle stream of this context, which nobody else has.
                    let _ = unsafe { (calls.stream_destroy)(stream) };
                }
                // SAFETY: pops what was pushed above. Null means that the popped context is not returned.
                let _ = unsafe { (calls.context_pop)(std::ptr::null_mut()) };
            }
            // SAFETY: releases the one retain of `Device::enter`. A failure is ignored, because nothing could be done about it.
            let _ = unsafe { (calls.context_release)(slot.facts.raw) };
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.devices.iter().map(|slot| &*slot.facts.name).collect();
        write!(f, "Driver({names:?})")
    }
}
