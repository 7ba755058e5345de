//! How are a request's parameters read?

use std::borrow::Cow;
use std::collections::HashSet;

use nerite_request::limits::{Counted, PARAMETERS_MAX, check_count};
use nerite_request::{Parameter, Parameters, Sequence, SequenceId, Status};

use crate::json::fault::{Fault, Malformed, explained, mismatch, prefixed};
use crate::json::lex::{Kind, Number, Reader};
use crate::json::limits::SEQUENCE_ID_CHARS_MAX;
use crate::json::value::text_of;

/// The parameters of a request, by purpose.
#[derive(Debug, Default)]
pub struct RequestParameters {
    pub sequence: Sequence,
    pub priority: u64,
    pub timeout_us: u64,
    pub binary_data_output: bool,
    pub parameters: Parameters,
}

/// The timeout of a request in microseconds, without reading the rest of its JSON. 0 if it has none, or an invalid one.
pub fn read_timeout(json: &[u8]) -> u64 {
    let mut timeout_us = 0;
    let mut read = || -> Result<(), Fault> {
        let mut reader = Reader::new(json)?;
        reader.members::<Fault>(|reader, key| {
            if key.as_ref() != b"parameters" || reader.kind() != Kind::Object {
                return Ok(reader.skip()?);
            }
            reader.members::<Fault>(|reader, key| {
                if key.as_ref() == b"timeout" {
                    timeout_us = named(reader, "timeout", Reader::unsigned)?;
                    return Ok(());
                }
                Ok(reader.skip()?)
            })
        })
    };
    // A fault is reported when the whole JSON text is read.
    if read().is_ok() { timeout_us } else { 0 }
}

/// Reads the object `parameters`.
pub fn read_parameters(reader: &mut Reader<'_>) -> Result<RequestParameters, Fault> {
    if reader.kind() != Kind::Object {
        let status = Status::internal(format!("failed to get request params.: {}", mismatch::MEMBERS));
        return Err(explained(status, "'parameters'").into());
    }
    let mut request_parameters = RequestParameters::default();
    let (mut known, mut count): (HashSet<Cow<'_, [u8]>>, _) = (HashSet::new(), 0);
    reader.members::<Fault>(|reader, key| {
        count += 1;
        if count > PARAMETERS_MAX || !known.insert(key.clone()) {
            return Ok(reader.skip()?);
        }
        read_one(reader, key, &mut request_parameters)
    })?;
    check_count(Counted::Parameters, count, PARAMETERS_MAX).map_err(Status::from)?;
    Ok(request_parameters)
}

fn read_one(
    reader: &mut Reader<'_>,
    key: Cow<'_, [u8]>,
    request_parameters: &mut RequestParameters,
) -> Result<(), Fault> {
    match key.as_ref() {
        b"sequence_id" => request_parameters.sequence.id = named(reader, "sequence_id", sequence_id)?,
        b"sequence_start" => request_parameters.sequence.start = named(reader, "sequence_start", Reader::bool)?,
        b"sequence_end" => request_parameters.sequence.end = named(reader, "sequence_end", Reader::bool)?,
        b"priority" => request_parameters.priority = named(reader, "priority", Reader::unsigned)?,
        b"timeout" => request_parameters.timeout_us = named(reader, "timeout", Reader::unsigned)?,
        b"binary_data_output" => {
            request_parameters.binary_data_output = named(reader, "binary_data_output", Reader::bool)?;
        }
        reserved if reserved.starts_with(b"triton_") => {
            return Err(Status::invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
            )
            .into());
        }
        _ => {
            let key = text_of(key);
            let value = custom(reader, &key)?;
            request_parameters.parameters.insert(key, value);
        }
    }
    Ok(())
}

/// Reads a value. An error names the parameter.
fn named<'t, T>(
    reader: &mut Reader<'t>,
    name: &str,
    read: impl FnOnce(&mut Reader<'t>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    read(reader).map_err(|fault| match fault {
        Fault::Refused(status) if status.code == nerite_request::Code::Internal => {
            explained(prefixed(&format!("Unable to parse '{name}': "), status), format_args!("parameter '{name}'"))
                .into()
        }
        other => other,
    })
}

fn sequence_id(reader: &mut Reader<'_>) -> Result<SequenceId, Fault> {
    if reader.kind() == Kind::Number {
        return match reader.number()? {
            Number::Unsigned(0) => Ok(SequenceId::None),
            Number::Unsigned(id) => Ok(SequenceId::Number(id)),
            Number::Negative(_) | Number::Real(_) => Err(Status::internal(mismatch::STRING).into()),
        };
    }
    let text = reader.string()?;
    if text.chars().count() > SEQUENCE_ID_CHARS_MAX {
        return Err(Status::unsupported(format!(
            "string correlation ID cannot be longer than {SEQUENCE_ID_CHARS_MAX} characters"
        ))
        .into());
    }
    Ok(if text.is_empty() { SequenceId::None } else { SequenceId::Text(text) })
}

/// Reads a parameter for the model.
pub fn custom(reader: &mut Reader<'_>, key: &str) -> Result<Parameter, Fault> {
    match reader.kind() {
        Kind::String => Ok(Parameter::String(reader.string()?)),
        Kind::Bool => Ok(Parameter::Bool(reader.bool()?)),
        Kind::Number => Ok(number(reader)?),
        Kind::Null | Kind::Array | Kind::Object => Err(Status::invalid(format!(
            "parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
        ))
        .into()),
    }
}

/// Integers that do not fit into 64 signed bits become doubles, as in Triton.
fn number(reader: &mut Reader<'_>) -> Result<Parameter, Malformed> {
    Ok(match reader.number()? {
        Number::Unsigned(value) => i64::try_from(value).map_or(Parameter::Double(value as f64), Parameter::Int),
        Number::Negative(value) => Parameter::Int(value),
        Number::Real(value) => Parameter::Double(value),
    })
}
