//! How is one requested output read?

use nerite_request::limits::{Counted, TENSOR_PARAMETERS_MAX, check_count};
use nerite_request::{InferRequestedOutput, RegionRef, SessionRef, Status};
use nerite_tensor::Name;

use crate::json::fault::{Fault, Malformed, explained, prefixed};
use crate::json::lex::Reader;
use crate::json::value::{Owner, Seen, optional, required, short};

/// A requested output, and whether it is sent as binary.
#[derive(Debug)]
pub struct RequestedOutput {
    pub infer_request: InferRequestedOutput,
    pub binary: bool,
}

/// The members of an output. Each has been read, or refused with an error.
#[derive(Default)]
struct Draft {
    name: Seen<Name>,
    parameters_seen: bool,
    /// Number of members of the parameters, including those without a meaning.
    parameters: usize,
    classification: Seen<u64>,
    binary_data: Seen<bool>,
    region: Seen<Name>,
    offset: Seen<u64>,
    byte_size: Seen<u64>,
}

const OUTPUT: &str = "output";

/// Reads one element of `outputs` in the text's order, then checks its members in Triton's order.
pub fn read_output(reader: &mut Reader<'_>) -> Result<RequestedOutput, Fault> {
    let mut draft = Draft::default();
    reader.members(|reader, key| match key.as_ref() {
        b"name" => reader.once(&mut draft.name, Reader::name),
        b"parameters" if !draft.parameters_seen => {
            draft.parameters_seen = true;
            read_keys(reader, &mut draft)
        }
        _ => reader.skip(),
    })?;
    validated(draft).map_err(Fault::Refused)
}

fn read_keys(reader: &mut Reader<'_>, draft: &mut Draft) -> Result<(), Malformed> {
    reader.members(|reader, key| {
        draft.parameters += 1;
        match key.as_ref() {
            b"classification" => reader.once(&mut draft.classification, Reader::unsigned),
            b"binary_data" => reader.once(&mut draft.binary_data, Reader::bool),
            b"shared_memory_region" => reader.once(&mut draft.region, Reader::name),
            b"shared_memory_offset" => reader.once(&mut draft.offset, Reader::unsigned),
            b"shared_memory_byte_size" => reader.once(&mut draft.byte_size, Reader::unsigned),
            _ => reader.skip(),
        }
    })
}

fn validated(mut draft: Draft) -> Result<RequestedOutput, Status> {
    check_count(Counted::TensorParameters, draft.parameters, TENSOR_PARAMETERS_MAX)?;
    if draft.region.is_some() {
        if draft.classification.is_some() {
            return Err(Status::invalid("Output can't set both 'shared_memory_region' and 'classification'"));
        }
        let owner = match &draft.name {
            Some(Ok(name)) => Owner::Named(OUTPUT, name),
            _ => Owner::Unnamed(OUTPUT),
        };
        if settable(draft.binary_data.take(), "binary_data", owner)? == Some(true) {
            return Err(Status::invalid("Output can't set both 'shared_memory_region' and 'binary_data'"));
        }
    }
    let name = short(required(draft.name, "name", Owner::Unnamed(OUTPUT))?, "name")?;
    let owner = Owner::Named(OUTPUT, &name);
    let classes = settable(draft.classification, "classification", owner)?.unwrap_or_default();
    let region_name = optional(draft.region, "shared_memory_region", owner)?;
    let region_name = region_name.map(|name| short(name, "shared_memory_region")).transpose()?;
    // Checked even without a region, as in Triton. They have no effect then.
    let offset = optional(draft.offset, "shared_memory_offset", owner)?.unwrap_or_default();
    let byte_size = optional(draft.byte_size, "shared_memory_byte_size", owner)?.unwrap_or_default();
    let session = region_name.as_deref().and_then(|name| SessionRef::wanted(name, offset, byte_size));
    let region = region_name.filter(|_| session.is_none()).map(|name| RegionRef { name, offset, byte_size });
    let binary = optional(draft.binary_data, "binary_data", owner)?.unwrap_or_default();
    // An output that does not fit into a lease is sent in the response, and JSON cannot encode all datatypes.
    let binary = binary || session.is_some();
    Ok(RequestedOutput { infer_request: InferRequestedOutput { name, region, session, classes }, binary })
}

/// The value of an optional member, with the prefix of Triton's errors for these two.
fn settable<T>(seen: Seen<T>, name: &str, owner: Owner<'_>) -> Result<Option<T>, Status> {
    let wrong = |status| explained(prefixed(&format!("Unable to set '{name}': "), status), owner.member(name));
    seen.transpose().map_err(wrong)
}
