//! How is device memory allocated, and how are bytes copied to and from it?

use std::ptr::NonNull;
use std::sync::Arc;

/// Copies bytes between this host and the memory of one device. The owner of such memory ([`crate::MemoryOwner`]) provides the copier. So a Buffer can be read
/// without a registry of devices.
pub trait DeviceCopier: Send + Sync {
    /// Copies `len` bytes from the device to this host. The copy is complete when this returns. The error says why it failed.
    ///
    /// # Safety
    /// `from` has `len` bytes of this copier's device memory, alive; `to` is writable on this host for `len` bytes.
    unsafe fn to_host(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;

    /// Copies `len` bytes from this host to the device. The copy is complete when this returns.
    ///
    /// # Safety
    /// `from` is readable on this host for `len` bytes; `to` has `len` bytes of this copier's device memory, alive.
    unsafe fn to_device(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;

    /// Copies `len` bytes within the device. The copy is complete when this returns.
    ///
    /// # Safety
    /// Both have `len` bytes of this copier's device memory, alive.
    unsafe fn within(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;

    /// Allocates `len` bytes of the device's memory. The content is undefined. The error says why the allocation failed.
    fn allocate(&self, len: usize) -> Result<Arc<dyn DeviceBytes>, String>;
}

/// An allocation of device memory, freed when dropped.
///
/// # Safety
/// The device `ordinal` has `len` writable bytes at `at`, which its `copier` copies. The device, the address and the length stay the same, and the memory
/// stays allocated, until the value is dropped.
pub unsafe trait DeviceBytes: Send + Sync {
    /// The first byte, an address of the device.
    fn at(&self) -> NonNull<u8>;

    /// Number of bytes.
    fn len(&self) -> usize;

    /// Whether there is no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of the device.
    fn ordinal(&self) -> u32;

    /// The copier that copies the bytes.
    fn copier(&self) -> &dyn DeviceCopier;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Buffer, Extent, MemoryOwner, Place, Reason, Slot, SlotError, copied_bytes};

    /// A device whose memory is one block of this host. All copies fail if it is `broken`.
    struct Device {
        block: crate::Block,
        broken: bool,
    }

    impl Device {
        #[expect(clippy::disallowed_methods, reason = "the device of the test is plain memory")]
        fn copy(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
            if self.broken {
                return Err("the device fell off the bus".into());
            }
            // SAFETY: all three callers pass on ranges that their own callers promised; here both are plain memory.
            unsafe { std::ptr::copy(from, to, len) };
            Ok(())
        }
    }

    impl DeviceCopier for Device {
        unsafe fn to_host(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
            self.copy(from, to, len)
        }

        unsafe fn to_device(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
            self.copy(from, to, len)
        }

        unsafe fn within(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
            self.copy(from, to, len)
        }

        fn allocate(&self, _: usize) -> Result<Arc<dyn DeviceBytes>, String> {
            Err("the device is full".into())
        }
    }

    impl MemoryOwner for Device {
        fn copier(&self) -> Option<&dyn DeviceCopier> {
            Some(self)
        }
    }

    fn device(broken: bool) -> Arc<Device> {
        Arc::new(Device { block: crate::Block::new(8), broken })
    }

    fn slot(device: &Arc<Device>, ordinal: u32) -> Slot {
        let ptr: NonNull<u8> = device.block.as_ptr();
        // SAFETY: the block has 8 bytes, and the Arc handed over keeps it.
        unsafe { Slot::from_raw(ptr, 8, Place::Device(ordinal), Access::Shared, Arc::clone(device) as _) }
    }

    #[test]
    fn bytes_go_to_a_device_across_devices_and_back_and_are_counted() {
        let (first, second) = (device(false), device(false));
        let before = copied_bytes(Reason::CrossDevice);
        let mut there = slot(&first, 0);
        there.write(2, b"abc", Reason::CrossDevice).expect("five of eight bytes");
        let there = there.filled().into_buffer();
        let mut same = slot(&first, 0);
        same.fill_from(0, &there, Reason::CrossDevice).expect("the same device");
        let mut other = slot(&second, 1);
        other.fill_from(0, &there, Reason::CrossDevice).expect("another device");
        let mut home = Slot::heap(3);
        let part = other.filled().into_buffer().slice(Extent::new(2, 3, 8).expect("within"));
        home.fill_from(0, &part, Reason::CrossDevice).expect("three bytes");
        assert_eq!(home.filled().into_buffer().private_bytes(), Some(&b"abc"[..]));
        assert!(copied_bytes(Reason::CrossDevice) - before >= 3 + 8 + 8 + 3);
    }

    #[test]
    fn a_driver_that_fails_is_an_error_and_no_copy_is_counted() {
        let device = device(true);
        let buffer = slot(&device, 0).filled().into_buffer();
        let failed = Slot::heap(8).fill_from(0, &buffer, Reason::CrossDevice);
        assert_eq!(failed, Err(SlotError::DeviceCopy { cause: "the device fell off the bus".into() }));
        assert_eq!(buffer.private_bytes(), None);
        assert_eq!(buffer.numbers::<u8>(), None);
        assert_eq!(buffer.read_u32(0), None);
    }

    #[test]
    fn a_device_without_memory_is_an_error() {
        let slot = slot(&device(false), 0);
        let full = Err(SlotError::NoMemory { cause: "the device is full".into() });
        assert_eq!(slot.try_alloc_same_place(8).map(drop), full);
        assert_eq!(slot.filled().into_buffer().try_alloc_same_place(8).map(drop), full);
    }

    #[test]
    fn memory_of_a_device_without_a_copier_is_never_touched() {
        struct Kept;
        impl MemoryOwner for Kept {}
        // SAFETY: the address is never dereferenced, because the buffer has no copier. The test checks this.
        let buffer =
            unsafe { Buffer::from_raw(NonNull::dangling(), 8, Place::Device(3), Access::Shared, Arc::new(Kept)) };
        let failed = Slot::heap(8).fill_from(0, &buffer, Reason::CrossDevice);
        assert_eq!(failed, Err(SlotError::DeviceCopy { cause: "nobody carries bytes of Device(3)".into() }));
    }
}
