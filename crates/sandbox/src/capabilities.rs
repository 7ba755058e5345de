//! How does a process that runs as root give up root's privileges?

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Drops all capabilities for good: no program that it becomes gets them back. Has no effect if there are none.
pub(crate) fn drop_all() -> io::Result<()> {
    // The kernel may have more capabilities than have names here. It reports unknown numbers as invalid.
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(one) {
            Ok(true) => match remove_capability_from_bounding_set(one) {
                // Only a process with the right to change the set can drop them. A process without it has none to pass on.
                Ok(()) | Err(rustix::io::Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            },
            Ok(false) => {}
            Err(_) => break,
        }
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}
