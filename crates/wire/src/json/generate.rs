//! How is a request of the generate extension read?

use std::borrow::Cow;
use std::collections::HashSet;

use nerite_memory::Buffer;
use nerite_request::limits::{Counted, PARAMETERS_MAX, check_count};
use nerite_request::names::ByName;
use nerite_request::report::TensorReport;
use nerite_request::{InferInput, InferRequest, Recycled, Source, Status};
use nerite_tensor::{DataType, Shape};

use super::fault::{Fault, explained, mismatch, prefixed};
use super::infer::parameters::custom;
use super::lex::{Kind, Reader};
use super::tensor::{Claim, read_values};
use super::value::{short, text_of};
use crate::budget::Budget;

/// The key whose object is read as if its members were members of the root.
const NESTED: &str = "parameters";

/// A request as it arrived: flat JSON. A key that names an input of the model is a tensor, and any other key is a parameter.
#[derive(Clone, Copy, Debug)]
pub struct GenerateText<'b> {
    /// The body.
    pub json: &'b [u8],
    /// The model's inputs.
    pub inputs: &'b [TensorReport],
    /// The model in the path.
    pub model: &'b str,
    /// The version in the path. Empty for the highest.
    pub version: &'b str,
    /// The most bytes that all tensors together may have.
    pub bytes_max: u64,
}

/// Reads a request.
pub fn read_generate(text: &GenerateText<'_>) -> Result<Recycled<InferRequest>, Status> {
    let _budget = Budget::of_text(text.json).map_err(|refused| Status::no_memory("what a request says", refused))?;
    let mut reader = Reader::new(text.json)?;
    let inputs = ByName::new(text.inputs, |input| &input.name);
    let mut flat = Flat {
        text,
        inputs,
        infer_request: Recycled::new(),
        has_nested: false,
        known: HashSet::new(),
        count: 0,
        bytes: 0,
    };
    // The first syntax error takes precedence over all other errors, as if the whole text were parsed first.
    let outcome = reader.attempt(|reader| {
        flat.members(reader, true)?;
        Ok(check_count(Counted::Members, flat.count, PARAMETERS_MAX).map_err(Status::from)?)
    })?;
    reader.finish()?;
    outcome?;
    let mut infer_request = flat.infer_request;
    (infer_request.model, infer_request.version) = (text.model.into(), text.version.into());
    Ok(infer_request)
}

struct Flat<'b> {
    text: &'b GenerateText<'b>,
    inputs: ByName<'b, TensorReport>,
    infer_request: Recycled<InferRequest>,
    /// Whether the object of [`NESTED`] was read.
    has_nested: bool,
    /// The parameters read so far. Of two with the same name, the first counts.
    known: HashSet<Cow<'b, [u8]>>,
    /// Members read so far, repeated ones included.
    count: usize,
    /// Bytes of the tensors read so far.
    bytes: u64,
}

impl<'b> Flat<'b> {
    fn members(&mut self, reader: &mut Reader<'b>, top: bool) -> Result<(), Fault> {
        if reader.kind() != Kind::Object {
            return Err(explained(Status::internal(mismatch::MEMBERS), "the body").into());
        }
        reader.members(|reader, key| {
            self.count += 1;
            if self.count > PARAMETERS_MAX {
                return Ok(reader.skip()?);
            }
            if !top || key.as_ref() != NESTED.as_bytes() {
                return self.member(reader, key, top);
            }
            if std::mem::replace(&mut self.has_nested, true) { Ok(reader.skip()?) } else { self.nested(reader) }
        })
    }

    fn nested(&mut self, reader: &mut Reader<'b>) -> Result<(), Fault> {
        if self.inputs.find(NESTED).is_some() {
            let text = format!("Keyword '{NESTED}' for nested schema also given as input tensor name");
            return Err(Status::invalid(text).into());
        }
        if reader.kind() != Kind::Object {
            let text = format!("Expected JSON object for keyword: '{NESTED}': {}", mismatch::OBJECT);
            return Err(explained(Status::internal(text), format_args!("'{NESTED}'")).into());
        }
        self.members(reader, false).map_err(|fault| match fault {
            Fault::Refused(status) => prefixed(&format!("Converting keyword: '{NESTED}': "), status).into(),
            malformed @ Fault::Malformed(_) => malformed,
        })
    }

