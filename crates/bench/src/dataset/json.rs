//! How are inputs read from JSON of perf_analyzer's form?
//!
//! `{"data": [{"INPUT0": [1, 2], "INPUT1": {"content": [1, 2], "shape": [2]}, "INPUT2": {"b64": "AAA="}}, …]}` has one stream. With a list of lists, each
//! inner list is a stream.

use base64::Engine;
use nerite_client::{DataType, Parameter, Tensor};
use serde_json::Value;

use super::{Content, Step, row_shape};
use crate::model::{Model, TensorSpec};
use crate::options::Options;

/// The member of a step that holds parameters of its request.
const PARAMETERS: &str = "parameters";

pub(super) fn streams(model: &Model, options: &Options, text: &str) -> Result<Vec<Vec<Step>>, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let data = document["data"].as_array().filter(|data| !data.is_empty());
    let data = data.ok_or("it has no list 'data' with a step")?;
    let steps = |list: &[Value]| list.iter().map(|value| step(model, options, value)).collect::<Result<Vec<_>, _>>();
    if data[0].is_array() {
        return data.iter().map(|stream| steps(stream.as_array().map_or(&[][..], Vec::as_slice))).collect();
    }
    Ok(vec![steps(data)?])
}

fn step(model: &Model, options: &Options, value: &Value) -> Result<Step, String> {
    let members =
        value.as_object().ok_or_else(|| format!("a step is an object with an entry for each input, and is {value}"))?;
    if let Some(name) = members.keys().find(|name| *name != PARAMETERS && model.input(name).is_none()) {
        let names: Vec<&str> = model.inputs.iter().map(|input| input.name.as_str()).collect();
        return Err(format!("model '{}' has no input '{name}'; it has {}", model.name, names.join(", ")));
    }
    let mut tensors = Vec::new();
    for spec in &model.inputs {
        match members.get(&spec.name) {
            Some(value) => {
                let content = content(spec, options, value);
                tensors.push(content.map_err(|reason| format!("input '{}': {reason}", spec.name))?);
            }
            None if spec.is_optional => {}
            None => return Err(format!("a step has no input '{}'", spec.name)),
        }
    }
    let parameters = members.get(PARAMETERS).and_then(Value::as_object).into_iter().flatten();
    let parameters = parameters.map(|(name, value)| Ok((name.clone(), parameter(name, value)?)));
    Ok(Step { tensors, parameters: parameters.collect::<Result<_, String>>()? })
}

fn parameter(name: &str, value: &Value) -> Result<Parameter, String> {
    match value {
        Value::Bool(value) => Ok(Parameter::Bool(*value)),
        Value::String(value) => Ok(Parameter::String(value.clone())),
        Value::Number(value) if value.is_i64() => Ok(Parameter::Int(value.as_i64().unwrap_or_default())),
        Value::Number(value) => Ok(Parameter::Double(value.as_f64().unwrap_or_default())),
        _ => Err(format!("parameter '{name}' is a truth value, number or text, and is {value}")),
    }
}

fn content(spec: &TensorSpec, options: &Options, value: &Value) -> Result<Content, String> {
    let elements = value.get("content").unwrap_or(value);
    let shape = match value.get("shape").and_then(Value::as_array) {
        Some(shape) => shape.iter().filter_map(Value::as_i64).collect(),
        None => row_shape(spec, options)?,
    };
    let tensor = if let Some(text) = elements.get("b64").and_then(Value::as_str) {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|error| error.to_string())?;
        match spec.datatype {
            // The bytes of the only element, or strings with their lengths before them.
            DataType::Bytes if shape.iter().product::<i64>() == 1 => Tensor::from_strings(&spec.name, &shape, &[bytes]),
            datatype => Tensor::from_bytes(&spec.name, datatype, &shape, bytes),
        }
    } else if spec.datatype == DataType::Bytes {
        let texts = flat(elements).into_iter();
        let texts = texts.map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned));
        Tensor::from_strings(&spec.name, &shape, &texts.collect::<Vec<_>>())
    } else {
        let mut bytes = Vec::new();
        for one in flat(elements) {
            number(spec.datatype, one, &mut bytes)?;
        }
        Tensor::from_bytes(&spec.name, spec.datatype, &shape, bytes)
    };
    let bytes = tensor.map_err(|error| error.to_string())?.bytes().clone();
    Ok(Content { name: spec.name.clone(), datatype: spec.datatype, shape, bytes })
}

