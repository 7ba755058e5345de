//! Which parameters of a tensor say where it is?

use nerite_request::{RegionRef, SessionRef, Status};

use super::choice::Choice;
use super::read::Malformed;

/// The parameters of one input or output that have a meaning. Others have no effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Placement {
    region: Option<Choice>,
    offset: Option<Choice>,
    byte_size: Option<Choice>,
    classification: Option<Choice>,
}

impl Placement {
    /// Takes one entry of the map. If a key is repeated, its last value counts, as in every protobuf map.
    pub(super) fn take(&mut self, entry: &[u8]) -> Result<(), Malformed> {
        let (key, choice) = super::choice::read_entry(entry)?;
        let place = match key {
            "shared_memory_region" => &mut self.region,
            "shared_memory_offset" => &mut self.offset,
            "shared_memory_byte_size" => &mut self.byte_size,
            "classification" => &mut self.classification,
            _ => return Ok(()),
        };
        *place = Some(choice);
        Ok(())
    }

    /// The region, if the tensor is in one.
    pub(super) fn region(&mut self, tensor: &str) -> Result<Option<RegionRef>, Status> {
        let wrong = |key: &str, kind: &str| {
            Status::invalid(format!("invalid value type for '{key}' parameter for tensor '{tensor}', expected {kind}."))
        };
        let name = match self.region.take() {
            None => None,
            Some(Choice::String(name)) => Some(name),
            Some(_) => return Err(wrong("shared_memory_region", "string_param")),
        };
        let number = |choice: &Option<Choice>, key: &str| match choice {
            None => Ok(None),
            Some(_) if name.is_none() => Err(Status::invalid(format!(
                "'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
            ))),
            // A negative number becomes a number larger than any region.
            Some(Choice::Int(value)) => Ok(Some(*value as u64)),
            Some(_) => Err(wrong(key, "int64_param")),
        };
        let offset = number(&self.offset, "shared_memory_offset")?.unwrap_or(0);
        let byte_size = number(&self.byte_size, "shared_memory_byte_size")?;
        let Some(name) = name else { return Ok(None) };
        let Some(byte_size) = byte_size else {
            return Err(Status::invalid(format!(
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '{tensor}'"
            )));
        };
        Ok(Some(RegionRef { name, offset, byte_size }))
    }

    /// The session whose leases the server may use for the output, if the output names one.
    pub(super) fn session(&self) -> Option<SessionRef> {
        let number = |choice: &Option<Choice>| match choice {
            None => Some(0),
            Some(Choice::Int(value)) => Some(*value as u64),
            Some(_) => None,
        };
        let Some(Choice::String(name)) = &self.region else { return None };
        SessionRef::wanted(name, number(&self.offset)?, number(&self.byte_size)?)
    }

    /// How many classes are requested. 0 for the tensor itself.
    pub(super) fn classes(&self) -> Result<u64, Status> {
        match self.classification {
            None => Ok(0),
            Some(Choice::Int(count)) if count > 0 => Ok(count as u64),
            Some(Choice::Int(_)) => Err(Status::invalid("invalid value for 'classification' parameter, expected >= 0")),
            Some(_) => Err(Status::invalid("invalid value type for 'classification' parameter, expected int64_param")),
        }
    }
}
