//! How are the rows of an input copied together on the host?

use nerite_memory::{Buffer, Reason, Slot};
use nerite_request::Status;

/// Copies the parts of this input one after the other to newly allocated memory.
pub(super) fn gather(name: &str, parts: &[&Buffer]) -> Result<Buffer, Status> {
    if let Some(part) = parts.iter().find(|part| !part.place().is_host()) {
        return Err(Status::unsupported(format!(
            "input '{name}' lies in {:?}: rows there cannot be gathered into a batch",
            part.place()
        )));
    }
    let slot = Slot::try_heap(parts.iter().map(|part| part.len()).sum());
    let mut slot = slot.map_err(|refused| Status::no_memory(format_args!("a batch of input '{name}'"), refused))?;
    let mut at = 0;
    for part in parts {
        slot.fill_from(at, part, Reason::BatchGather).map_err(|e| Status::internal(e.to_string()))?;
        at += part.len();
    }
    Ok(slot.filled().into_buffer())
}
