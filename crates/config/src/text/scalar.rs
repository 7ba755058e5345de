//! Which value does a token have in a field of a given type?

use std::fmt::Display;

use prost_reflect::{EnumDescriptor, Kind as Type, Value};

use super::lex::{Kind, Token};
use super::{Fault, Positioned};
use crate::suggest::nearest;

/// The value of a token, with the sign before it, in a field whose type is not a message.
pub(super) fn value(field: &str, kind: &Type, negative: bool, token: &Token<'_>) -> Positioned<Value> {
    let whole = || integer(field, kind, negative, token);
    match kind {
        Type::Bool => boolean(field, negative, token),
        Type::Double => float(field, negative, token).map(Value::F64),
        Type::Float => float(field, negative, token).map(|value| Value::F32(value as f32)),
        Type::Int32 | Type::Sint32 | Type::Sfixed32 => {
            ranged(whole()?, i32::MIN, i32::MAX, field, token).map(Value::I32)
        }
        Type::Int64 | Type::Sint64 | Type::Sfixed64 => {
            ranged(whole()?, i64::MIN, i64::MAX, field, token).map(Value::I64)
        }
        Type::Uint32 | Type::Fixed32 => ranged(whole()?, u32::MIN, u32::MAX, field, token).map(Value::U32),
        Type::Uint64 | Type::Fixed64 => ranged(whole()?, u64::MIN, u64::MAX, field, token).map(Value::U64),
        Type::Enum(names) => enumerator(field, kind, names, negative, token),
        Type::String | Type::Bytes | Type::Message(_) => {
            unreachable!("strings and messages are more than one word and are read elsewhere")
        }
    }
}

/// The values that a field of this type accepts, for an error.
pub(super) fn wanted(kind: &Type) -> String {
    match kind {
        Type::Bool => "true or false".to_owned(),
        Type::Double | Type::Float => "a number".to_owned(),
        Type::Enum(names) => format!("one of {}'s names", names.name()),
        Type::String | Type::Bytes => "a string in quotes".to_owned(),
        Type::Message(_) => "'{'".to_owned(),
        _ => "an integer".to_owned(),
    }
}

/// The fault of a token that a field does not accept.
pub(super) fn unexpected(field: &str, kind: &Type, token: &Token<'_>) -> (Fault, usize) {
    let cure = match (&token.kind, kind) {
        (Kind::Text(bytes), Type::Enum(_) | Type::Bool) => {
            Some(format!("write {} without quotes", String::from_utf8_lossy(bytes)))
        }
        (Kind::Text(bytes), Type::Message(_) | Type::String | Type::Bytes) => {
            let _ = bytes;
            None
        }
        (Kind::Text(bytes), _) => Some(format!("write the number {} without quotes", String::from_utf8_lossy(bytes))),
        (Kind::Name(word), Type::String | Type::Bytes) => Some(format!("write \"{word}\"")),
        (Kind::Integer { .. } | Kind::Float(_), Type::String | Type::Bytes) => {
            Some("put the value in quotes".to_owned())
        }
        (Kind::Mark('['), Type::Message(_)) => Some("this field takes one message".to_owned()),
        (Kind::Mark('['), _) => Some("this field takes one value, not a list".to_owned()),
        (Kind::Mark(']'), _) => Some("remove the comma before ']'".to_owned()),
        _ => None,
    };
    Fault::new(format!("expected {} for '{field}', found {}", wanted(kind), token.kind.shown()))
        .maybe(cure)
        .at(token.at)
}

