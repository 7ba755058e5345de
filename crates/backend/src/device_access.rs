//! Which memory of devices does an instance use without staging?

use std::sync::Arc;

use nerite_config::ModelConfig;
use nerite_config::proto::DataType;
use nerite_memory::{Place, Slot};
use nerite_tensor::Tensor;

/// The memory that an instance can use in addition to memory of this host. Tensors in other memory are staged: see [`crate::Staged`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceAccess {
    /// No memory of devices: the instance computes on the host.
    #[default]
    Host,
    /// Memory of the device that the instance computes on.
    Device {
        /// The number of the device.
        ordinal: u32,
        /// Addresses must be a multiple of this. A kernel that gets another address may make the whole context unusable.
        align: usize,
        /// The names of tensors that the instance needs on the host all the same.
        host_tensors: Arc<[String]>,
    },
    /// Memory of any device.
    Everywhere,
}

/// The addresses of tensors that an instance gets are multiples of this, as those of memory that the CUDA runtime allocates. A client chooses the
/// offset of its tensor, so any address may occur. A kernel that reads numbers at an unaligned address makes the whole context unusable, for the
/// requests of other clients too.
const ALIGN: usize = 256;

impl DeviceAccess {
    /// The parameter of a model that says whether the server stages the model's tensors on the host (`yes`), or leaves them on the instance's device
    /// (`no`).
    pub const PARAMETER: &str = "FORCE_CPU_ONLY_INPUT_TENSORS";

    /// Access to all memory of the device, except for BYTES tensors: the lengths of their elements are read on the host.
    pub fn on(ordinal: u32, config: &ModelConfig) -> DeviceAccess {
        let inputs = config.input.iter().map(|input| (&input.name, input.data_type()));
        let outputs = config.output.iter().map(|output| (&output.name, output.data_type()));
        let strings = inputs.chain(outputs).filter(|(_, datatype)| *datatype == DataType::TypeString);
        let host_tensors: Arc<[String]> = strings.map(|(name, _)| name.clone()).collect();
        DeviceAccess::Device { ordinal, align: ALIGN, host_tensors }
    }

    /// Whether the instance reads this input in place.
    pub fn takes(&self, input: &Tensor) -> bool {
        let Tensor { name, data, .. } = input;
        self.allows(name, data.place(), |align| data.is_aligned(align))
    }

    /// Whether the instance writes the output of this name directly to the client's slot.
    pub fn writes(&self, output: &str, slot: &Slot) -> bool {
        self.allows(output, slot.place(), |align| slot.is_aligned(align))
    }

    fn allows(&self, name: &str, place: Place, is_aligned: impl FnOnce(usize) -> bool) -> bool {
        let Place::Device(device) = place else { return true };
        match self {
            DeviceAccess::Host => false,
            DeviceAccess::Everywhere => true,
            DeviceAccess::Device { ordinal, align, host_tensors } => {
                device == *ordinal && is_aligned(*align) && !host_tensors.iter().any(|other| other == name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(access: &DeviceAccess, name: &str, place: Place, address: usize, taken: bool) {
        let found = access.allows(name, place, |align| address.is_multiple_of(align));
        assert_eq!(found, taken, "{name} at {address} in {place:?} for {access:?}");
    }

    #[test]
    fn everybody_takes_the_hosts_memory_and_some_that_of_devices() {
        let one = DeviceAccess::Device { ordinal: 1, align: 256, host_tensors: Arc::new(["shape".to_owned()]) };
        for access in [&DeviceAccess::Host, &one, &DeviceAccess::Everywhere] {
            check(access, "shape", Place::Host, 3, true);
            check(access, "x", Place::Pinned, 3, true);
        }
        check(&DeviceAccess::Host, "x", Place::Device(0), 512, false);
        check(&DeviceAccess::Everywhere, "x", Place::Device(7), 3, true);
        check(&one, "x", Place::Device(1), 512, true);
        check(&one, "x", Place::Device(0), 512, false);
        check(&one, "x", Place::Device(1), 520, false);
        check(&one, "shape", Place::Device(1), 512, false);
    }
}
