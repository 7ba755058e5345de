//! Which jobs may share an execution?

use nerite_memory::{Buffer, Place};
use nerite_tensor::Tensor;

use super::Ragged;
use crate::Job;
use crate::limits::DEVICE_BATCH_BYTES_MAX;

/// Whether two jobs' tensors differ in nothing but their rows, except for ragged ones. They may lie on the host or on one device.
pub(super) fn fit(a: &Job, b: &Job, ragged: &Ragged) -> bool {
    a.inputs().len() == b.inputs().len()
        && a.inputs().iter().all(|x| {
            b.input(&x.name).is_some_and(|y| {
                let places = (x.data.place(), y.data.place());
                let is_on_host = places.0.is_host() && places.1.is_host();
                // Nothing is padded on a device.
                let may_differ = |name, x, y| if is_on_host { ragged.may_differ(name, x, y) } else { ragged.has(name) };
                x.datatype == y.datatype
                    && !x.shape.is_empty()
                    && (x.shape.get(1..) == y.shape.get(1..) || may_differ(&x.name, &x.shape, &y.shape))
                    && !matches!(places, (Place::Device(one), Place::Device(other)) if one != other)
            })
        })
}

/// How much the jobs of a batch bring, as far as it is known while the batch is formed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchBytes {
    /// Bytes of all inputs.
    bytes: usize,
    /// Whether any input lies on a device.
    is_on_device: bool,
    /// Whether the rows of any input on a device do not lie end to end.
    is_apart: bool,
}

impl BatchBytes {
    /// The same with one job more, which comes after `last`.
    pub fn with(self, last: Option<&Job>, job: &Job) -> BatchBytes {
        let follows = |input: &Tensor| {
            let before = last.and_then(|last| last.input(&input.name));
            before.is_none_or(|before| {
                (before.data.place().is_host() && input.data.place().is_host())
                    || Buffer::joined(&[&before.data, &input.data]).is_some()
            })
        };
        BatchBytes {
            bytes: job.inputs().iter().fold(self.bytes, |sum, input| sum.saturating_add(input.data.len())),
            is_on_device: self.is_on_device || !job.has_host_inputs(),
            is_apart: self.is_apart || !job.inputs().iter().all(follows),
        }
    }

    /// Whether the inputs may be gathered together.
    pub fn may_be_gathered(self) -> bool {
        !(self.is_on_device && self.is_apart) || self.bytes <= DEVICE_BATCH_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: usize, is_on_device: bool, is_apart: bool, fits: bool) {
        let batch = BatchBytes { bytes, is_on_device, is_apart };
        assert_eq!(batch.may_be_gathered(), fits, "{batch:?}");
    }

    #[test]
    fn only_what_is_copied_on_a_device_is_limited() {
        check(DEVICE_BATCH_BYTES_MAX, true, true, true);
        check(DEVICE_BATCH_BYTES_MAX + 1, true, true, false);
        check(usize::MAX, true, false, true);
        check(usize::MAX, false, false, true);
    }
}
