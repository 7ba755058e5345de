//! How does a response of the generate extension look?

use std::collections::BTreeMap;

use nerite_request::{InferResponse, Output, Parameter, Status};
use nerite_tensor::element_count;

use super::answer::{write_elements, write_parameter};
use super::write::Writer;

/// The value of one key.
enum Value<'r> {
    Text(&'r str),
    Parameter(&'r Parameter),
    Tensor(&'r Output),
}

/// Renders a response that is not an error as one flat object with sorted keys. A tensor with one element is written without brackets.
pub fn write_flat(response: &InferResponse) -> Result<Vec<u8>, Status> {
    let mut members = BTreeMap::from([
        ("model_name", Value::Text(&response.model)),
        ("model_version", Value::Text(&response.version)),
    ]);
    if !response.id.is_empty() {
        members.insert("id", Value::Text(&response.id));
    }
    // If a name is given twice, the first value counts, as in Triton.
    for (name, value) in response.parameters.iter() {
        members.entry(name).or_insert(Value::Parameter(value));
    }
    for output in &response.outputs {
        members.entry(&output.name).or_insert(Value::Tensor(output));
    }
    let mut writer = Writer::with_capacity(256);
    let mut outcome = Ok(());
    writer.object(|w| {
        for (name, value) in &members {
            w.key(name);
            match value {
                Value::Text(text) => w.string(text.as_bytes()),
                Value::Parameter(value) => write_parameter(w, value),
                Value::Tensor(output) => outcome = outcome.clone().and(write_tensor(w, output)),
            }
        }
    });
    outcome.map(|()| writer.into_bytes())
}

fn write_tensor(w: &mut Writer, output: &Output) -> Result<(), Status> {
    let is_single = element_count(&output.shape) == Ok(1);
    write_elements(w, output, |w, elements| if is_single { elements(w) } else { w.array(elements) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_memory::Buffer;
    use nerite_request::Parameters;
    use nerite_tensor::DataType;

    use super::*;

    fn output(name: &str, datatype: DataType, shape: &[i64], data: &[u8]) -> Output {
        Output {
            index: 0,
            name: name.into(),
            datatype,
            shape: shape.into(),
            data: Buffer::from(data.to_vec()),
            placed: false,
        }
    }

    #[track_caller]
    fn check(outputs: Vec<Output>, text: Result<&str, &str>) {
        let mut parameters = Parameters::new();
        parameters.insert("k", Parameter::Int(1));
        parameters.insert("model_name", Parameter::Int(2));
        let response = InferResponse {
            model: "m".into(),
            version: "3".into(),
            id: "i".into(),
            parameters,
            outputs: outputs.into(),
            ..InferResponse::default()
        };
        let got = write_flat(&response).map(|text| String::from_utf8(text).unwrap()).map_err(|status| status.message);
        assert_eq!(got.as_deref().map_err(String::as_str), text);
    }

    #[test]
    fn keys_are_sorted_and_single_elements_stand_alone() {
        let outputs = vec![
            output("z", DataType::Int32, &[1, 1], &[7, 0, 0, 0]),
            output("a", DataType::Uint8, &[2], &[1, 2]),
            output("s", DataType::Bytes, &[1], b"\x01\0\0\0x"),
            output("none", DataType::Int8, &[0], b""),
        ];
        check(
            outputs,
            Ok(r#"{"a":[1,2],"id":"i","k":1,"model_name":"m","model_version":"3","none":[],"s":"x","z":7}"#),
        );
    }

    #[test]
    fn half_floats_cannot_be_written() {
        check(
            vec![output("h", DataType::Fp16, &[1], &[0, 0])],
            Err("sending FP16 data via JSON is not supported. Please use the binary data format for output"),
        );
    }
}
