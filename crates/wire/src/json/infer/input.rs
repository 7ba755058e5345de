//! How is one input of a request read?

use nerite_memory::Buffer;
use nerite_request::limits::{Counted, DIMS_MAX, TENSOR_PARAMETERS_MAX, check_count};
use nerite_request::{InferInput, RegionRef, Source, Status};
use nerite_tensor::{DataType, Name, Shape};

use super::{InferText, Tail};
use crate::json::fault::{Fault, Malformed, explained_as};
use crate::json::lex::Reader;
use crate::json::tensor::{Claim, read_tensor};
use crate::json::value::{Owner, Seen, optional, required, short};

/// The members of an input. Each has been read, or refused with an error.
#[derive(Default)]
struct Draft<'t> {
    name: Seen<Name>,
    datatype: Seen<Name>,
    shape: Seen<Shape>,
    data: Option<Data<'t>>,
    keys: Keys,
}

/// The values of an input, if they are in the JSON text.
enum Data<'t> {
    Read(Result<Buffer, Status>),
    /// The values came before the datatype or the shape. The reader is at their start.
    Ahead(Reader<'t>),
}

/// The members of an input's `parameters` that have a meaning.
#[derive(Default)]
struct Keys {
    seen: bool,
    /// Number of all members, including those without a meaning.
    count: usize,
    binary_data_size: Seen<u64>,
    region: Seen<Name>,
    offset: Seen<u64>,
    byte_size: Seen<u64>,
}

const INPUT: &str = "input";

/// Reads one element of `inputs` in the text's order, then checks its members in Triton's order.
pub fn read_input(reader: &mut Reader<'_>, text: &InferText<'_>, tail: &mut Tail<'_>) -> Result<InferInput, Fault> {
    let draft = read_draft(reader, text.bytes_max)?;
    validated(draft, text, tail).map_err(Fault::Refused)
}

fn read_draft<'t>(reader: &mut Reader<'t>, bytes_max: u64) -> Result<Draft<'t>, Malformed> {
    let mut draft = Draft::default();
    reader.members(|reader, key| match key.as_ref() {
        b"name" => reader.once(&mut draft.name, Reader::name),
        b"datatype" => reader.once(&mut draft.datatype, Reader::name),
        b"shape" => reader.once(&mut draft.shape, read_shape),
        b"parameters" if !draft.keys.seen => {
            draft.keys.seen = true;
            read_keys(reader, &mut draft.keys)
        }
        b"data" if draft.data.is_none() => read_data(reader, &mut draft, bytes_max),
        _ => reader.skip(),
    })?;
    Ok(draft)
}

fn read_data<'t>(reader: &mut Reader<'t>, draft: &mut Draft<'t>, bytes_max: u64) -> Result<(), Malformed> {
    let (Some(Ok(name)), Some(Ok(datatype)), Some(Ok(shape))) = (&draft.name, &draft.datatype, &draft.shape) else {
        draft.data = Some(Data::Ahead(reader.clone()));
        return reader.skip();
    };
    let claim = Claim { name, datatype: DataType::from_name(datatype), shape, bytes_max };
    draft.data = Some(Data::Read(reader.attempt(|reader| read_tensor(reader, &claim))?));
    Ok(())
}

fn read_keys(reader: &mut Reader<'_>, keys: &mut Keys) -> Result<(), Malformed> {
    reader.members(|reader, key| {
        keys.count += 1;
        match key.as_ref() {
            b"binary_data_size" => reader.once(&mut keys.binary_data_size, Reader::unsigned),
            b"shared_memory_region" => reader.once(&mut keys.region, Reader::name),
            b"shared_memory_offset" => reader.once(&mut keys.offset, Reader::unsigned),
            b"shared_memory_byte_size" => reader.once(&mut keys.byte_size, Reader::unsigned),
            _ => reader.skip(),
        }
    })
}

