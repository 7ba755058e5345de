//! Which fields of a configuration are texts, and what are their values?
//!
//! A field is named by its path from [`ModelConfig`](crate::ModelConfig) on, with dots between the names: `model_warmup.inputs.input_data_file`. The values
//! of a map belong to the map's field. Its keys are no field.

use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, ReflectMessage, Value};

use crate::ModelConfig;
use crate::schema::{declared, model_config, to_dynamic};

/// The paths of all fields of the schema that are texts or bytes.
pub fn text_fields() -> Vec<String> {
    let mut found = Vec::new();
    collect_fields(&model_config(), "", &mut found);
    found
}

fn collect_fields(message: &MessageDescriptor, prefix: &str, found: &mut Vec<String>) {
    for field in declared(message) {
        let path = format!("{prefix}{}", field.name());
        let kind = match field.kind() {
            Kind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
            kind => kind,
        };
        match kind {
            Kind::String | Kind::Bytes => found.push(path),
            Kind::Message(inner) => collect_fields(&inner, &format!("{path}."), found),
            _ => {}
        }
    }
}

/// The texts that a configuration has in the field at this path, without empty ones.
pub fn texts_at(config: &ModelConfig, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    collect_texts(&to_dynamic(config), path, &mut found);
    found
}

fn collect_texts(message: &DynamicMessage, path: &str, found: &mut Vec<String>) {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let Some(field) = message.descriptor().get_field_by_name(name) else { return };
    let value = message.get_field(&field);
    let values: Vec<&Value> = match &*value {
        Value::List(all) => all.iter().collect(),
        Value::Map(all) => all.values().collect(),
        one => vec![one],
    };
    for value in values {
        match value {
            Value::Message(inner) => collect_texts(inner, rest, found),
            Value::String(text) if !text.is_empty() => found.push(text.clone()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(config: &str, path: &str, expected: &[&str]) {
        let config = crate::parse_text("c", config.as_bytes()).expect("a configuration");
        assert_eq!(texts_at(&config, path), expected);
    }

    #[test]
    fn a_path_leads_through_lists_maps_and_choices() {
        check("backend: 'b'", "backend", &["b"]);
        check("", "backend", &[]);
        check(
            "model_operations { op_library_filename: ['a', 'b'] }",
            "model_operations.op_library_filename",
            &["a", "b"],
        );
        check("cc_model_filenames { key: 'k' value: 'v' }", "cc_model_filenames", &["v"]);
        let warmup = "model_warmup { inputs { key: 'i' value { input_data_file: 'f' } } }";
        check(warmup, "model_warmup.inputs.input_data_file", &["f"]);
        check(warmup, "model_warmup.inputs.no_such_field", &[]);
    }

    #[test]
    fn fields_of_messages_in_maps_and_lists_are_found() {
        let all = text_fields();
        for path in ["name", "output.label_filename", "model_warmup.inputs.input_data_file", "parameters.string_value"]
        {
            assert!(all.iter().any(|field| field == path), "{path}: {all:?}");
        }
    }
}
