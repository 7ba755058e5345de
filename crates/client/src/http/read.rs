//! How is an inference answer read from JSON with binary tensors?

use nerite_memory::{Buffer, Extent};
use nerite_request::{Code, Parameter, Parameters, RegionRef, Status};
use nerite_tensor::{DataType, Shape, strings};
use serde_json::Value;

use super::connection::Answer;
use crate::report::{datatype, items, parse, text};
use crate::{Error, Output, Response};

/// The answer, or an error if the answer is a refusal.
pub(super) fn accepted(answer: Answer) -> Result<Answer, Error> {
    if answer.status == 200 {
        return Ok(answer);
    }
    let body = String::from_utf8_lossy(&answer.json).into_owned();
    let document = serde_json::from_slice::<Value>(&answer.json).ok();
    let message = document.as_ref().and_then(|json| json["error"].as_str()).map_or(body, str::to_owned);
    let code = match answer.status {
        400 => Code::InvalidArg,
        404 => Code::NotFound,
        499 => Code::Cancelled,
        500 => Code::Internal,
        501 | 405 => Code::Unsupported,
        503 => Code::Unavailable,
        401 => Code::Unauthenticated,
        403 => Code::Denied,
        429 => Code::Exhausted,
        _ => Code::Unknown,
    };
    let message = if message.is_empty() { format!("HTTP status {}", answer.status) } else { message };
    Err(Error::Refused(Status::new(code, message)))
}

/// The tensors of an accepted answer.
pub(super) fn infer(answer: &Answer) -> Result<Response, Error> {
    let json = parse(&answer.json)?;
    let mut at = 0;
    let outputs = items(&json, "outputs").map(|one| output(one, &answer.tensors, &mut at));
    Ok(Response {
        outputs: outputs.collect::<Result<_, _>>()?,
        model: text(&json, "model_name"),
        version: text(&json, "model_version"),
        id: text(&json, "id"),
        parameters: parameters(&json["parameters"]),
    })
}

fn output(json: &Value, tensors: &Buffer, at: &mut usize) -> Result<Output, Error> {
    let (name, datatype) = (text(json, "name"), datatype(&text(json, "datatype"))?);
    let shape: Shape = items(json, "shape").filter_map(Value::as_i64).collect();
    let data = if let Some(size) = json["parameters"]["binary_data_size"].as_u64() {
        let extent = Extent::new(*at, size as usize, tensors.len()).map_err(|_| {
            Error::Answer(format!(
                "output '{name}' has {size} bytes, but only {} are left in the body",
                tensors.len() - *at
            ))
        })?;
        *at = extent.end();
        Some(tensors.slice(extent).aligned(datatype.align()))
    } else if json["data"].is_array() {
        Some(from_json(&name, datatype, &json["data"])?)
    } else {
        None
    };
    let leased_at = data.is_none().then(|| place(&json["parameters"])).flatten();
    Ok(Output { name, datatype, shape, data, leased_at })
}

fn place(json: &Value) -> Option<RegionRef> {
    let name = json["shared_memory_region"].as_str()?.to_owned();
    let (offset, byte_size) = (json["shared_memory_offset"].as_u64()?, json["shared_memory_byte_size"].as_u64()?);
    Some(RegionRef { name: name.into(), offset, byte_size })
}

/// Elements that were sent as JSON: classifications, or outputs that were requested without `binary_data_output`.
fn from_json(name: &str, datatype: DataType, data: &Value) -> Result<Buffer, Error> {
    let mut bytes = Vec::new();
    for value in data.as_array().into_iter().flatten() {
        let done = push(&mut bytes, datatype, value);
        done.ok_or_else(|| Error::Answer(format!("output '{name}' of {datatype} has an element {value}")))?;
    }
    Ok(Buffer::from(bytes).aligned(datatype.align()))
}