fn read_shape(reader: &mut Reader<'_>) -> Result<Shape, Fault> {
    let (mut shape, mut count) = (Shape::new(), 0);
    reader.elements(|reader| {
        count += 1;
        if count > DIMS_MAX {
            return Ok(reader.skip()?);
        }
        // A dimension of 2^63 or more becomes negative. The checks of the shape refuse that.
        shape.push(reader.unsigned()? as i64);
        Ok(())
    })?;
    check_count(Counted::Dims, count, DIMS_MAX).map_err(Status::from)?;
    Ok(shape)
}

fn validated(draft: Draft<'_>, text: &InferText<'_>, tail: &mut Tail<'_>) -> Result<InferInput, Status> {
    check_count(Counted::TensorParameters, draft.keys.count, TENSOR_PARAMETERS_MAX)?;
    check_one_source(&draft)?;
    let name = short(required(draft.name, "name", Owner::Unnamed(INPUT))?, "name")?;
    let owner = Owner::Named(INPUT, &name);
    let word = required(draft.datatype, "datatype", owner)?;
    let shape = shape_of(draft.shape, owner)?;
    let claim = Claim { name: &name, datatype: DataType::from_name(&word), shape: &shape, bytes_max: text.bytes_max };
    let Keys { binary_data_size, region, offset, byte_size, .. } = draft.keys;
    // Checked even without a region, as in Triton. They have no effect then.
    let offset = optional(offset, "shared_memory_offset", owner)?.unwrap_or_default();
    let byte_size = optional(byte_size, "shared_memory_byte_size", owner)?.unwrap_or_default();
    let source = match draft.data {
        Some(Data::Read(data)) => Source::Inline(data?),
        Some(Data::Ahead(mut reader)) => Source::Inline(read_ahead(&mut reader, &claim)?),
        None => match optional(binary_data_size, "binary_data_size", owner)? {
            Some(size) => Source::Inline(take_binary(size, text, tail, &name)?),
            None => Source::Region(RegionRef {
                name: short(required(region, "shared_memory_region", owner)?, "shared_memory_region")?,
                offset,
                byte_size,
            }),
        },
    };
    let datatype = claim.datatype.ok_or_else(|| Status::invalid(format!("invalid datatype for input {name}")))?;
    Ok(InferInput { name, datatype, shape, source })
}

fn shape_of(seen: Seen<Shape>, owner: Owner<'_>) -> Result<Shape, Status> {
    // `required` would name the type of the element at which the reader stopped.
    let whole = |status| explained_as(status, owner.member("shape"), "an array of integers of 0 or more");
    required(seen.map(|shape| shape.map_err(whole)), "shape", owner)
}

fn read_ahead(reader: &mut Reader<'_>, claim: &Claim<'_>) -> Result<Buffer, Status> {
    read_tensor(reader, claim).map_err(|fault| match fault {
        Fault::Refused(status) => status,
        Fault::Malformed(malformed) => malformed.into(),
    })
}

fn take_binary(size: u64, text: &InferText<'_>, tail: &mut Tail<'_>, name: &str) -> Result<Buffer, Status> {
    tail.take(size).map_err(|missing| {
        Status::invalid(format!(
            "unexpected size for input '{name}', expecting {missing} additional bytes for model '{}'",
            text.model
        ))
    })
}

/// An input's data is in exactly one place. The values of these members are checked later.
fn check_one_source(draft: &Draft<'_>) -> Result<(), Status> {
    let fields = [
        (draft.data.is_some(), " 'data'"),
        (draft.keys.binary_data_size.is_some(), " 'binary_data_size'"),
        (draft.keys.region.is_some(), " 'shared_memory_region'"),
    ];
    let set = || fields.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name);
    if set().count() == 1 {
        return Ok(());
    }
    let set: Vec<&str> = set().collect();
    let found = if set.is_empty() { " no field is set".to_string() } else { format!(" set{}", set.concat()) };
    Err(Status::invalid(format!(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
         'shared_memory_region' in 'parameters'. But{found}"
    )))
}
