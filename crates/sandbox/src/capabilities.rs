//! How does a process of root's give up what makes root more than a user?

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Drops all capabilities, for good: no program that it becomes gets them back. Who has none drops none.
pub(crate) fn drop_all() -> io::Result<()> {
    // The kernel may know more than have names here; it says of numbers that it does not know that they are invalid.
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(one) {
            Ok(true) => match remove_capability_from_bounding_set(one) {
                // Only who may change them can; the others have none to give on.
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
