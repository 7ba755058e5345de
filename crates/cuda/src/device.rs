//! What is one device, and how full is it?

use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use crate::calls::{Calls, name};
use crate::driver::{DeviceState, Driver};
use crate::error::CudaError;

/// One device of the driver's. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    driver: Arc<Driver>,
    index: usize,
}

impl Device {
    pub(crate) fn new(driver: Arc<Driver>, index: usize) -> Device {
        Device { driver, index }
    }

    /// Its number among the devices that this process may see.
    pub fn ordinal(&self) -> u32 {
        self.slot().facts.ordinal
    }

    /// Its maker's name for it.
    pub fn name(&self) -> &str {
        &self.slot().facts.name
    }

    /// Its identity wherever it is seen, as `GPU-xxxxxxxx-…`.
    pub fn uuid(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let uuid = &self.slot().facts.uuid;
        let parts = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex);
        format!("GPU-{}", parts.join("-"))
    }

    /// Where its card is on the PCI bus, as `0000:01:00.0`. The instances of a card that is divided have the same place.
    pub fn pci_bus_id(&self) -> Result<CString, CudaError> {
        let (calls, raw) = (self.calls(), self.slot().facts.raw);
        let mut text = [0u8; 32];
        let room = text.len() as c_int - 1;
        // SAFETY: `text` has `room` bytes and one more, and `raw` is a device that the driver named.
        calls.check(name::device_bus_id, unsafe { (calls.device_bus_id)(text.as_mut_ptr().cast(), room, raw) })?;
        Ok(CStr::from_bytes_until_nul(&text).map(CStr::to_owned).unwrap_or_default())
    }

    /// Bytes of memory it has.
    pub fn total_bytes(&self) -> u64 {
        self.slot().facts.total_bytes
    }

    /// What its processors can do, as NVIDIA numbers it: major and minor.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.slot().facts.compute_capability
    }

    /// Bytes of memory that are free now.
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        let current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are places for one number; the context is current.
        let code = unsafe { (current.calls().memory_info)(&raw mut free, &raw mut total) };
        current.calls().check(name::memory_info, code)?;
        Ok(free as u64)
    }

    /// The driver it belongs to.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(crate) fn slot(&self) -> &DeviceState {
        &self.driver.devices[self.index]
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.driver.calls
    }
}

impl Driver {
    /// All devices, by ordinal.
    pub fn devices(self: &Arc<Self>) -> Vec<Device> {
        (0..self.devices.len()).map(|index| Device::new(Arc::clone(self), index)).collect()
    }

    /// The device of this ordinal.
    pub fn device(self: &Arc<Self>, ordinal: u32) -> Option<Device> {
        let index = self.devices.iter().position(|slot| slot.facts.ordinal == ordinal)?;
        Some(Device::new(Arc::clone(self), index))
    }

    /// The device whose context is used for calls about the host's memory. All devices share that memory then.
    pub(crate) fn any(self: &Arc<Self>) -> Device {
        Device::new(Arc::clone(self), 0)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}: {})", self.ordinal(), self.name())
    }
}
