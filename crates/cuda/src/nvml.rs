//! How busy are the GPUs of this host, and how much power do they draw?
//!
//! NVML is NVIDIA's management library, a part of the driver. It is opened at run time, as CUDA is. It makes no context on a device.

mod calls;

use std::ffi::{CStr, c_uint};
use std::path::Path;
use std::sync::Arc;

use self::calls::{Calls, Handle, MEMORY_V2_VERSION, Memory, MemoryV2, Utilization, name};

pub use self::calls::{NvmlAbsent, NvmlError};

/// The name under which NVIDIA installs NVML.
pub const NVML_LIBRARY: &str = "libnvidia-ml.so.1";

/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
const UUID_BYTES: usize = 96;

/// NVML, loaded and started.
pub struct Nvml {
    calls: Calls,
}

/// A GPU as NVML knows it: the whole card, even if it is divided into instances.
pub struct NvmlDevice {
    nvml: Arc<Nvml>,
    handle: Handle,
    uuid: String,
}

/// The memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// All bytes.
    pub total: u64,
    /// Bytes that processes use. The driver's own memory is not included if the driver reports it separately (510 and newer).
    pub used: u64,
}

impl Nvml {
    /// Loads the library at `library`, else [`NVML_LIBRARY`], and starts it. Takes seconds if no other process uses the driver.
    pub fn open(library: Option<&Path>) -> Result<Arc<Nvml>, NvmlAbsent> {
        let calls = Calls::load(library.unwrap_or(Path::new(NVML_LIBRARY)))?;
        // SAFETY: it has no parameters, and may be called any number of times.
        calls.check(name::init, unsafe { (calls.init)() })?;
        Ok(Arc::new(Nvml { calls }))
    }

    /// The GPU at this place of the PCI bus, as [`Device::pci_bus_id`](crate::Device::pci_bus_id) gives it.
    pub fn device(self: &Arc<Self>, pci_bus_id: &CStr) -> Result<NvmlDevice, NvmlError> {
        let calls = &self.calls;
        let mut handle = Handle::none();
        // SAFETY: `pci_bus_id` is a string with its end, and `handle` is a place for one handle.
        calls.check(name::device, unsafe { (calls.device)(pci_bus_id.as_ptr(), &raw mut handle) })?;
        let mut text = [0u8; UUID_BYTES];
        // SAFETY: `text` has as many bytes as are named, and NVML gave the handle.
        let code = unsafe { (calls.uuid)(handle, text.as_mut_ptr().cast(), UUID_BYTES as c_uint) };
        calls.check(name::uuid, code)?;
        let uuid = CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned());
        Ok(NvmlDevice { nvml: Arc::clone(self), handle, uuid: uuid.unwrap_or_default() })
    }
}

impl NvmlDevice {
    /// Its identity wherever it is seen, as `GPU-xxxxxxxx-…`.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// The share of the last moments in which its processors worked, in percent.
    pub fn utilization_percent(&self) -> Result<u32, NvmlError> {
        let (calls, mut found) = (&self.nvml.calls, Utilization::default());
        // SAFETY: NVML gave the handle, and `found` is a place for one such struct.
        calls.check(name::utilization, unsafe { (calls.utilization)(self.handle, &raw mut found) })?;
        Ok(found.gpu)
    }

    /// Its memory.
    pub fn memory(&self) -> Result<GpuMemory, NvmlError> {
        let calls = &self.nvml.calls;
        if let Some(memory_info) = calls.memory_v2 {
            let mut found = MemoryV2 { version: MEMORY_V2_VERSION, ..MemoryV2::default() };
            // SAFETY: NVML gave the handle, and `found` is a place for one struct of the version that it names.
            calls.check(name::MEMORY_V2, unsafe { memory_info(self.handle, &raw mut found) })?;
            return Ok(GpuMemory { total: found.total, used: found.used });
        }
        let mut found = Memory::default();
        // SAFETY: NVML gave the handle, and `found` is a place for one such struct.
        calls.check(name::memory, unsafe { (calls.memory)(self.handle, &raw mut found) })?;
        Ok(GpuMemory { total: found.total, used: found.used })
    }

    /// The power that it draws, in milliwatts.
    pub fn power_usage_mw(&self) -> Result<u32, NvmlError> {
        let (calls, mut found) = (&self.nvml.calls, 0);
        // SAFETY: NVML gave the handle, and `found` is a place for one number.
        calls.check(name::power_usage, unsafe { (calls.power_usage)(self.handle, &raw mut found) })?;
        Ok(found)
    }

    /// The power that it may draw, in milliwatts.
    pub fn power_limit_mw(&self) -> Result<u32, NvmlError> {
        let (calls, mut found) = (&self.nvml.calls, 0);
        // SAFETY: NVML gave the handle, and `found` is a place for one number.
        calls.check(name::power_limit, unsafe { (calls.power_limit)(self.handle, &raw mut found) })?;
        Ok(found)
    }

    /// The energy that it used since its driver was loaded, in millijoules. Volta and newer have it.
    pub fn energy_mj(&self) -> Result<u64, NvmlError> {
        let (calls, mut found) = (&self.nvml.calls, 0);
        // SAFETY: NVML gave the handle, and `found` is a place for one number.
        calls.check(name::energy, unsafe { (calls.energy)(self.handle, &raw mut found) })?;
        Ok(found)
    }
}

impl std::fmt::Debug for Nvml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nvml")
    }
}

impl std::fmt::Debug for NvmlDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NvmlDevice({})", self.uuid)
    }
}