/// The elements of nested lists, in row-major order.
fn flat(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        one => vec![one],
    }
}

fn number(datatype: DataType, value: &Value, out: &mut Vec<u8>) -> Result<(), String> {
    let fault = || format!("{value} is no {}", datatype.name());
    let integer = || value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from)).ok_or_else(fault);
    match datatype {
        DataType::Fp32 => out.extend((value.as_f64().ok_or_else(fault)? as f32).to_le_bytes()),
        DataType::Fp64 => out.extend(value.as_f64().ok_or_else(fault)?.to_le_bytes()),
        DataType::Bf16 => out.extend(&(value.as_f64().ok_or_else(fault)? as f32).to_le_bytes()[2..]),
        DataType::Fp16 => return Err("FP16 has no form in JSON; give its bytes as {\"b64\": …}".to_owned()),
        DataType::Bool => {
            let is_true = value.as_bool().or_else(|| value.as_i64().map(|number| number != 0));
            out.push(u8::from(is_true.ok_or_else(fault)?));
        }
        DataType::Uint8 => out.extend(u8::try_from(integer()?).map_err(|_| fault())?.to_le_bytes()),
        DataType::Uint16 => out.extend(u16::try_from(integer()?).map_err(|_| fault())?.to_le_bytes()),
        DataType::Uint32 => out.extend(u32::try_from(integer()?).map_err(|_| fault())?.to_le_bytes()),
        DataType::Uint64 => out.extend(u64::try_from(integer()?).map_err(|_| fault())?.to_le_bytes()),
        DataType::Int8 => out.extend(i8::try_from(integer()?).map_err(|_| fault())?.to_le_bytes()),
        DataType::Int16 => out.extend(i16::try_from(integer()?).map_err(|_| fault())?.to_le_bytes()),
        DataType::Int32 => out.extend(i32::try_from(integer()?).map_err(|_| fault())?.to_le_bytes()),
        DataType::Int64 => out.extend(i64::try_from(integer()?).map_err(|_| fault())?.to_le_bytes()),
        DataType::Bytes => return Err(fault()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let spec = |name: &str, datatype, shape: &[i64]| TensorSpec {
            name: name.to_owned(),
            datatype,
            shape: shape.to_vec(),
            is_optional: false,
        };
        let inputs = vec![spec("A", DataType::Int32, &[2]), spec("B", DataType::Bytes, &[-1])];
        Model { inputs, ..Model::default() }
    }

    #[track_caller]
    fn check(text: &str, expect: Result<&[&[&[u8]]], &str>) {
        let read = streams(&model(), &Options::default(), text);
        let read = read.map(|streams| {
            let bytes = |step: &Step| step.tensors.iter().map(|tensor| tensor.bytes.to_vec()).collect::<Vec<_>>();
            streams.iter().flatten().map(bytes).collect::<Vec<_>>()
        });
        match (read, expect) {
            (Ok(read), Ok(expect)) => assert_eq!(read, expect, "{text}"),
            (Err(reason), Err(expect)) => assert_eq!(reason, expect, "{text}"),
            (read, _) => panic!("{text}: {read:?}"),
        }
    }

    #[test]
    fn contents_are_flat_nested_or_base64() {
        let expect: &[&[u8]] = &[&[1, 0, 0, 0, 2, 0, 0, 0], &[1, 0, 0, 0, b'x']];
        for a in ["[1,2]", "[[1],[2]]", r#"{"content":[1,2]}"#, r#"{"b64":"AQAAAAIAAAA="}"#] {
            check(&format!(r#"{{"data":[{{"A":{a},"B":{{"content":["x"],"shape":[1]}}}}]}}"#), Ok(&[expect]));
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        check(r#"{"data":[]}"#, Err("it has no list 'data' with a step"));
        check(r#"{"data":[{"A":[1,2]}]}"#, Err("a step has no input 'B'"));
        check(r#"{"data":[{"C":[1,2]}]}"#, Err("model '' has no input 'C'; it has A, B"));
        check(r#"{"data":[{"A":[1,3000000000],"B":["x"]}]}"#, Err("input 'A': 3000000000 is no INT32"));
    }

    #[test]
    fn lists_of_lists_are_streams() {
        let step = r#"{"A":[1,2],"B":{"content":["x"],"shape":[1]}}"#;
        let text = format!(r#"{{"data":[[{step},{step}],[{step}]]}}"#);
        let read = streams(&model(), &Options::default(), &text).expect("sound");
        assert_eq!(read.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }
}
