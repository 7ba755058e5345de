//! How are the fields of a JSON value read?

use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};
use serde_json::Value as Json;

use crate::schema;
use crate::suggest::{did_you_mean, nearest};
use crate::text::scalar;

type Read<T> = Result<T, String>;

/// Reads an object as a message. `path` is its path, such as `input[0].`, and empty for the root.
pub(super) fn message(json: &Json, desc: &MessageDescriptor, path: &str) -> Read<DynamicMessage> {
    let Json::Object(members) = json else {
        return Err(wrong(path.trim_end_matches('.'), "an object", json));
    };
    let mut message = DynamicMessage::new(desc.clone());
    for (name, value) in members {
        let field = desc
            .get_field_by_name(name)
            .or_else(|| desc.get_field_by_json_name(name))
            .ok_or_else(|| unknown(desc, path, name))?;
        let path = format!("{path}{name}");
        if !value.is_null() {
            set(&mut message, &field, value, &path)?;
        }
    }
    Ok(message)
}

fn set(message: &mut DynamicMessage, field: &FieldDescriptor, json: &Json, path: &str) -> Read<()> {
    let value = if field.is_map() {
        map(field, json, path)?
    } else if field.is_list() {
        // A single value without brackets is a list with that value. A null among others is skipped.
        let items = json.as_array().map_or(std::slice::from_ref(json), Vec::as_slice);
        let items = items.iter().enumerate().filter(|(_, item)| !item.is_null());
        let each = |(index, item)| single(&field.kind(), item, &format!("{path}[{index}]"));
        Value::List(items.map(each).collect::<Read<_>>()?)
    } else {
        single(&field.kind(), json, path)?
    };
    let other = field.containing_oneof().and_then(|choice| choice.fields().find(|other| message.has_field(other)));
    if let Some(other) = other {
        return Err(format!("{path}: cannot stand beside '{}'", other.name()));
    }
    message.set_field(field, value);
    Ok(())
}

fn map(field: &FieldDescriptor, json: &Json, path: &str) -> Read<Value> {
    let Kind::Message(entry) = field.kind() else { unreachable!("a map field is of its entries' type") };
    let Json::Object(members) = json else { return Err(wrong(path, "an object", json)) };
    let (key_kind, value_kind) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
    let each = |(name, value): (&String, &Json)| {
        let path = format!("{path}[{name:?}]");
        let key = match key_kind {
            Kind::Uint64 => {
                let key = name.parse();
                MapKey::U64(key.map_err(|_| format!("{path}: the key is not a number"))?)
            }
            _ => MapKey::String(name.clone()),
        };
        let value = match value {
            Json::Null => Value::default_value(&value_kind),
            value => single(&value_kind, value, &path)?,
        };
        Ok((key, value))
    };
    Ok(Value::Map(members.iter().map(each).collect::<Read<_>>()?))
}

fn single(kind: &Kind, json: &Json, path: &str) -> Read<Value> {
    match kind {
        Kind::Message(desc) => message(json, desc, &format!("{path}.")).map(Value::Message),
        Kind::Bool => match json {
            Json::Bool(value) => Ok(Value::Bool(*value)),
            Json::String(text) => truth(text).map(Value::Bool).ok_or_else(|| wrong(path, "true or false", json)),
            _ => Err(wrong(path, "true or false", json)),
        },
        Kind::String | Kind::Bytes => match json {
            Json::String(text) => Ok(Value::String(text.clone())),
            _ => Err(wrong(path, "a string", json)),
        },
        Kind::Enum(names) => enumerator(names, json, path),
        Kind::Float => match float(json, path)? {
            wide if wide.is_finite() && (wide as f32).is_infinite() => Err(format!("{path}: {wide} is out of range")),
            value => Ok(Value::F32(value as f32)),
        },
        Kind::Double => float(json, path).map(Value::F64),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => integer(json, path).map(Value::I32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => integer(json, path).map(Value::I64),
        Kind::Uint32 | Kind::Fixed32 => integer(json, path).map(Value::U32),
        Kind::Uint64 | Kind::Fixed64 => integer(json, path).map(Value::U64),
    }
}

/// The words for true and false that protobuf's reader takes in strings.
fn truth(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// An integer, or one in a string: protobuf writes 64-bit integers as strings. `1.0` and `1e2` are integers too.
fn integer<T: TryFrom<i128>>(json: &Json, path: &str) -> Read<T> {
    let number = match json {
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), _, _) => Some(i128::from(value)),
            (_, Some(value), _) => Some(i128::from(value)),
            // Up to 2^53, a whole double is exactly the number in the text.
            (_, _, Some(value)) if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 => {
                Some(value as i128)
            }
            _ => None,
        },
        Json::String(text) => text.parse().ok(),
        _ => None,
    };
    let number = number.ok_or_else(|| wrong(path, "an integer", json))?;
    T::try_from(number).map_err(|_| format!("{path}: {number} is out of range"))
}

fn float(json: &Json, path: &str) -> Read<f64> {
    let number = match json {
        Json::Number(number) => number.as_f64(),
        Json::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            text => text.parse().ok(),
        },
        _ => None,
    };
    number.ok_or_else(|| wrong(path, "a number", json))
}

fn enumerator(names: &EnumDescriptor, json: &Json, path: &str) -> Read<Value> {
    let word = match json {
        Json::Number(_) => return integer(json, path).map(Value::EnumNumber),
        Json::String(word) => word,
        _ => return Err(wrong(path, &format!("one of {}'s names", names.name()), json)),
    };
    let found = names.values().find(|value| value.name().eq_ignore_ascii_case(word));
    if let Some(number) = found.map(|value| value.number()).or_else(|| word.parse().ok()) {
        return Ok(Value::EnumNumber(number));
    }
    let cure = scalar::suggestion(names, word).map(|cure| format!("; {cure}"));
    Err(format!("{path}: {} has no value '{word}'{}", names.name(), cure.unwrap_or_default()))
}

fn unknown(desc: &MessageDescriptor, path: &str, name: &str) -> String {
    let known: Vec<_> = schema::declared(desc).collect();
    let cure = did_you_mean(nearest(name, known.iter().map(FieldDescriptor::name)));
    let path = match path.trim_end_matches('.') {
        "" => String::new(),
        path => format!("{path}: "),
    };
    format!("{path}{} has no field '{name}'{cure}", desc.name())
}

fn wrong(path: &str, wanted: &str, found: &Json) -> String {
    let found = match found {
        Json::Null => "null".to_owned(),
        Json::Bool(_) | Json::Number(_) => found.to_string(),
        Json::String(text) => format!("the string {:?}", text.chars().take(40).collect::<String>()),
        Json::Array(_) => "an array".to_owned(),
        Json::Object(_) => "an object".to_owned(),
    };
    let path = if path.is_empty() { "the configuration" } else { path };
    format!("{path}: expected {wanted}, found {found}")
}