    fn member(&mut self, reader: &mut Reader<'b>, key: Cow<'b, [u8]>, top: bool) -> Result<(), Fault> {
        let known = key.clone();
        let key = text_of(key);
        // An input that is given twice stays in the request twice, so that its admission refuses it as it does for `infer`.
        if let Some(input) = self.inputs.find(&key) {
            return self.tensor(reader, input);
        }
        if !self.known.insert(known) {
            return Ok(reader.skip()?);
        }
        if top && key == "id" {
            self.infer_request.id = reader.clone().name().map_err(|fault| match fault {
                Fault::Refused(status) => explained(prefixed("Unable to parse 'id': ", status), "'id'").into(),
                malformed @ Fault::Malformed(_) => malformed,
            })?;
            self.infer_request.id = short(std::mem::take(&mut self.infer_request.id), "id")?;
        }
        let value = custom(reader, &key)?;
        self.infer_request.parameters.insert(key, value);
        Ok(())
    }

    fn tensor(&mut self, reader: &mut Reader<'b>, input: &TensorReport) -> Result<(), Fault> {
        let count = count_values(&mut reader.clone())?;
        let flat = Shape::from_slice(&[count as i64]);
        let claim = Claim { name: &input.name, datatype: Some(input.datatype), shape: &flat, bytes_max: u64::MAX };
        let fixed = input.datatype.size().map_or(0, |size| count.saturating_mul(size as u64));
        self.check_size(&input.name, fixed)?;
        let (shape, data) = if count == 0 {
            reader.skip()?;
            (Shape::new(), Buffer::empty())
        } else {
            (distribute(&input.shape, count, &input.name)?, read_values(reader, &claim, count)?)
        };
        if input.datatype == DataType::Bytes {
            self.check_size(&input.name, data.len() as u64)?;
        }
        self.bytes = self.bytes.saturating_add(data.len() as u64);
        let name = input.name.as_str().into();
        self.infer_request.inputs.push(InferInput {
            name,
            datatype: input.datatype,
            shape,
            source: Source::Inline(data),
        });
        Ok(())
    }

    fn check_size(&self, name: &str, size: u64) -> Result<(), Status> {
        let (all, max) = (self.bytes.saturating_add(size), self.text.bytes_max);
        if all <= max {
            return Ok(());
        }
        Err(Status::invalid(format!(
            "request size of {all} bytes with input '{name}' of size {size} bytes exceeds the maximum allowed input size of \
             {max}. Use --http-max-input-size to increase the limit."
        )))
    }
}

/// Number of values in an array, not counting nested ones. 1 for a value that is not an array.
fn count_values(reader: &mut Reader<'_>) -> Result<u64, Fault> {
    let mut count = 0;
    if reader.kind() != Kind::Array {
        return Ok(1);
    }
    reader.elements(|reader| {
        count += 1;
        Ok(reader.skip()?)
    })?;
    Ok(count)
}

/// The shape of `count` values for a model whose input has the dimensions `dims`. Fixed dimensions divide `count`. The innermost variable dimension
/// takes the quotient, and the other variable dimensions are 1.
fn distribute(dims: &[i64], count: u64, name: &str) -> Result<Shape, Status> {
    let misfit = || Status::invalid(format!("The schema can not convert input '{name}' to tensor with proper shape"));
    let mut fixed = dims.iter().filter(|dim| **dim >= 0);
    let divisor = fixed.try_fold(1i64, |all, dim| all.checked_mul(*dim)).ok_or_else(misfit)?;
    let count = count as i64;
    if divisor == 0 || count % divisor != 0 {
        return Err(misfit());
    }
    let mut left = count / divisor;
    let mut shape = Shape::from_slice(dims);
    for dim in shape.iter_mut().rev().filter(|dim| **dim < 0) {
        *dim = std::mem::replace(&mut left, 1);
    }
    if left == 1 { Ok(shape) } else { Err(misfit()) }
}

#[cfg(test)]
mod tests;
