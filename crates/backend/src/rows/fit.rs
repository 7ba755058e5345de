//! Which jobs may share an execution?

use nerite_memory::{Buffer, Place};
use nerite_tensor::Tensor;

use super::Ragged;
use crate::Job;
use crate::limits::DEVICE_BATCH_BYTES_MAX;

/// Whether the inputs of two jobs differ only in their number of rows. Ragged and padded inputs may differ in other dimensions too. All inputs may
/// lie on the host or on one device.
pub(super) fn fit(a: &Job, b: &Job, ragged: &Ragged) -> bool {
    let (a, b) = (a.inputs(), b.inputs());
    // Both jobs leave out the same inputs, so the same position means the same input.
    a.len() == b.len() && a.left_out() == b.left_out() && a.iter().zip(b).enumerate().all(|(at, (x, y))| {
        x.datatype == y.datatype
            && !x.shape.is_empty()
            && (x.shape.get(1..) == y.shape.get(1..) || ragged.may_differ(a.index_of(at), &x.shape, &y.shape))
            && !matches!((x.data.place(), y.data.place()), (Place::Device(one), Place::Device(other)) if one != other)
    })
}

/// What is known of the inputs of a batch while the batch is formed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchInputs {
    /// The number of bytes of all inputs.
    bytes: usize,
    /// Whether any input lies on a device.
    is_on_device: bool,
    /// Whether the rows of any input on a device do not lie end to end.
    is_apart: bool,
    /// Whether an input that the configuration pads lies on a device.
    is_padded_on_device: bool,
    /// Whether an input has to be padded: it does not have its padded shape yet.
    needs_padding: bool,
}

impl BatchInputs {
    /// The same with one more job. `last` is the job before it.
    pub fn with(self, last: Option<&Job>, job: &Job, ragged: &Ragged) -> BatchInputs {
        let inputs = job.inputs();
        let follows = |(at, input): (usize, &Tensor)| {
            let before = last.and_then(|last| last.inputs().at(inputs.index_of(at)));
            before.is_none_or(|before| {
                (before.data.place().is_host() && input.data.place().is_host())
                    || Buffer::joined(&[&before.data, &input.data]).is_some()
            })
        };
        let padded =
            || inputs.iter().enumerate().filter_map(|(at, input)| Some((input, ragged.padded(inputs.index_of(at))?)));
        BatchInputs {
            bytes: inputs.iter().fold(self.bytes, |sum, input| sum.saturating_add(input.data.len())),
            is_on_device: self.is_on_device || !job.has_host_inputs(),
            is_apart: self.is_apart || !inputs.iter().enumerate().all(follows),
            is_padded_on_device: self.is_padded_on_device || padded().any(|(input, _)| !input.data.place().is_host()),
            needs_padding: self.needs_padding
                || padded().any(|(input, padded)| padded.padded(&input.shape) != input.shape),
        }
    }

    /// Whether the inputs may be joined. The bytes that are gathered on a device are limited, and inputs on a device cannot be padded.
    pub fn may_be_joined(self) -> bool {
        let is_too_large = self.is_on_device && self.is_apart && self.bytes > DEVICE_BATCH_BYTES_MAX;
        let is_unpaddable = self.is_padded_on_device && self.needs_padding;
        !is_too_large && !is_unpaddable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: usize, is_on_device: bool, is_apart: bool, fits: bool) {
        let batch = BatchInputs { bytes, is_on_device, is_apart, ..BatchInputs::default() };
        assert_eq!(batch.may_be_joined(), fits, "{batch:?}");
    }

    #[test]
    fn only_what_is_copied_on_a_device_is_limited() {
        check(DEVICE_BATCH_BYTES_MAX, true, true, true);
        check(DEVICE_BATCH_BYTES_MAX + 1, true, true, false);
        check(usize::MAX, true, false, true);
        check(usize::MAX, false, false, true);
    }
}
