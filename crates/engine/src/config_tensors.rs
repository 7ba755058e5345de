//! How many bytes of tensors may a configuration make the server hold, and which client is charged for them?
//!
//! A few digits in a configuration can require gigabytes: inputs of warmup samples, and initial states of sequences. The client that sent the
//! configuration is charged for them. Nobody is charged for a configuration of the repository, which is the operator's.

use nerite_memory::{Buffer, Slot};
use nerite_request::limits::STRING_BYTES;
use nerite_request::{PeerAccount, PeerCharge, Status};
use nerite_tensor::DataType;
use nerite_tensor::strings::LENGTH_BYTES;

use crate::limits::CONFIG_TENSOR_BYTES_MAX;

/// The tensors that one version's configuration requires. They are charged until this is dropped.
pub(crate) struct ConfigTensors {
    model: String,
    payer: Option<PeerAccount>,
    /// How to make them smaller, for errors.
    cure: &'static str,
    bytes: u64,
    charges: Vec<PeerCharge>,
}

/// The size of one of them.
#[derive(Clone, Copy)]
pub(crate) struct TensorSize {
    pub datatype: DataType,
    pub elements: usize,
    /// The bytes of its elements. For strings, those of as many empty strings.
    pub bytes: usize,
}

impl ConfigTensors {
    /// No tensors yet. `payer` is the client that sent the configuration.
    pub fn new(model: &str, payer: Option<&PeerAccount>, cure: &'static str) -> ConfigTensors {
        ConfigTensors { model: model.to_owned(), payer: payer.cloned(), cure, bytes: 0, charges: Vec::new() }
    }

    /// The bytes that were counted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts and charges `bytes` more. `what` names them in errors.
    pub fn add(&mut self, what: &str, bytes: u64) -> Result<(), Status> {
        let ConfigTensors { model, cure, .. } = self;
        let all = self.bytes.saturating_add(bytes);
        if all > CONFIG_TENSOR_BYTES_MAX {
            return Err(Status::invalid(format!(
                "model '{model}': {what} takes {bytes} bytes, which makes {all} with those before it, at most {CONFIG_TENSOR_BYTES_MAX} are \
                 possible; {cure}"
            )));
        }
        if let Some(payer) = &self.payer {
            let charged = payer.charge(usize::try_from(bytes).unwrap_or(usize::MAX));
            self.charges.push(charged.map_err(|over| {
                Status::unavailable(format!("model '{model}': {what} takes {bytes} bytes: {over}; or {cure}"))
            })?);
        }
        self.bytes = all;
        Ok(())
    }

    /// Memory of `bytes` bytes for the tensor `what` of this size, filled by `fill`. It is counted before it is allocated.
    pub fn filled(
        &mut self,
        what: &str,
        size: TensorSize,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Status>,
    ) -> Result<Buffer, Status> {
        self.add(what, size.taken(bytes))?;
        let mut slot = Slot::try_heap(bytes).map_err(|refused| Status::no_memory(format_args!("{what}"), refused))?;
        if let Some(all) = slot.private_bytes_mut() {
            fill(all)?;
        }
        Ok(slot.filled().into_buffer())
    }

    /// A tensor of zeros. For strings, every four bytes are the length of an empty string.
    pub fn zeros(&mut self, what: &str, size: TensorSize) -> Result<Buffer, Status> {
        self.filled(what, size, size.bytes, |all| {
            all.fill(0);
            Ok(())
        })
    }
}

impl TensorSize {
    /// The memory that such a tensor takes if it has `bytes` bytes. Strings take more in a runtime than in their tensor.
    pub fn taken(&self, bytes: usize) -> u64 {
        let strings = if self.datatype == DataType::Bytes { self.elements.min(bytes / LENGTH_BYTES) } else { 0 };
        (bytes as u64).saturating_add((strings as u64).saturating_mul(STRING_BYTES as u64))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_budget::{Budgets, Limits};
    use nerite_request::Code;

    use super::*;

    const MIB: usize = 1 << 20;

    fn size(datatype: DataType, elements: usize, bytes: usize) -> TensorSize {
        TensorSize { datatype, elements, bytes }
    }

    #[test]
    fn the_tensors_of_a_configuration_have_a_bound_together() {
        let mut tensors = ConfigTensors::new("m", None, "use smaller dims");
        assert_eq!(tensors.add("input 'a'", CONFIG_TENSOR_BYTES_MAX - 1), Ok(()));
        let refused = tensors.add("input 'b'", 2).unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (
                Code::InvalidArg,
                "model 'm': input 'b' takes 2 bytes, which makes 4294967297 with those before it, at most 4294967296 are possible; use \
                 smaller dims"
            )
        );
        assert_eq!(tensors.add("input 'c'", 1), Ok(()));
        // A tensor that is refused is not allocated.
        assert!(tensors.zeros("input 'd'", size(DataType::Uint8, usize::MAX, usize::MAX)).is_err());
    }

    #[test]
    fn who_sent_the_configuration_pays_until_the_tensors_are_gone() {
        let budgets = Budgets::new(Limits::new(0, Some(100 << 20), Some(20 << 20), None));
        let one = budgets.of_peer("one");
        let mut tensors = ConfigTensors::new("m", Some(&one), "use smaller dims");
        assert_eq!(tensors.zeros("input 'a'", size(DataType::Int8, MIB, MIB)).unwrap().len(), MIB);
        assert_eq!(one.retained(), MIB as u64);
        let refused = tensors.zeros("input 'b'", size(DataType::Int8, 10 * MIB, 10 * MIB)).unwrap_err();
        let begins =
            format!("model 'm': input 'b' takes {} bytes: memory budget of a client: what it keeps is", 10 * MIB);
        assert!(refused.code == Code::Unavailable && refused.message.starts_with(&begins), "{refused}");
        assert!(refused.message.ends_with("; or use smaller dims"), "{refused}");
        // Empty strings have four bytes each.
        tensors.zeros("input 'c'", size(DataType::Bytes, 1000, 4000)).unwrap();
        assert_eq!(one.retained(), (MIB + 4000 + 1000 * STRING_BYTES) as u64);
        drop(tensors);
        assert_eq!(one.retained(), 0);
    }
}