fn push(out: &mut Vec<u8>, datatype: DataType, value: &Value) -> Option<()> {
    match datatype {
        DataType::Bool => out.push(value.as_bool()?.into()),
        DataType::Uint8 => out.push(value.as_u64()?.try_into().ok()?),
        DataType::Uint16 => out.extend(u16::try_from(value.as_u64()?).ok()?.to_le_bytes()),
        DataType::Uint32 => out.extend(u32::try_from(value.as_u64()?).ok()?.to_le_bytes()),
        DataType::Uint64 => out.extend(value.as_u64()?.to_le_bytes()),
        DataType::Int8 => out.extend(i8::try_from(value.as_i64()?).ok()?.to_le_bytes()),
        DataType::Int16 => out.extend(i16::try_from(value.as_i64()?).ok()?.to_le_bytes()),
        DataType::Int32 => out.extend(i32::try_from(value.as_i64()?).ok()?.to_le_bytes()),
        DataType::Int64 => out.extend(value.as_i64()?.to_le_bytes()),
        DataType::Fp32 => out.extend((value.as_f64()? as f32).to_le_bytes()),
        DataType::Fp64 => out.extend(value.as_f64()?.to_le_bytes()),
        DataType::Bytes => strings::push(out, value.as_str()?.as_bytes())?,
        DataType::Fp16 | DataType::Bf16 => return None,
    }
    Some(())
}

fn parameters(json: &Value) -> Parameters {
    let mut read = Parameters::new();
    for (key, value) in json.as_object().into_iter().flatten() {
        let value = match value {
            Value::Bool(value) => Parameter::Bool(*value),
            Value::String(value) => Parameter::String(value.clone()),
            Value::Number(value) => match value.as_i64() {
                Some(value) => Parameter::Int(value),
                None => Parameter::Double(value.as_f64().unwrap_or(f64::NAN)),
            },
            _ => continue,
        };
        read.insert(key, value);
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, json: &str, tensors: &[u8]) -> Answer {
        Answer { status, json: json.as_bytes().to_vec(), tensors: Buffer::from(tensors.to_vec()).aligned(64) }
    }

    #[test]
    fn tensors_are_found_after_the_json_whatever_their_alignment() {
        let json = r#"{"model_name":"m","model_version":"1","id":"7","outputs":[
            {"name":"A","datatype":"INT8","shape":[1],"parameters":{"binary_data_size":1}},
            {"name":"B","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}},
            {"name":"C","datatype":"FP32","shape":[1]},
            {"name":"D","datatype":"BYTES","shape":[1],"data":["0.5:1:one"]}]}"#;
        let response = infer(&answer(200, json, &[9, 1, 0, 0, 0])).expect("an answer");
        assert_eq!((response.model.as_str(), response.id.as_str()), ("m", "7"));
        assert_eq!(response.outputs[1].as_slice::<i32>().expect("INT32"), [1]);
        assert!(response.outputs[2].is_placed());
        assert_eq!(response.outputs[3].strings().expect("BYTES"), [&b"0.5:1:one"[..]]);
    }

    #[test]
    fn a_tensor_longer_than_the_body_is_refused() {
        let json = r#"{"outputs":[{"name":"A","datatype":"INT8","shape":[9],"parameters":{"binary_data_size":9}}]}"#;
        assert!(matches!(infer(&answer(200, json, &[0; 8])), Err(Error::Answer(_))));
    }

    #[track_caller]
    fn refused(status: u16, body: &str, code: Code, message: &str) {
        let error = accepted(answer(status, body, b"")).expect_err("a refusal");
        assert_eq!((error.code(), error.to_string().as_str()), (Some(code), message));
    }

    #[test]
    fn a_refusal_keeps_the_servers_words() {
        refused(400, r#"{"error":"bad shape"}"#, Code::InvalidArg, "bad shape");
        refused(404, r#"{"error":"Not Found"}"#, Code::NotFound, "Not Found");
        refused(503, "", Code::Unavailable, "HTTP status 503");
        refused(418, "tea", Code::Unknown, "tea");
    }
}
