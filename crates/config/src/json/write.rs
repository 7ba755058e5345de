//! How is each value written in JSON?

use std::fmt::Write;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, Value};

use crate::schema;

/// Appends a message as an object.
pub(super) fn message(json: &mut String, message: &DynamicMessage) {
    let desc = message.descriptor();
    // Fields that distinguish unset from empty are omitted if unset. All others are always written.
    let mut shown: Vec<FieldDescriptor> =
        schema::declared(&desc).filter(|field| !field.supports_presence() || message.has_field(field)).collect();
    // As in Triton, which first writes the fields with defaults, in the schema's order. A scalar in a oneof has no default.
    shown.sort_by_key(|field| field.containing_oneof().is_some() && !matches!(field.kind(), Kind::Message(_)));
    enclosed(json, ['{', '}'], shown.into_iter(), |json, field| {
        key(json, field.name());
        match message.get_field(&field).as_ref() {
            Value::List(values) => {
                enclosed(json, ['[', ']'], values.iter(), |json, value| {
                    scalar(json, &field.kind(), value);
                });
            }
            Value::Map(entries) => map(json, &field, entries.iter()),
            value => scalar(json, &field.kind(), value),
        }
    });
}

/// Writes a map in the order of its keys, so that a configuration has only one JSON.
fn map<'a>(json: &mut String, field: &FieldDescriptor, entries: impl Iterator<Item = (&'a MapKey, &'a Value)>) {
    let kind = match field.kind() {
        Kind::Message(entry) => entry.map_entry_value_field().kind(),
        other => other,
    };
    let mut entries: Vec<_> = entries.collect();
    entries.sort_by(|(a, _), (b, _)| match (a, b) {
        (MapKey::String(a), MapKey::String(b)) => a.cmp(b),
        (a, b) => number_of(a).cmp(&number_of(b)),
    });
    enclosed(json, ['{', '}'], entries.into_iter(), |json, (name, value)| {
        match name {
            MapKey::String(name) => key(json, name),
            number => key(json, &number_of(number).to_string()),
        }
        scalar(json, &kind, value);
    });
}

fn number_of(key: &MapKey) -> i128 {
    match key {
        MapKey::Bool(key) => i128::from(*key),
        MapKey::I32(key) => i128::from(*key),
        MapKey::I64(key) => i128::from(*key),
        MapKey::U32(key) => i128::from(*key),
        MapKey::U64(key) => i128::from(*key),
        MapKey::String(_) => 0,
    }
}

fn scalar(json: &mut String, kind: &Kind, value: &Value) {
    match value {
        Value::Bool(value) => plain(json, value),
        Value::I32(value) => plain(json, value),
        Value::I64(value) => plain(json, value),
        Value::U32(value) => plain(json, value),
        Value::U64(value) => plain(json, value),
        Value::F32(value) => real(json, *value, f64::from(*value)),
        Value::F64(value) => real(json, *value, *value),
        Value::String(value) => text(json, value),
        Value::EnumNumber(number) => match kind {
            Kind::Enum(names) => match names.get_value(*number) {
                Some(value) => text(json, value.name()),
                None => plain(json, number),
            },
            _ => plain(json, number),
        },
        Value::Message(value) => message(json, value),
        Value::Bytes(_) | Value::List(_) | Value::Map(_) => {
            unreachable!("the schema has no bytes, and lists and maps hold none")
        }
    }
}

/// The shortest text that reads back as the same value of the same type, without a final `.0`. `wide` is the value as a double.
fn real(json: &mut String, value: impl std::fmt::Display + std::fmt::LowerExp, wide: f64) {
    match wide {
        _ if wide.is_nan() => text(json, "NaN"),
        f64::INFINITY => text(json, "Infinity"),
        f64::NEG_INFINITY => text(json, "-Infinity"),
        _ if wide != 0.0 && !(1e-6..1e21).contains(&wide.abs()) => plain(json, format!("{value:e}")),
        _ => plain(json, value),
    }
}

fn plain(json: &mut String, value: impl std::fmt::Display) {
    write!(json, "{value}").expect("a String takes whatever is written");
}

fn text(json: &mut String, value: &str) {
    json.push_str(&serde_json::Value::from(value).to_string());
}

fn key(json: &mut String, name: &str) {
    text(json, name);
    json.push(':');
}

fn enclosed<T>(
    json: &mut String,
    [open, close]: [char; 2],
    items: impl Iterator<Item = T>,
    mut each: impl FnMut(&mut String, T),
) {
    json.push(open);
    for (index, item) in items.enumerate() {
        if index > 0 {
            json.push(',');
        }
        each(json, item);
    }
    json.push(close);
}
