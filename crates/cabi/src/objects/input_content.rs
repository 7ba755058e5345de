//! What is an input of a request that a backend or a program makes?

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use nerite_memory::{Access, Buffer, MemoryOwner, Place, Reason, Slot};
use nerite_request::{PolicyData, Status};
use nerite_tensor::{DataType, Shape, Tensor, byte_size};

use super::callbacks::Kept;
use crate::fault::Fault;
use crate::limits::POLICIES_MAX;

/// One input.
pub struct InputContent {
    /// Its name.
    pub name: String,
    /// Whether name, datatype and shape are those of the model's only input.
    pub is_raw: bool,
    datatype: DataType,
    shape: Shape,
    parts: Vec<Part>,
    /// The data for instances of one host policy each, by its name.
    of_policies: BTreeMap<String, Vec<Part>>,
}

/// A part of an input's bytes. It stays the backend's until the request is returned.
struct Part {
    base: Kept,
    bytes: usize,
    place: Place,
}

impl InputContent {
    /// An input without data.
    pub fn new(name: String, datatype: DataType, shape: Shape) -> InputContent {
        InputContent { name, is_raw: false, datatype, shape, parts: Vec::new(), of_policies: BTreeMap::new() }
    }

    /// An input whose datatype and shape are not known yet.
    pub fn raw(name: String) -> InputContent {
        InputContent { is_raw: true, ..InputContent::new(name, DataType::Bytes, Shape::default()) }
    }

    /// Appends bytes. With a host policy, they are for instances of that policy only.
    pub fn append(
        &mut self,
        base: Kept,
        bytes: usize,
        memory: (u32, i64),
        policy: Option<String>,
    ) -> Result<(), Fault> {
        let place = match memory.0 {
            0 => Place::Host,
            1 => Place::Pinned,
            2 => {
                return Err(Status::unsupported(format!(
                    "input '{}' lies on GPU {}; inputs of requests that compiled backends make must lie in the host's memory in this version of \
                     nerite",
                    self.name, memory.1
                ))
                .into());
            }
            other => return Err(Fault::misuse(format!("there is no memory type {other}"))),
        };
        if base.0.is_null() && bytes > 0 {
            return Err(Fault::misuse(format!("the {bytes} bytes of input '{}' are at NULL", self.name)));
        }
        let known = self.of_policies.len();
        let parts = match policy {
            None => &mut self.parts,
            Some(policy) if known < POLICIES_MAX || self.of_policies.contains_key(&policy) => {
                self.of_policies.entry(policy).or_default()
            }
            Some(policy) => {
                return Err(Fault::misuse(format!(
                    "input '{}' has data for {known} host policies, and policy '{policy}' would be one more; at most {POLICIES_MAX} are taken",
                    self.name
                )));
            }
        };
        if bytes > 0 {
            parts.push(Part { base, bytes, place });
        }
        Ok(())
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.of_policies.clear();
    }

    /// The number of its bytes, without those of host policies.
    pub fn byte_size(&self) -> usize {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// The input as a tensor over the backend's memory.
    pub fn tensor(&self, keep: &Arc<dyn MemoryOwner>) -> Result<Tensor, Status> {
        let (name, data) = (self.name.as_str().into(), self.data(keep)?);
        Ok(Tensor { name, datatype: self.datatype, shape: self.shape.clone(), data })
    }

    /// Its bytes.
    pub fn data(&self, keep: &Arc<dyn MemoryOwner>) -> Result<Buffer, Status> {
        joined(&self.name, &self.parts, keep)
    }

    /// Its bytes as one element of BYTES: their number, and then the bytes.
    pub fn as_string(&self, keep: &Arc<dyn MemoryOwner>) -> Result<Buffer, Status> {
        let bytes = self.byte_size();
        let len = u32::try_from(bytes).map_err(|_| {
            Status::invalid(format!("a BYTES element has at most 4294967295 bytes, input '{}' has {bytes}", self.name))
        })?;
        copied(&self.name, &len.to_le_bytes(), &self.parts, keep)
    }

    /// Adds its data for instances of one host policy each. Triton does not check their size. It is checked here, because an engine reads as many
    /// bytes as the shape says.
    pub fn add_of_policies(
        &self,
        request: &str,
        keep: &Arc<dyn MemoryOwner>,
        to: &mut Vec<PolicyData>,
    ) -> Result<(), Status> {
        for (policy, parts) in &self.of_policies {
            if self.is_raw {
                return Err(Status::invalid(format!(
                    "{request}raw input '{}' has data for host policy '{policy}', and a raw input has none; add it by its name",
                    self.name
                )));
            }
            let data = joined(&self.name, parts, keep)?;
            let expected = byte_size(self.datatype, &self.shape);
            let expected =
                expected.map_err(|cause| Status::invalid(format!("{request}input '{}': {cause}", self.name)))?;
            if let Some(expected) = expected.filter(|expected| *expected != data.len()) {
                return Err(Status::invalid(format!(
                    "{request}input byte size mismatch for input '{}' and host policy '{policy}'. Expected {expected}, got {}",
                    self.name,
                    data.len()
                )));
            }
            to.push(PolicyData { policy: policy.as_str().into(), input: self.name.as_str().into(), data });
        }
        Ok(())
    }
}

impl Part {
    fn buffer(&self, keep: &Arc<dyn MemoryOwner>) -> Buffer {
        let Some(base) = NonNull::new(self.base.0.cast::<u8>()) else { return Buffer::empty() };
        // SAFETY: by the contract of `TRITONSERVER_InferenceRequestAppendInputData` `bytes` initialised bytes lie at `base` and stay there
        // until the request's release function is called, which is when `keep` is dropped. They may be a client's region, which others
        // write, so they count as shared, and no slice of them is made.
        unsafe { Buffer::from_raw(base, self.bytes, self.place, Access::Shared, Arc::clone(keep)) }
    }
}

/// The parts as one piece of memory. Several are copied, because a model takes each input as one piece.
fn joined(name: &str, parts: &[Part], keep: &Arc<dyn MemoryOwner>) -> Result<Buffer, Status> {
    match parts {
        [] => Ok(Buffer::empty()),
        [only] => Ok(only.buffer(keep)),
        parts => copied(name, &[], parts, keep),
    }
}

/// Copies `head` and the parts to one piece of memory.
fn copied(name: &str, head: &[u8], parts: &[Part], keep: &Arc<dyn MemoryOwner>) -> Result<Buffer, Status> {
    let what = format!("input '{name}'");
    let total = parts.iter().try_fold(head.len(), |sum, part| sum.checked_add(part.bytes));
    let total = total.ok_or_else(|| Status::invalid(format!("{what} has more bytes than there are")))?;
    let mut slot = Slot::try_heap(total).map_err(|refused| Status::no_memory(&what, refused))?;
    let failed = |error: &dyn std::fmt::Display| Status::internal(format!("{what}: {error}"));
    slot.write(0, head, Reason::ModelRequest).map_err(|error| failed(&error))?;
    let mut at = head.len();
    for part in parts {
        slot.fill_from(at, &part.buffer(keep), Reason::ModelRequest).map_err(|error| failed(&error))?;
        at += part.bytes;
    }
    Ok(slot.filled().into_buffer())
}
