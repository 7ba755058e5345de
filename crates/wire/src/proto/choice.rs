//! Which value does a parameter have before its type is checked?

use nerite_request::Parameter;
use nerite_tensor::Name;

use super::read::{Fields, Malformed, Value, text};

/// An `InferParameter`: one of five types, or unset.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Choice {
    #[default]
    Unset,
    Bool(bool),
    Int(i64),
    String(Name),
    Double(f64),
    Uint(u64),
}

impl Choice {
    fn read(bytes: &[u8]) -> Result<Choice, Malformed> {
        let (mut fields, mut choice) = (Fields::new(bytes), Choice::Unset);
        while let Some(field) = fields.next()? {
            choice = match field {
                (1, Value::Varint(value)) => Choice::Bool(value != 0),
                (2, Value::Varint(value)) => Choice::Int(value as i64),
                (3, Value::Len(value)) => Choice::String(text(value, "string_param")?.into()),
                (4, Value::Fixed64(value)) => Choice::Double(f64::from_bits(value)),
                (5, Value::Varint(value)) => Choice::Uint(value),
                _ => choice,
            };
        }
        Ok(choice)
    }

    /// The value as a parameter for the model. `None` for the types that a model does not get.
    pub(super) fn into_parameter(self) -> Option<Parameter> {
        Some(match self {
            Choice::Bool(value) => Parameter::Bool(value),
            Choice::Int(value) => Parameter::Int(value),
            Choice::String(value) => Parameter::String(value.into()),
            Choice::Double(value) => Parameter::Double(value),
            Choice::Uint(_) | Choice::Unset => return None,
        })
    }
}

/// Reads one entry of a map of parameters.
pub(super) fn read_entry(bytes: &[u8]) -> Result<(&str, Choice), Malformed> {
    let (mut fields, mut key, mut choice) = (Fields::new(bytes), "", Choice::Unset);
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Len(value)) => key = text(value, "parameters.key")?,
            (2, Value::Len(value)) => choice = Choice::read(value)?,
            _ => {}
        }
    }
    Ok((key, choice))
}