fn boolean(field: &str, negative: bool, token: &Token<'_>) -> Positioned<Value> {
    match &token.kind {
        Kind::Name("true" | "True" | "t") if !negative => Ok(Value::Bool(true)),
        Kind::Name("false" | "False" | "f") if !negative => Ok(Value::Bool(false)),
        Kind::Integer { digits, radix } if !negative => match u64::from_str_radix(digits, *radix) {
            Ok(0) => Ok(Value::Bool(false)),
            Ok(1) => Ok(Value::Bool(true)),
            _ => Err(unexpected(field, &Type::Bool, token)),
        },
        Kind::Name(word) => {
            let (fault, at) = unexpected(field, &Type::Bool, token);
            let cure = nearest(word, ["true", "false"].into_iter());
            Err(fault.maybe(cure.map(|cure| format!("did you mean {cure}?"))).at(at))
        }
        _ => Err(unexpected(field, &Type::Bool, token)),
    }
}

fn float(field: &str, negative: bool, token: &Token<'_>) -> Positioned<f64> {
    let refused = || unexpected(field, &Type::Double, token);
    let value = match &token.kind {
        Kind::Float(text) | Kind::Integer { digits: text, radix: 10 } => text.parse().map_err(|_| refused())?,
        Kind::Name(word) => match word.to_ascii_lowercase().as_str() {
            "inf" | "infinity" => f64::INFINITY,
            "nan" => f64::NAN,
            _ => return Err(refused()),
        },
        _ => return Err(refused()),
    };
    Ok(if negative { -value } else { value })
}

fn integer(field: &str, kind: &Type, negative: bool, token: &Token<'_>) -> Positioned<i128> {
    let Kind::Integer { digits, radix } = &token.kind else {
        return Err(unexpected(field, kind, token));
    };
    // 2^127 exceeds every range, so a longer number gets the same error.
    let size = i128::from_str_radix(digits, *radix).unwrap_or(i128::MAX);
    Ok(if negative { -size } else { size })
}

fn ranged<T>(value: i128, least: T, most: T, field: &str, token: &Token<'_>) -> Positioned<T>
where
    T: TryFrom<i128> + Display,
{
    T::try_from(value).map_err(|_| {
        let sign = if value < 0 { "-" } else { "" };
        Fault::new(format!(
            "{sign}{} for '{field}' is outside {least} to {most}",
            token.kind.shown().trim_matches('\''),
        ))
        .at(token.at)
    })
}

fn enumerator(
    field: &str,
    kind: &Type,
    names: &EnumDescriptor,
    negative: bool,
    token: &Token<'_>,
) -> Positioned<Value> {
    match &token.kind {
        Kind::Name(word) if !negative => match names.get_value_by_name(word) {
            Some(value) => Ok(Value::EnumNumber(value.number())),
            None => Err(Fault::new(format!("{} has no value '{word}'", names.name()))
                .maybe(suggestion(names, word))
                .at(token.at)),
        },
        Kind::Integer { .. } => {
            let number = integer(field, kind, negative, token)?;
            ranged(number, i32::MIN, i32::MAX, field, token).map(Value::EnumNumber)
        }
        _ => Err(unexpected(field, kind, token)),
    }
}

/// The cure for an unknown name of an enumeration, such as `FP32`, `float` or `BYTES`.
pub(crate) fn suggestion(names: &EnumDescriptor, word: &str) -> Option<String> {
    let known: Vec<String> = names.values().map(|value| value.name().to_owned()).collect();
    let suffix = format!("_{}", word.to_ascii_uppercase());
    let alias = match word.trim_start_matches("TYPE_").to_ascii_lowercase().as_str() {
        _ if names.name() != "DataType" => None,
        "bytes" | "str" => Some("TYPE_STRING"),
        "float" | "float32" => Some("TYPE_FP32"),
        "double" | "float64" => Some("TYPE_FP64"),
        "half" | "float16" => Some("TYPE_FP16"),
        "bfloat16" => Some("TYPE_BF16"),
        "int" => Some("TYPE_INT32"),
        "long" => Some("TYPE_INT64"),
        _ => None,
    };
    let by_suffix = || known.iter().find(|name| name.ends_with(&suffix)).map(String::as_str);
    alias
        .or_else(by_suffix)
        .or_else(|| nearest(word, known.iter().map(String::as_str)))
        .map(|name| format!("did you mean {name}?"))
}
